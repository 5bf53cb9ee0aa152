"""A run while it goes on: a picture on a terminal, fitted to its size, or plain lines without one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.live import Live

from loadgen.live import lines
from loadgen.live.picture import Picture
from loadgen.live.state import RunState

LINE_EVERY = 5.0  # seconds between plain lines
FRAME_EVERY = 0.5
SWITCH_EVERY = 0.0005  # between threads; Python's own 5 ms are those that a send would be late


async def show(read: Callable[[], RunState], console: Console) -> None:
    """Show the states of a run until cancelled, and then the last one as a plain line."""
    try:
        if console.is_terminal and not console.is_dumb_terminal:
            await _draw(read, console)
        else:
            await _tell(read, console)
    finally:
        _say(console, read(), None)


def _say(console: Console, state: RunState, before: RunState | None) -> None:
    console.print(lines.line(state, before), markup=False, highlight=False, soft_wrap=True)


async def _tell(read: Callable[[], RunState], console: Console) -> None:
    """A plain line every few seconds."""
    before = read()
    while True:
        await asyncio.sleep(LINE_EVERY)
        state = read()
        _say(console, state, before)
        before = state


async def _draw(read: Callable[[], RunState], console: Console) -> None:
    """A picture that is drawn anew in its place, and goes when the run is over.

    A thread draws: a frame takes 10 ms, and requests that fall due meanwhile are not to wait for it. For that the
    threads must take turns more often, too.
    """
    picture = Picture(ascii_only=not console.encoding.startswith("utf"))
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_EVERY)
    try:
        # The thread ends before the picture goes: what it still draws would stay.
        with Live(console=console, auto_refresh=False, transient=True) as live, ThreadPoolExecutor(1) as thread:

            def frame() -> None:
                live.update(picture.draw(console.width, console.height - 1), refresh=True)

            while True:
                picture.take(read())
                await asyncio.get_running_loop().run_in_executor(thread, frame)
                await asyncio.sleep(FRAME_EVERY)
    finally:
        sys.setswitchinterval(usual)
