"""Every command of the README works, in its order and on its model; replays are cut to two sessions, and benchmarks
to trials of the model `tiny`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from kernels.cpu_quantized_tile import missing_features

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
README = (ROOT / "README.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()  # its commands are run by tests/docs/test_security.py
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.S)
    for line in block.splitlines()
    if line.strip() and line not in SECURITY
]
# Set-up is what this test runs in: `make` made it, by these very commands (see the Makefile).
SET_UP = ("make ", "pip install")
SERVE = "paged-engine serve"
WEB = "paged-top --web"
TRIALS = {
    "benchmarks.compare": "--model tiny --scale 0.02 --repeats 1 --only offline,floor,http",
    "benchmarks.accuracy": "--model tiny --answers 2 --tokens 4 --rounds 0",
    "benchmarks.growth": "--model tiny --max-batch 4 --max-context 128 --steps 4",
}
FEWER = {"loadgen compare": " --repeat 1", "loadgen sweep": " --sessions 4 --search 1 --steps 2"}
FEW_CHATS = "--seconds 4 --chat-rate 1 --long-rate 0.5 --long-prompt 300 --even"
MADE = re.compile(r"(?<=[ =])(\w+\.(?:jsonl?|html|csv)|loads)(?= |$)")  # files and folders that commands write and read
pytestmark = pytest.mark.model


def lacks_vnni(command):
    """A command whose bits this processor cannot multiply: it says so."""
    return "--quantize" in command and bool(missing_features())


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PAGED_ENGINE_PORT": free_port(),
        "OUT": str(tmp_path_factory.mktemp("readme")),
    }


@pytest.fixture(scope="module")
def engine(environment):
    with serving(SERVE, environment) as process:
        yield process


def serving(command, environment):
    """The engine that a command starts, once it can serve."""
    return running(command, environment, f"http://127.0.0.1:{environment['PAGED_ENGINE_PORT']}/health")


@contextlib.contextmanager
def running(command, environment, address):
    """The server that a command starts, once it answers at an address."""
    process = subprocess.Popen(shlex.split(command), env=environment, cwd=ROOT)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(address, timeout=5)
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_the_readme_names_the_commands_that_matter():
    text = "\n".join(COMMANDS)
    for word in ("make demo", "make test", SERVE, "paged-top --url", "loadgen replay", "loadgen compare", "PATCH"):
        assert word in text


def test_the_makefile_sets_up_as_the_readme_says():
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        if command.startswith("pip install"):
            assert command in makefile.replace("$(BIN)/python -m ", "")
    assert "make test" in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(f"{SERVE} ")])
def test_an_engine_with_options_answers(command, environment):
    if lacks_vnni(command):
        done = subprocess.run(
            shlex.split(command), env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200
        )
        assert "needs a processor with AVX512-VNNI" in done.stderr
        return
    port = free_port()
    with serving(command, environment | {"PAGED_ENGINE_PORT": port}):
        body = json.dumps({"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/completions", body, timeout=60) as answer:
            assert "Paris" in json.load(answer)["choices"][0]["text"]


@pytest.mark.parametrize("command", [c for c in COMMANDS if WEB in c])
def test_pages_are_served_until_it_is_interrupted(command, environment, engine):
    command = command.replace("127.0.0.1:8000", f"127.0.0.1:{environment['PAGED_ENGINE_PORT']}")
    port = free_port()
    with running(command, environment | {"PAGED_TOP_WEB_PORT": port}, f"http://127.0.0.1:{port}/") as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
            assert f"ws://127.0.0.1:{port}/ws" in page.read().decode()
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith((*SET_UP, SERVE)) and WEB not in c])
def test_a_command_works(command, environment, engine):
    command = command.replace("127.0.0.1:8000", f"127.0.0.1:{environment['PAGED_ENGINE_PORT']}")
    command = re.sub(r"--sessions \d+ --speed \d+", "--sessions 2 --speed 200", command)
    command = command.replace("--seconds 120 --chat-rate 2 --long-rate 0.2 --long-prompt 3000", FEW_CHATS)
    for benchmark, options in TRIALS.items():
        command = command.replace(f"-m {benchmark}", f"-m {benchmark} {options}")
    command = MADE.sub(r"$OUT/\1", command)
    command += next((options for start, options in FEWER.items() if command.startswith(start)), "")
    done = subprocess.run(command, shell=True, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200)
    if "benchmarks.accuracy" in command and missing_features():
        assert "needs a processor with AVX512-VNNI" in done.stderr
        return
    # curl ends with 28 when its time is up, by which an endless stream is sampled; diff with 1 if a condition holds.
    allowed = {28} if "--max-time" in command else {0, 1} if "--fail-if" in command else {0}
    assert done.returncode in allowed, done.stdout + done.stderr
    assert (done.stdout or done.stderr).strip()
    assert '"error"' not in done.stdout


def test_the_client_example_gets_its_answer(environment, engine):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    code = code.replace("127.0.0.1:8000", f"127.0.0.1:{environment['PAGED_ENGINE_PORT']}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert "Paris" in done.stdout, done.stderr


def test_each_picture_and_path_exists():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
