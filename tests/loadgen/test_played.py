"""What of a trace is played, and what a look at it before its run tells."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen import played
from loadgen.settings import Settings
from loadgen.traces.chat import trace_lines
from loadgen.traces.model import FORMAT, VERSION, Header, Session, TraceError, Turn


def settings_for(folder: Path) -> Settings:
    trace = folder / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n' * 3)
    return Settings(file=str(trace))


async def test_reading_ends_when_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Ctrl-C waits for the end of a trace of any length. What it is told is looked at, without a trace so long."""
    begun, told = threading.Event(), threading.Event()

    def endless(*arguments: Any) -> Any:
        given_up: Callable[[], bool] = arguments[-1]
        begun.set()
        while not given_up():
            pass
        told.set()

    monkeypatch.setattr(played, "survey", endless)
    waiting = asyncio.create_task(played.survey_aside(settings_for(tmp_path), None, print))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(told.wait, 10)


def test_a_reading_that_was_given_up(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    assert played.survey(settings, None, print).sessions == 3
    with pytest.raises(TraceError, match="was not read to its end"):
        played.survey(settings, None, print, given_up=lambda: True)


def settings_of_lengths(folder: Path, lengths: list[int], **more: Any) -> Settings:
    """Of a trace with a session of one turn for each length, an answer of one token included."""
    sessions = [
        Session(session=f"s{number}", arrival=float(number), turns=(Turn(input_tokens=length - 1, output_tokens=1),))
        for number, length in enumerate(lengths)
    ]
    trace = folder / "trace.jsonl"
    trace.write_bytes(b"".join(trace_lines(Header(FORMAT, VERSION), sessions)))
    return Settings(file=str(trace), **more)


@pytest.mark.parametrize("lengths", [[10, 99, 10], [99, 10, 10], [10, 10, 99], [99, 10, 99]])
def test_sessions_that_are_left_out_are_counted_wherever_they_are(tmp_path: Path, lengths: list[int]) -> None:
    settings = settings_of_lengths(tmp_path, lengths, too_long="skip", sessions=3)
    found = played.survey(settings, 50, print)
    assert (found.sessions, found.left_out) == (lengths.count(10), lengths.count(99))
    indices = [index for index, _ in played.played(played.trace_of(settings), settings, 50)]
    assert indices == [index for index, length in enumerate(lengths) if length == 10]


def test_a_trace_has_as_many_sessions_as_are_asked_for_or_it_is_said(tmp_path: Path) -> None:
    settings = settings_of_lengths(tmp_path, [99, 10, 99], too_long="skip", sessions=4)
    with pytest.raises(TraceError, match=r"--sessions 4: .* has 3 sessions"):
        played.survey(settings, 50, print)
