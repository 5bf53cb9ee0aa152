"""A run while it goes on: a picture on a terminal, fitted to its size, or plain lines without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from loadgen.live import lines
from loadgen.live.state import RunState

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY = 5.0  # seconds between plain lines
FRAME_EVERY = 0.5


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
    """A picture that is drawn anew in its place, and goes when the run is over."""
    from rich.live import Live

    from loadgen.live.picture import Picture

    picture = Picture(ascii_only=not console.encoding.startswith("utf"))
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            picture.take(read())
            live.update(picture.draw(console.width, console.height - 1), refresh=True)
            await asyncio.sleep(FRAME_EVERY)
