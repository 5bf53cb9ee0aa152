"""`--once` and the feed against a real engine with the `tiny` model."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import suppress

import httpx
import msgspec
import pytest

from engine.protocol import LoadLatency, LoadRun, decode_snapshot, encode
from tui.client import HttpEngine
from tui.engine_api import Refused
from tui.engine_process import EngineFailed, EngineProcess
from tui.feed import Feed
from tui.session import Session


def paged_top(*arguments, **environment):
    """Run the command as a user without a terminal does."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PAGED_TOP_")}
    return subprocess.run(
        [sys.executable, "-c", "import sys; from tui.cli import main; sys.exit(main())", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**clean, **environment},
        check=False,
    )


@pytest.fixture(scope="module")
def engine_url():
    """A real engine, started and stopped as paged-top does it."""
    loop = asyncio.new_event_loop()
    process = EngineProcess("tiny")
    url = loop.run_until_complete(process.start())
    body = {"model": "tiny", "prompt": ["a b c d e f g h " * 4] * 3, "max_tokens": 24, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status()
    yield url
    loop.run_until_complete(process.stop())
    assert process.child is not None
    assert process.child.exit_code is not None
    loop.close()


def test_json_is_the_engines_snapshot(engine_url):
    result = paged_top("--once", "--json", "--url", engine_url)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    snapshot = httpx.get(f"{engine_url}/engine/snapshot").json()
    del snapshot["blocks"]
    assert told["seq"] == snapshot["seq"] > 0
    assert told.pop("loads") == []
    assert told == snapshot


async def test_an_engine_without_swap_space_says_that_it_cannot_swap(engine_url):
    engine = HttpEngine(engine_url)
    with pytest.raises(Refused, match="no swap space; it may be 'recompute' or 'auto'"):
        await engine.change({"preempt": "swap"})
    await engine.close()


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
def test_one_frame_as_text(engine_url, size):
    width, height = size
    result = paged_top("--once", "--url", engine_url, COLUMNS=str(width), LINES=str(height))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == height
    assert max(len(line) for line in lines) <= width
    snapshot = decode_snapshot(httpx.get(f"{engine_url}/engine/snapshot").content)
    assert f"step {snapshot.seq:,}" in lines[0]
    cached = f"{snapshot.pool.cached:,}"
    assert f"cached {cached} " in result.stdout or f"▒{cached} " in result.stdout
    assert "● live" in lines[0]


def test_a_load_generator_is_in_the_frame_and_in_the_json(engine_url):
    latency = LoadLatency(0.25, 0.75, 4)
    run = LoadRun(
        label="rate 4", trace="talk", elapsed=5.0, share=0.5, sessions=8, sessions_done=2, turns=9, due=6, queued=0,
        sent=6, in_flight=2, completed=3, failed=1, output_tokens=99, speed=1.0, ttft=latency, ttft_scheduled=latency,
        tpot=latency, e2e=latency, e2e_scheduled=latency,
    )  # fmt: skip
    told = f"{engine_url}/engine/loads/mine"
    httpx.put(told, content=encode(run)).raise_for_status()
    frame = paged_top("--once", "--url", engine_url)
    httpx.put(told, content=encode(run)).raise_for_status()
    totals = paged_top("--once", "--json", "--url", engine_url)
    httpx.delete(told)
    assert " client rate 4  4/9 turns  1 failed  TTFT p50 due 250 ms" in frame.stdout, frame.stdout + frame.stderr
    (load,) = json.loads(totals.stdout)["loads"]
    assert (load["id"], msgspec.convert(load["run"], LoadRun)) == ("mine", run)


def test_without_a_terminal_it_prints_once(engine_url):
    result = paged_top(PAGED_TOP_URL=engine_url, PAGED_TOP_ASCII="1")
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert len(result.stdout.splitlines()) == 24


async def test_the_fold_is_the_snapshot_of_a_live_engine(engine_url):
    engine = HttpEngine(engine_url)
    feed = Feed(engine, time.monotonic)
    task = asyncio.create_task(feed.run())
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"model": "tiny", "max_tokens": 30, "ignore_eos": True}
        bodies = [{**body, "prompt": f"hello {count} " * count} for count in range(1, 7)]
        bodies[3]["n"] = 3
        await asyncio.gather(*(client.post(f"{engine_url}/v1/completions", json=each) for each in bodies))
        await engine.change({"batching": "static"})
        accepted = await engine.change({"batching": "continuous"})
        assert accepted.control.batching == "continuous"
    snapshot = await engine.snapshot()
    while feed.fold is None or feed.fold.seq < snapshot.seq:
        await asyncio.sleep(0.01)
    assert feed.fold.to_snapshot() == snapshot
    now = feed.now
    window = feed.history.window(0.0, now)
    assert len(window.ttft) == len(window.tpot) == 8
    assert window.output_tokens == pytest.approx(240)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await engine.close()


def test_an_engine_that_is_not_there():
    result = paged_top("--once", "--url", "http://127.0.0.1:1")
    assert result.returncode == 1
    assert result.stderr == "paged-top: error: http://127.0.0.1:1: nothing answers there\n"
    assert result.stdout == ""


def test_an_engine_that_cannot_start_is_told_and_gone():
    result = paged_top("--once", "--model", "no-such-model/at-all")
    assert result.returncode == 1
    assert "the engine did not start" in result.stderr
    assert "Traceback" not in result.stderr


async def test_an_engine_that_cannot_start_says_why():
    process = EngineProcess("/no/such/folder")
    with pytest.raises(EngineFailed, match="/no/such/folder"):
        await process.start()
    await process.stop()


async def test_the_end_of_an_own_engine_is_told():
    session = Session(model="tiny")
    task = asyncio.create_task(session.run())
    while session.feed is None or session.feed.fold is None:
        assert not session.error
        await asyncio.sleep(0.02)
    assert session.link.phase == "live"
    child = session._own.child
    child.process.kill()
    while session.link.phase != "ended":
        await asyncio.sleep(0.02)
    assert "exit code -9" in session.link.detail
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await session.close()
