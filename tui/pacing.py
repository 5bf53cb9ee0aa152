"""A recording's clock: it goes on at some speed, stands still while paused, and never runs ahead of what is known."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

MIN_SPEED, MAX_SPEED = 0.1, 1000.0  # or infinity: as fast as it can be shown


class Pacing:
    """`playing`: time goes on. Times are the recording's, seconds are ours."""

    def __init__(
        self, at: float, speed: float, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        """The recording's time is `at` now. Raises ValueError for a speed that there is not."""
        self._check(speed)
        self.playing = True
        self._speed = speed
        self._clock, self._sleep = clock, sleep
        self._reckoned = (clock(), at)  # a moment on our clock, and the recording's at that moment
        self._sleeper: asyncio.Future[None] | None = None

    @property
    def speed(self) -> float:
        return self._speed

    def set_speed(self, speed: float, now: float) -> None:
        """From the recording's time `now` on. Raises ValueError."""
        self._check(speed)
        self.reckon(now)
        self._speed = speed
        self.wake()

    def reckon(self, at: float) -> None:
        """The recording's time is `at` now."""
        self._reckoned = (self._clock(), at)

    def now(self, earliest: float, latest: float) -> float:
        """The recording's time, between what was told last and what comes next."""
        then, at = self._reckoned
        if self.playing and not math.isinf(self._speed):
            at += (self._clock() - then) * self._speed
        return min(max(at, earliest), latest)

    def late(self, time: float) -> float:
        """Seconds by which what was due at `time` comes too late."""
        then, at = self._reckoned
        return (self._clock() - then) - (time - at) / self._speed

    def until(self, time: float, now: float) -> float:
        """Seconds from `now` until `time`."""
        return max(0.0, (time - now) / self._speed)

    async def wait(self, seconds: float | None) -> None:
        """So long, or for ever where that is None; or until something was asked for."""
        if seconds is None:
            self._sleeper = asyncio.get_running_loop().create_future()
        else:
            self._sleeper = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait({self._sleeper})
        finally:
            self._sleeper.cancel()
            self._sleeper = None

    def wake(self) -> None:
        """Something was asked for."""
        if self._sleeper:
            self._sleeper.cancel()

    @staticmethod
    def _check(speed: float) -> None:
        if not (MIN_SPEED <= speed <= MAX_SPEED or speed == math.inf):
            raise ValueError(f"speed: must be from {MIN_SPEED} to {MAX_SPEED:.0f}, or inf, got {speed}")
