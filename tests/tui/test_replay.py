"""The load as a child: started, rescaled, stopped and started again, with what it tells of itself."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tui.feed import Feed
from tui.replay import Load, Replay
from tui.session import Session

HOUR = 3600.0
CLOCKS = st.sampled_from(["00:00", "12:34", "1:02:03"])
SPEEDS = st.sampled_from([0.25, 1.0, 6.0, 2.5, 64.0])


@pytest.fixture(autouse=True)
def logs(tmp_path, monkeypatch):
    """The folder of the replay's log."""
    folder = tmp_path / "logs"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def write_trace(path, arrivals=(0.0, HOUR)):
    header = {"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}, "temperature": 0.7}
    turn = {"user": "Hi", "user_tokens": 1, "output_tokens": 2, "seed": 1}
    sessions = [
        {"session": f"s{at}", "arrival": arrival, "system": "main", "turns": [turn]}
        for at, arrival in enumerate(arrivals)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *sessions]))
    return path


class Server:
    """Answers every chat with one word."""

    def __init__(self):
        self.url = ""
        self.asked = asyncio.Event()
        self.count = 0
        self.keys = set()

    async def models(self, _):
        return web.json_response({"data": [{"id": "m"}]})

    async def chat(self, request):
        self.count += 1
        self.keys.add(request.headers.get("Authorization"))
        self.asked.set()
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for event in ({"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]}, "[DONE]"):
            await reply.write(f"data: {event if event == '[DONE]' else json.dumps(event)}\n\n".encode())
        return reply


@asynccontextmanager
async def serving():
    server, app = Server(), web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/chat/completions", server.chat)
    runner = web.AppRunner(app, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def until(true):
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


@given(
    st.builds(
        Load,
        state=st.sampled_from(["running", "stopping", "done", "stopped"]),
        trace=st.text(st.characters(exclude_characters="\r\n", categories=("L", "N", "P", "Zs")), max_size=20),
        speed=SPEEDS,
        asked=st.none() | SPEEDS,
        took=CLOCKS,
    ),
    st.none() | st.tuples(st.integers(0, 999), st.integers(1, 999)),
    st.none() | st.integers(-15, 99).filter(bool),
)
def test_a_line_tells_all_of_it(load, progress, code):
    from dataclasses import replace

    load = replace(load, trace=f"t{load.trace}")
    if progress:
        load = replace(load, done=progress[0], sessions=progress[1])
    if code:
        load = replace(load, state="failed", code=code)
    assert Load.of(load.line) == load


def test_other_lines_are_none():
    waits = Load("waits", "chat500", 6.0)
    assert waits.line == "replay: waits, 6x, chat500"
    assert Load.of(waits.line) == waits
    running = Load("running", "chat500", 6.0, 12.0, "00:41", 12, 500)
    assert running.line == "replay: running 00:41, 6x, asked for 12x, 12/500 of chat500"
    assert Load.of("") is Load.of("replay: something else") is None


async def test_its_speed_changes_while_it_runs_and_it_can_be_started_again(tmp_path, logs):
    async with serving() as server:
        replay = Replay(write_trace(tmp_path / "two.jsonl"), time.monotonic)
        assert replay.load == Load("waits", "two", 1.0)
        replay.set_speed(2.0)
        await replay.start(server.url, None)
        assert replay.running
        assert replay.load.speed == 2.0
        await server.asked.wait()
        replay.set_speed(36_000.0)
        assert replay.load.asked == 36_000.0
        await until(lambda: replay.load.asked is None)
        assert replay.load.speed == 36_000.0
        await until(lambda: not replay.running)
        assert (replay.load.state, replay.load.done, replay.load.sessions) == ("done", 2, 2)
        assert server.count == 2
        assert any("sessions served whole" in line for line in replay.report)
        await replay.start(server.url, None)
        await until(lambda: not replay.running)
        assert (replay.load.state, server.count) == ("done", 4)
        await replay.stop()
        assert list(logs.iterdir()) == []


async def test_it_is_stopped_and_a_second_start_changes_nothing(tmp_path, logs):
    async with serving() as server:
        replay = Replay(write_trace(tmp_path / "two.jsonl"), time.monotonic)
        await asyncio.gather(replay.start(server.url, None), replay.start(server.url, None))
        await server.asked.wait()
        assert len(list(logs.iterdir())) == 1
        assert await replay.stop() == 130
        assert replay.load.state == "stopped"
        assert (replay.failure, list(logs.iterdir())) == ("", [])


async def test_one_that_fails_says_so_and_keeps_its_log(tmp_path, logs):
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    replay = Replay(broken, time.monotonic)
    await replay.start("http://127.0.0.1:9", None)
    await until(lambda: not replay.running)
    await replay.stop()
    assert replay.load == Load("failed", "broken", 1.0, took=replay.load.took, code=2)
    (log,) = logs.iterdir()
    assert str(log) in replay.failure


@pytest.mark.parametrize("place", ["/dev/full", "/no/such/folder/log"])
async def test_a_log_that_cannot_be_written_stops_no_replay(tmp_path, monkeypatch, place):
    def make(**_):
        return os.open(place, os.O_WRONLY), place

    monkeypatch.setattr(tempfile, "mkstemp", make)
    monkeypatch.setattr("pathlib.Path.unlink", lambda *_, **__: None)
    async with serving() as server:
        replay = Replay(write_trace(tmp_path / "two.jsonl", (0.0, 0.1)), time.monotonic)
        await replay.start(server.url, None)
        await until(lambda: not replay.running)
        assert (replay.load.state, replay.load.done, replay.failure) == ("done", 2, "")
        await replay.stop()
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    replay = Replay(broken, time.monotonic)
    await replay.start("http://127.0.0.1:9", None)
    await until(lambda: not replay.running)
    await replay.stop()
    why = "No space left on device" if place == "/dev/full" else "No such file or directory"
    assert f"it ends early: {why})" in replay.failure


async def test_the_key_is_in_the_childs_environment_alone(tmp_path):
    async with serving() as server:
        replay = Replay(write_trace(tmp_path / "two.jsonl"), time.monotonic)
        await replay.start(server.url, None, "s3cret")
        process = f"/proc/{replay._child.process.pid}"
        await server.asked.wait()
        assert b"s3cret" not in Path(process, "cmdline").read_bytes()
        assert b"LOADGEN_ADMIN_KEY=s3cret" in Path(process, "environ").read_bytes()
        assert server.keys == {"Bearer s3cret"}
        await replay.stop()
        assert not any("s3cret" in line for line in replay.report)


async def test_a_session_starts_stops_and_rescales_one_at_any_time(tmp_path, recording, played):
    trace = write_trace(tmp_path / "two.jsonl")
    async with serving() as server:
        session = Session(server.url, engine=played(recording), trace=trace)
        assert await session.steer_replay("start") == ("there is no engine to send a load to", True)
        session.feed._read(recording[0])
        assert await session.steer_replay("speed", 2.0) == ("replay: waits, 2x, two", False)
        words, bad = await session.steer_replay("start")
        assert (words.startswith("replay: running 00:0"), bad) == (True, False)
        await server.asked.wait()
        words, bad = await session.steer_replay("speed", 100.0)
        assert (words, bad) == ("a replay's speed is from 0.25 to 64, not 100", True)
        words, bad = await session.steer_replay("stop")
        assert (words.startswith("replay: stopped after"), bad) == (True, False)
        await session.close()


async def test_a_trace_that_is_not_there_is_told(tmp_path, monkeypatch, recording, played):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tui.replay.__file__", str(tmp_path / "tui" / "replay.py"))
    session = Session("http://127.0.0.1:9", engine=played(recording))
    assert isinstance(session.feed, Feed)
    session.feed._read(recording[0])
    words, bad = await session.steer_replay("start")
    assert bad
    assert "chat500.jsonl" in words
    await session.close()
