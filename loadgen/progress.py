"""How far a run is: counts while it runs, shown live on a terminal or as plain lines without one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadgen.outcome import Outcome, RequestRecord

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY = 5.0  # seconds between plain lines
REFRESH_EVERY = 0.25
_RATE_WINDOW = 5.0


@dataclass(slots=True)
class Progress:
    """Counts of a run under way. Chunks are counted live; tokens only when a server has told them."""

    sessions: int
    turns: int
    label: str = "replay"
    started: float = field(default_factory=time.monotonic)
    sessions_done: int = 0
    completed: int = 0
    failed: int = 0
    in_flight: int = 0
    queued: int = 0  # wait for a slot of --concurrency
    output_tokens: int = 0
    chunks: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.queued += 1
        try:
            yield
        finally:
            self.queued -= 1

    @contextmanager
    def running(self) -> Iterator[None]:
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def count_chunk(self) -> None:
        self.chunks += 1

    def count(self, record: RequestRecord) -> None:
        if record.outcome is Outcome.COMPLETED:
            self.completed += 1
            self.output_tokens += record.output_tokens
        elif record.outcome.failed:
            self.failed += 1

    def _chunk_rate(self, now: float) -> float:
        """Chunks/s since the last look that is at least the window old, or else the start."""
        while len(self._marks) > 1 and now - self._marks[1][0] >= _RATE_WINDOW:
            self._marks.popleft()
        then, before = self._marks[0] if self._marks else (self.started, 0)
        self._marks.append((now, self.chunks))
        return (self.chunks - before) / (now - then) if now > then else 0.0

    def line(self) -> str:
        """The state as one line."""
        now = time.monotonic()
        rate = self._chunk_rate(now)
        waiting = f", {self.queued} waiting for a slot" if self.queued else ""
        return (
            f"{self.label}: {now - self.started:.0f} s, sessions {self.sessions_done}/{self.sessions}, "
            f"turns {self.completed + self.failed}/{self.turns} done, {self.in_flight} running{waiting}, "
            f"{self.failed} failed, {self.output_tokens} output tokens, {rate:.1f} chunks/s"
        )


async def show(progress: Progress, console: Console) -> None:
    """Show the progress until cancelled: live on a terminal, else a plain line every few seconds."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(LINE_EVERY)
            console.print(progress.line(), highlight=False, soft_wrap=True)
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    def picture() -> Table:
        table = Table.grid(expand=True)
        done = progress.completed + progress.failed
        table.add_row(ProgressBar(total=max(1, progress.turns), completed=done))
        table.add_row(progress.line())
        return table

    with Live(picture(), console=console, auto_refresh=False, transient=True) as live:
        while True:
            await asyncio.sleep(REFRESH_EVERY)
            live.update(picture(), refresh=True)
