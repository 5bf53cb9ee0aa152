"""What is told of a simulation while it lasts, and how it is interrupted."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from engine.simulator.arrivals import Arrivals
from engine.simulator.tally import Tally

LINE_EVERY = 5.0  # seconds between two lines of progress; on a terminal the line is rewritten
REFRESH_EVERY = 0.25


class Simulation(Protocol):
    """Of one engine, or of several."""

    @property
    def done(self) -> int: ...
    @property
    def now(self) -> float: ...
    @property
    def arrivals(self) -> Arrivals: ...
    @property
    def tally(self) -> Tally: ...


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """The first interrupt is noted, for the step under way to end; a second one raises KeyboardInterrupt."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


class Progress:
    """A line on standard error for as long as a simulation lasts. `which`: of several, the one that is on."""

    def __init__(self, simulation: Simulation, which: str = "") -> None:
        self._simulation = simulation
        self._which = which
        self._live = sys.stderr.isatty()
        self._every = REFRESH_EVERY if self._live else LINE_EVERY
        self._begun = self._shown = time.monotonic()
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)

    def stopped(self, interrupted: bool) -> bool:
        """Show how far it is now and then; says whether to stop."""
        now = time.monotonic()
        if now - self._shown >= self._every:
            self._shown = now
            line = self._line(now - self._begun)
            if self._live:
                self._width = max(self._width, len(line))
                print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
            else:
                print(line, file=sys.stderr, flush=True)
        return interrupted

    def _line(self, elapsed: float) -> str:
        simulation = self._simulation
        done, total, tally = simulation.done, simulation.arrivals.total, simulation.tally
        left = f", about {elapsed / done * (total - done):,.0f} s left" if done else ""
        return (
            f"simulate: {self._which}{done:,}/{total:,} requests done, {tally.waiting:,} wait, {tally.steps:,} steps, "
            f"simulated {simulation.now:,.0f} s in {elapsed:.0f} s{left}"
        )
