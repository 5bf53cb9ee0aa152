"""The demo without a terminal: modes switched half-way, a frame under load, loadgen's report, exit code 0."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time

import pytest

from tui import demo, scene, windows
from tui.demo import run_demo
from tui.look import Look
from tui.panels.line import text_of
from tui.replay import NoTrace, Replay, find_trace
from tui.session import Session
from tui.view import RATE_WINDOW, Frame, Link, Status


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(demo, "FIRST_HALF", 2.0)
    monkeypatch.setattr(demo, "SECOND_HALF", 2.0)
    monkeypatch.setattr(demo, "PROGRESS_EVERY", 1.0)
    monkeypatch.setattr(windows, "SWITCH_GROUP", 0.5)


@pytest.fixture(autouse=True)
def logs(tmp_path, monkeypatch):
    """The folder of the replay's log."""
    folder = tmp_path / "logs"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def write_trace(path, output_tokens, system="Be kind. " * 20, sessions=200):
    header = {"format": "paged-top-chat", "version": 1, "systems": {"main": system}, "temperature": 0.7}
    turn = {"user": "How are you?", "user_tokens": 4, "output_tokens": output_tokens, "seed": 7}
    lines = [header] + [
        {"session": f"s{count:04}", "arrival": count * 0.05, "system": "main", "turns": [turn]}
        for count in range(sessions)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def run(trace):
    replay = Replay(trace, time.monotonic)
    session = Session(model="tiny", replay=replay)
    try:
        return await run_demo(session, replay, (160, 48), Look()), session, replay
    finally:
        await session.close()


async def test_it_switches_shows_a_frame_and_reports(tmp_path, capsys, short, logs):
    code, session, replay = await run(write_trace(tmp_path / "t.jsonl", 400))
    out, err = capsys.readouterr()
    assert code == 0, err
    order = [out.index(words) for words in ("static + reserved from", "continuous + paged from", "╭─ blocks")]
    assert order == sorted(order)
    frame = out[out.index(" paged-top  tiny") :].splitlines()[:48]
    assert max(len(line) for line in frame) <= 160
    assert "static → continuous, reserved → paged" in "\n".join(frame)
    assert "replay: running" in frame[-1]
    assert "\n".join(replay.report) in out
    assert "sessions served whole" in out
    assert replay.exit_code == 130
    assert "The minute is over" in out
    assert session._own.child.exit_code is not None
    assert list(logs.iterdir()) == []


async def test_a_replay_that_ended_by_itself_is_not_said_to_be_stopped(tmp_path, capsys, short):
    code, _, replay = await run(write_trace(tmp_path / "t.jsonl", 3, sessions=2))
    out, err = capsys.readouterr()
    assert (code, replay.exit_code) == (0, 0), err
    assert "sessions served whole" in out
    assert "The minute is over" not in out


async def test_a_replay_that_fails_is_told_and_keeps_its_log(tmp_path, capsys, short, logs):
    broken = tmp_path / "t.jsonl"
    broken.write_text('{"format": "something else"}\n')
    code, _, replay = await run(broken)
    assert code == 1
    error = capsys.readouterr().err
    assert "the replay ended with exit code 2" in error
    (log,) = logs.iterdir()
    assert str(log) in error
    assert "t.jsonl: " in log.read_text()
    assert replay.line.startswith("replay: exit code 2 after ")


async def test_an_engine_that_does_not_come_is_told(tmp_path, capsys, short):
    replay = Replay(write_trace(tmp_path / "t.jsonl", 5), time.monotonic)
    session = Session(model="/no/such/folder", replay=replay)
    assert await run_demo(session, replay, (80, 24), Look()) == 1
    assert "/no/such/folder" in capsys.readouterr().err
    await session.close()


async def test_an_engine_that_is_not_there_is_told(tmp_path, capsys, short):
    replay = Replay(write_trace(tmp_path / "t.jsonl", 5), time.monotonic)
    session = Session("http://127.0.0.1:1", replay=replay)
    assert await asyncio.wait_for(run_demo(session, replay, (80, 24), Look()), 60) == 1
    assert "http://127.0.0.1:1: nothing answers there" in capsys.readouterr().err
    await session.close()


def test_a_line_of_figures_is_the_screens(simulated, fold, monkeypatch):
    monkeypatch.setattr(demo, "PROGRESS_EVERY", RATE_WINDOW)
    items = list(simulated.simulate(300, {0: simulated.STATIC_RESERVED}))
    feed = fold(items[: 1 + next(i for i, item in enumerate(items) if i > 90 and item.held)])
    feed._clock = lambda: 100.0  # no record has come for a while, as in a long step
    view = feed.view()
    assert any(state.status == "held" for state in view.requests.values())
    shown = "\n".join(text_of(line) for line in scene.draw(Frame(Status(Link("live")), view), 160, 48, Look()))
    line = demo._line(view)
    rate = re.search(r"output +([\d,]+) tok/s", line)[1]
    assert f" {rate} tok/s" in shown
    batch = re.search(r"(\d+) in the batch, +(\d+) waiting", line)
    assert f"batch {batch[1]}/" in shown
    assert f"queue {batch[2]}" in shown


def test_the_trace_is_found_or_its_absence_told(tmp_path, monkeypatch):
    assert find_trace().name == "chat500.jsonl"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tui.replay.__file__", str(tmp_path / "tui" / "replay.py"))
    with pytest.raises(NoTrace, match=r"chat500\.jsonl"):
        find_trace()
