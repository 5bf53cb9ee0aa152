"""What the screen is attached to: a front over real HTTP that is a cluster, an engine, and away; and a real cluster."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest

from tests.tui.cluster.clusters import Front, busy, early, wounded
from tests.tui.sources.test_attach import App
from tui.app import PagedTop
from tui.child import Child, command
from tui.cli import _engine_or_cluster
from tui.cluster.either import LOOK_SECONDS
from tui.command_line import parse
from tui.look import Look
from tui.once import run_once
from tui.replay import Replay
from tui.sources.targets import target


@asynccontextmanager
async def showing(url, *arguments, size=(160, 48), **options):
    """The app over what answers at a URL, as the command line has it."""
    _, chosen = parse(["--url", url, "--every", "0.2", *arguments])
    attached = _engine_or_cluster(chosen)
    app = PagedTop(attached, Look(), frames=False, **options)
    async with app.run_test(size=size) as pilot:
        try:
            yield App(app, pilot)
        finally:
            await attached.close()


@pytest.fixture(autouse=True)
def no_config(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize("arguments", [(), ("--source", "steps")], ids=["auto", "steps"])
async def test_a_cluster_is_found_out_and_followed(arguments):
    async with Front(early()) as front, showing(front.url, *arguments) as screen:
        assert screen.kind == "steps"
        await screen.until(lambda: screen.kind == "cluster" and "3 ready" in screen.text("header"))
        assert front.asked[0] == "GET /engine/snapshot"
        front.tell(wounded())
        await screen.until(lambda: "dead: the engine's process" in screen.text("workers"))
        await screen.press("m")
        await screen.until(lambda: front.changes == [{"separate": True}])
        await screen.until(lambda: "SEPARATE" in screen.text("header"))


async def test_the_server_goes_away_comes_back_and_is_another():
    front = Front(early())
    await front.start()
    async with showing(front.url) as screen:
        await screen.until(lambda: screen.kind == "cluster" and "● live" in screen.text("header"))
        await front.stop()
        await screen.until(lambda: "reconnecting since" in screen.text("header"))
        assert "prefill-0" in screen.text("workers")
        front.state = busy()
        await front.start()
        await screen.until(lambda: "1 moving" in screen.text("transfers"))
        assert "the cluster answers again" in screen.text("footer")
        front.is_cluster = False
        await front.stop()
        await front.start()
        await screen.until(lambda: screen.kind != "cluster")
        assert "an engine answers there now, and no cluster" in screen.text("footer")
        front.is_cluster = True
        await screen.until(lambda: screen.kind == "cluster")
        await front.stop()


async def test_a_cluster_of_another_version_is_told_and_stays():
    """Found so, and so again where it was read before."""
    async with Front(msgspec.structs.replace(early(), version=99)) as front, showing(front.url) as screen:
        await screen.until(lambda: "it tells version 99 of its state; this paged-top knows 1" in screen.text("header"))
        assert not screen.attach._is_other()
        front.state = early()
        await screen.until(lambda: "● live" in screen.text("header"))
        front.tell(msgspec.structs.replace(early(), version=99))
        await screen.until(lambda: "it tells version 99 of its state; this paged-top knows 1" in screen.text("header"))
        await asyncio.sleep(3 * LOOK_SECONDS)
        assert screen.kind == "cluster"
        assert front.asked.count("GET /engine/snapshot") == 1  # once, and not again and again


async def test_a_recording_goes_on_while_a_worker_is_open(tmp_path):
    async with Front(early()) as front, showing(front.url) as screen:
        await screen.until(lambda: screen.kind == "cluster" and "● live" in screen.text("header"))
        screen.app.recorder.start(str(tmp_path / "kept.jsonl"))
        await screen.press("right", "enter")
        assert screen.kind == "steps"
        front.tell(busy())
        await screen.until(lambda: "2 states" in screen.text("footer"))
        await screen.press("escape")
        assert screen.kind == "cluster"
    assert screen.attach.finished == [f"recorded 2 states, {size(tmp_path / 'kept.jsonl')}, to {tmp_path}/kept.jsonl"]


def size(path):
    from tui import figures

    return figures.size(path.stat().st_size)


async def test_it_is_printed_once(monkeypatch, capsys):
    monkeypatch.setattr("tui.cluster.once.OBSERVED", 0.0)
    async with Front(busy()) as front:
        assert await run_once(target(front.url), None, True, (160, 40), Look(), every=1.0) == 0
        assert json.loads(capsys.readouterr().out)["router"] == msgspec.to_builtins(busy().router)
        assert await run_once(target(front.url), None, False, (160, 40), Look(), every=1.0) == 0
        assert "handed over, 1 offered, 1 waiting, 1 moving" in capsys.readouterr().out


@asynccontextmanager
async def cluster(*arguments):
    """A real one of `tiny`; gives its address."""
    serve = ["serve", "--port", "0", "--model", "tiny", "--kv-memory", "1MiB", *arguments]
    server = await Child.start([*command("paged-engine", "engine.cli"), *serve])
    try:
        async with asyncio.timeout(60):
            while not any("serving tiny" in line for line in server.output):
                assert server.exit_code is None, server.output
                await asyncio.sleep(0.02)
        url = next(re.search(r"http://[0-9.:]+", line)[0] for line in server.output if "serving tiny" in line)
        yield url, server.process.pid
    finally:
        await server.stop()


async def test_a_real_cluster(monkeypatch):
    """Requests are handed over, a worker is opened, the mode is switched, a pool is scaled, and a worker dies."""
    played = []

    async def start(replay, address, *_):
        played.append(address)

    monkeypatch.setattr(Replay, "start", start)
    async with (
        cluster("--prefill", "1", "--decode", "1") as (url, server),
        showing(url) as screen,
        httpx.AsyncClient() as http,
    ):
        await screen.until(lambda: screen.kind == "cluster" and "2 ready" in screen.text("header"))
        asked = {"model": "tiny", "prompt": "a" * 200, "max_tokens": 20, "temperature": 0.0}
        first = (await http.post(f"{url}/v1/completions", json=asked)).json()
        await screen.until(lambda: " 1 came to these workers, " in screen.text("transfers"))
        assert "prefill-0→decode-0" in screen.text("transfers")

        await screen.press("right", "enter")
        await screen.until(lambda: screen.kind == "steps" and "● live" in screen.text("header"))
        assert "tiny" in screen.text("header")
        assert "esc the cluster" in screen.text("footer")
        await screen.app.session.steer_replay("start")
        assert played == [url]  # a worker alone takes no completions
        await screen.press("escape")
        assert screen.kind == "cluster"

        await screen.press("m")
        await screen.until(lambda: "COLOCATED" in screen.text("header"))
        again = (await http.post(f"{url}/v1/completions", json=asked)).json()
        assert again["choices"][0]["text"] == first["choices"][0]["text"]
        assert (await http.get(f"{url}/engine/cluster")).json()["control"]["separate"] is False

        await screen.press("plus")
        await screen.until(lambda: "1 of 2 ready" in screen.text("workers"))
        await screen.press("u")
        await screen.until(lambda: "DECODE  1 of 1 ready" in screen.text("workers"))

        prefill = engines(server)[0]
        os.kill(prefill, signal.SIGKILL)
        await screen.until(lambda: "starting: the engine process was killed by SIGKILL" in screen.text("workers"))
        events = [words for _, words in screen.attach.now.feed.states.tape._events]
        assert any("prefill-0 is started again: the engine process was killed by SIGKILL" in told for told in events)


def engines(server):
    """Their processes, in the order in which they were started."""
    told = subprocess.run(["ps", "--ppid", str(server), "-o", "pid="], capture_output=True, text=True, check=True)
    return sorted(map(int, told.stdout.split()))
