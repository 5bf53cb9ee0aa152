"""How far the reading of a large file is: a bar on a terminal, a line every few seconds without one."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from loadgen.durations import clock
from loadgen.inspection.inspecting import Reading

LINE_EVERY = 5.0  # seconds between plain lines
SHOW_AFTER = 0.5  # seconds: what is read sooner needs no bar
REFRESH_EVERY = 0.2
MEGABYTE = 1e6


def reading_line(file: str, reading: Reading) -> str:
    """The state as one line."""
    rate = reading.bytes_read / reading.seconds if reading.seconds else 0.0
    left = f", {clock((reading.size - reading.bytes_read) / rate)} left" if rate else ""
    share = reading.bytes_read / reading.size if reading.size else 1.0
    return (
        f"{file}: {reading.bytes_read / MEGABYTE:,.0f} of {reading.size / MEGABYTE:,.0f} MB ({share:.0%}), "
        f"{reading.requests:,} requests, {rate / MEGABYTE:,.1f} MB/s{left}"
    )


class ReadingProgress:
    """Shows one file's reading while it is entered."""

    def __init__(self, file: str, console: Console) -> None:
        self._file = file
        self._console = console
        self._live: Live | None = None
        self._next = time.monotonic() + (SHOW_AFTER if console.is_terminal else LINE_EVERY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, reading: Reading) -> None:
        """Show it, if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        if not self._console.is_terminal:
            self._console.print(reading_line(self._file, reading), highlight=False, markup=False, soft_wrap=True)
            self._next = now + LINE_EVERY
            return
        picture = Table.grid(expand=True)
        picture.add_row(ProgressBar(total=max(1, reading.size), completed=reading.bytes_read))
        picture.add_row(reading_line(self._file, reading))
        if self._live is None:
            self._live = Live(picture, console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(picture, refresh=True)
        self._next = now + REFRESH_EVERY
