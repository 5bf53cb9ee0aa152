"""The whole comparison on the tiny model, as a user starts it: every participant, and one that is not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from safetensors.torch import save_file

from benchmarks.messages import Settings, StepShape
from benchmarks.participants import PeerError, Server
from benchmarks.peers import facts
from benchmarks.works import make_work
from engine.loading.resolve import resolve_model

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "benchmarks.compare", "--model", "tiny", "--scale", "0.03"]
EVERYONE = {"offline", "floor", "static", "http", "generate", "generate_batch"}


def test_everyone_is_compared_and_who_is_missing_is_told(tmp_path):
    files = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg")]
    everyone = ",".join((*EVERYONE, "gone"))
    command = [*COMMAND, "--work", "burst,single", "--only", everyone, "--server", "gone=http://127.0.0.1:9"]
    done = subprocess.run(
        [*command, "--repeats", "2", "--profile", *files], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 1, done.stderr  # one is missing, which a script must be able to see
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["works"].keys() == {"burst", "single"}
    for work in found["works"].values():
        assert [round_.keys() for round_ in work["rounds"]] == [EVERYONE, EVERYONE]
        assert work["failed"].keys() == {"gone"}
        assert "cannot be reached" in work["failed"]["gone"]
        for round_ in work["rounds"]:
            assert {run["output_tokens"] for run in round_.values()} == {round_["offline"]["output_tokens"]}
        ratios = [one["http"]["seconds"] / one["offline"]["seconds"] for one in work["rounds"]]
        assert work["to_offline"]["http"]["median"] == pytest.approx(sum(1 / one for one in ratios) / 2)
    assert all(run["token_seconds"] for run in found["works"]["single"]["rounds"][0].values())
    assert found["aims"] == []  # of works at full size alone
    assert found["peak_memory_bytes"] > 50_000_000
    assert "burst, 2 rounds" in done.stdout
    assert "where the time of" in done.stdout
    assert "gone is missing" in done.stdout
    svg = (tmp_path / "a.svg").read_text()
    assert svg.startswith("<svg")
    assert "@font-face" not in svg or "https://" not in svg.partition("@font-face")[2].partition("}")[0]


def test_weights_are_not_counted_twice(tmp_path, monkeypatch):
    """A GGUF file's blocks lie beside the floats that were read from them."""
    monkeypatch.setenv("PAGED_TOP_CACHE", str(tmp_path))
    settings = Settings("tiny", "bfloat16", 1 << 20, 512)
    before = facts.make(settings)
    folder = resolve_model("tiny").folder
    save_file({"blocks.q4_1": torch.zeros(100, 20, dtype=torch.uint8)}, folder / "blocks.safetensors")
    assert facts.make(settings) == before


def test_ctrl_c_ends_everyone_and_tells_what_there_is():
    process = subprocess.Popen(
        [*COMMAND, "--work", "burst", "--only", "offline,http", "--repeats", "1000"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "http:" in line:
            break
    children = descendants(process.pid)
    assert len(children) >= 3  # the offline engine, the server and its core
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "offline" in out
    assert "Traceback" not in errors
    until = time.monotonic() + 10
    while alive := [child for child in children if Path(f"/proc/{child}").exists()]:
        assert time.monotonic() < until, alive
        time.sleep(0.1)


def test_a_model_that_is_not_there_is_told():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", "--model", "nothing"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "unknown model 'nothing'" in done.stderr
    assert "Traceback" not in done.stderr


def descendants(root: int) -> list[int]:
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return [pid for pid in found[1:] if pid != os.getpid()]


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (400, {"error": "prompt must be text"}, "400 for a prompt of token ids with ignore_eos: .*prompt must be text"),
        (200, {"usage": {"completion_tokens": 3}}, "made 3 tokens of 13: this server does not honour ignore_eos"),
        (200, {"choices": []}, "usage"),
    ],
)
async def test_a_server_that_does_other_work_is_refused(status, answer, message):
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "some"}]})

    async def completions(request: web.Request) -> web.Response:
        body = await request.json()
        assert body["model"] == "some"
        assert body["ignore_eos"] is True
        assert all(isinstance(token, int) for token in body["prompt"])
        return web.json_response(answer, status=status)

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", completions)])
    schedule: tuple[StepShape, ...] = ()
    async with TestServer(app) as there:
        server = Server("other", str(there.make_url("/")), stream=False)
        await server.start(lambda text: None)
        try:
            with pytest.raises(PeerError, match=message):
                await server.run(make_work("single", "1", 259, 0.1), schedule, lambda text: None)
        finally:
            await server.stop()
