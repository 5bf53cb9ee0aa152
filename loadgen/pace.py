"""How fast a trace is played, which may change while it is: trace time is the integral of the speed.

Arrivals and think times are due at moments of the trace; what is not due yet when the speed changes comes by the new
one from then on.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass

from loadgen.client import clock


@dataclass(frozen=True, slots=True)
class Stretch:
    """From `moment` on (seconds of the clock), at which the trace stands at `trace` seconds, it goes by `speed`."""

    moment: float
    trace: float
    speed: float


class Ended(Exception):
    """Nothing is due any more: the run ends with what it has begun."""


class Pace:
    """One run's trace time. It stands at 0 at the moment given to `begin`; before that only its speed can be set."""

    def __init__(self, speed: float) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be above 0, got {speed}")
        self._asked = speed
        self._stretches = [Stretch(math.inf, 0.0, speed)]  # it begins when it is told to
        self._changed = asyncio.Event()
        self._over = False

    @property
    def speed(self) -> float:
        """Trace seconds in a second, as it is now."""
        return self._stretches[-1].speed

    @property
    def changes(self) -> tuple[tuple[float, float], ...]:
        """Every change of the speed that was asked for: (seconds from the beginning, the new one)."""
        begin, speeds = self._stretches[0].moment, [self._asked, *(stretch.speed for stretch in self._stretches)]
        return tuple(
            (stretch.moment - begin, stretch.speed)
            for stretch, before in zip(self._stretches, speeds, strict=False)
            if stretch.speed != before
        )

    def begin(self, moment: float) -> None:
        """Let the trace start at a moment, which may lie ahead."""
        self._stretches = [Stretch(moment, 0.0, self.speed)]

    def set_speed(self, speed: float, now: float) -> None:
        """Go by another speed from `now` on. Raises ValueError unless it is above 0."""
        if not speed > 0:
            raise ValueError(f"speed must be above 0, got {speed}")
        last = self._stretches[-1]
        if speed == last.speed:
            return
        if now <= last.moment:  # nothing went by the last one
            self._stretches[-1] = Stretch(last.moment, last.trace, speed)
        else:
            self._stretches.append(Stretch(now, self.trace(now), speed))
        self._changed.set()
        self._changed = asyncio.Event()

    def trace(self, moment: float) -> float:
        """Where the trace stands at a moment, in its own seconds."""
        at = max(0, bisect_right(self._stretches, moment, key=lambda stretch: stretch.moment) - 1)
        stretch = self._stretches[at]
        return stretch.trace + (moment - stretch.moment) * stretch.speed

    def moment(self, trace: float) -> float:
        """When the trace stands there, if the speed stays as it is."""
        at = max(0, bisect_right(self._stretches, trace, key=lambda stretch: stretch.trace) - 1)
        stretch = self._stretches[at]
        return stretch.moment + (trace - stretch.trace) / stretch.speed

    def end(self) -> None:
        """Let nobody wait any longer."""
        self._over = True
        self._changed.set()

    async def until(self, trace: float, ahead: float = 0.0) -> float:
        """Wait until the trace stands there, or until `ahead` seconds before; returns the moment when it stands there.

        Raises `Ended` if nothing is to become due any more.
        """
        while not self._over and (left := self.moment(trace) - ahead - clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
        if self._over:
            raise Ended
        return self.moment(trace)
