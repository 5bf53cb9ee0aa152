"""A run is drawn on a terminal, and told in lines without one; at its end the last line stands."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from loadgen.live import screen
from loadgen.live.screen import show
from loadgen.live.state import RunState
from tests.loadgen.live.states import long_run

RUN = long_run(20)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "LINE_EVERY", 0.01)
    monkeypatch.setattr(screen, "FRAME_EVERY", 0.01)


def states() -> Callable[[], RunState]:
    """The states of a run, one each time that it is asked; the last one then stays."""
    left: Iterator[RunState] = iter(RUN[:-1])
    return lambda: next(left, RUN[-1])


async def shown_until(console: Console, enough: Callable[[], bool]) -> None:
    """Show a run until something is to be seen; then it ends."""
    task = asyncio.create_task(show(states(), console))
    while not enough():
        await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_lines_without_a_terminal() -> None:
    out = io.StringIO()
    await shown_until(Console(file=out, width=40), lambda: out.getvalue().count("\n") >= 3)
    lines = out.getvalue().splitlines()
    assert all(line.startswith("replay: ") and "turns" in line for line in lines)
    assert "\x1b" not in out.getvalue()


async def test_a_dumb_terminal_gets_lines() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, _environ={"TERM": "dumb"})
    await shown_until(console, lambda: out.getvalue().count("\n") >= 3)
    assert "\x1b[2K" not in out.getvalue()


async def test_a_picture_on_a_terminal_that_goes_at_the_end() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, color_system=None)
    usual = sys.getswitchinterval()
    await shown_until(console, lambda: out.getvalue().count("latency so far") >= 3)
    drawn = out.getvalue()
    gone, last = drawn[: drawn.rindex("replay: ")], drawn[drawn.rindex("replay: ") :]
    assert gone.rindex("\x1b[2K") > gone.rindex("latency so far")  # its lines are cleared
    assert "\x1b[?25h" in gone  # and the cursor is back
    assert "sessions 0/900" not in last
    assert last.endswith("chunks/s in the mean\n")
    assert sys.getswitchinterval() == usual


async def test_other_output_stands_above_the_picture() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24, color_system=None)
    task = asyncio.create_task(show(states(), console))
    while "latency so far" not in out.getvalue():
        await asyncio.sleep(0.01)
    console.print("steer: speed 4")
    await asyncio.sleep(0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    after = out.getvalue()[out.getvalue().index("steer: speed 4") :]
    assert "latency so far" in after


async def test_what_goes_wrong_in_a_frame_is_not_swallowed() -> None:
    def read() -> RunState:
        raise ZeroDivisionError

    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    with pytest.raises(ZeroDivisionError):
        await show(read, console)
