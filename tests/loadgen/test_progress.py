"""The live line shows what was counted."""

from __future__ import annotations

import asyncio
import io

from rich.console import Console

from loadgen import progress as module
from loadgen.outcome import Outcome, RequestRecord
from loadgen.progress import Progress, show


def test_rate_between_looks_that_are_a_window_apart() -> None:
    """Looks once a window, as without a terminal: the rate is of the window, not 0 for want of an older look."""
    progress = Progress(1, 1, started=100.0)
    progress.chunks = 20
    assert progress._chunk_rate(105.0) == 4.0
    progress.chunks = 30
    assert progress._chunk_rate(110.0) == 2.0
    assert progress._chunk_rate(115.0) == 0.0


def test_rate_between_frequent_looks_spans_the_window() -> None:
    progress = Progress(1, 1, started=0.0)
    rates = []
    for tick in range(1, 61):
        progress.chunks = 10 * tick
        rates.append(progress._chunk_rate(tick * 0.5))
    assert set(rates) == {20.0}


def test_the_line_counts() -> None:
    progress = Progress(sessions=2, turns=3)
    progress.count(RequestRecord("s", 0, 4, 0.0, Outcome.COMPLETED, sent=0.0, ended=1.0, output_tokens=4))
    progress.count(RequestRecord("s", 1, 4, 0.0, Outcome.CUT))
    progress.count(RequestRecord("t", 0, 4, None, Outcome.NOT_REACHED))
    with progress.waiting(), progress.running():
        line = progress.line()
    assert "turns 2/3 done, 1 running, 1 waiting for a slot, 1 failed, 4 output tokens" in line
    assert "0 running, 1 failed" in progress.line()


async def test_plain_lines_without_a_terminal(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "LINE_EVERY", 0.01)
    out = io.StringIO()
    task = asyncio.create_task(show(Progress(1, 2), Console(file=out)))
    while out.getvalue().count("\n") < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    assert "turns 0/2 done" in out.getvalue()
    assert "\x1b" not in out.getvalue()


async def test_live_on_a_terminal(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "REFRESH_EVERY", 0.01)
    out = io.StringIO()
    task = asyncio.create_task(show(Progress(1, 2), Console(file=out, force_terminal=True, width=120)))
    while out.getvalue().count("turns 0/2 done") < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert out.getvalue().endswith(("\x1b[?25h", "\x1b[2K"))  # the cursor is back
