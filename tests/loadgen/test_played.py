"""A trace that is read before it is played."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen import played
from loadgen.settings import Settings
from loadgen.traces.model import TraceError


def settings_for(folder: Path) -> Settings:
    trace = folder / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n' * 3)
    return Settings(file=str(trace))


async def test_reading_ends_when_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else Ctrl-C waits for the end of a trace of any length. What it is told is looked at, without a trace so long."""
    begun, told = threading.Event(), threading.Event()

    def endless(settings: Settings, limit: int | None, say: Callable[[str], None], given_up: Callable[[], bool]) -> Any:
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
        played.survey(settings, None, print, lambda: True)
