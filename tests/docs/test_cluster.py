"""docs/cluster.md: every command of it works, in its order, on the cluster that its first one starts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cluster.protocol import ClusterControl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines() if line.strip()]
SERVE, *OTHERS = COMMANDS
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SAMPLED = 28  # curl's exit code when its time is up, by which an endless stream is sampled


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = f"{SERVE} --model tiny --kv-memory 2MiB --port 0".split()
    environment = {**os.environ, "PATH": PATH, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = re.search(r"http://\S+", process.stdout.readline())
    assert told, process.stderr
    yield told[0]
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors


def run(command: str, url: str) -> str:
    environment = {**os.environ, "PATH": PATH, "PAGED_ENGINE_URL": url}
    command = command.replace("http://127.0.0.1:8000", url)
    done = subprocess.run(command, shell=True, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode in ({SAMPLED} if "--max-time" in command else {0}), done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_every_command_does_what_the_page_says(url: str) -> None:
    told = {command: run(command, url) for command in OTHERS}
    for command, out in told.items():
        assert out.strip(), command
        if command.startswith("paged-engine scale"):
            assert out.rstrip().endswith("done"), command
    watched = json.loads(told["curl -s http://127.0.0.1:8000/engine/cluster"])
    assert [worker["name"] for worker in watched["workers"]] == ["prefill-0", "decode-0"]
    assert told["curl -s --max-time 1 http://127.0.0.1:8000/engine/cluster/events"].startswith("event: cluster\n")
    assert 'engine="decode-0"' in told["curl -s http://127.0.0.1:8000/metrics"]
    last = json.loads(told[OTHERS[-1]])  # of all the changes
    assert last["control"] == {
        "separate": True,
        "routing": "prefix",
        "local_prefill": 128,
        "prefill": 1,
        "decode": 1,
        "replicas": 0,
    }


def test_every_control_is_told() -> None:
    rows = "\n".join(re.findall(r"^\| (`.*?) \|", PAGE, re.M))
    assert set(re.findall(r"`(\w+)`", rows)) == set(ClusterControl.__struct_fields__)
