"""How often many servers are looked at: so seldom that looks and the screen together leave the machine to others."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_CPU = 0.5  # of a core, for the whole program; beyond it looks are twice as rare,
LEAST_CPU = 0.2  # and below this twice as often again, up to what was asked for
CHECK_SECONDS = 5.0  # between two changes
MOST_TIMES = 64
GOLDEN = 0.6180339887498949  # of whose multiples the parts behind the point are spread evenly, whatever they are times


class Stretch:
    """`times` as long as was asked for it is between two looks at one server."""

    def __init__(self, clock: Callable[[], float], cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self.times = 1
        self._clock, self._cpu_seconds = clock, cpu_seconds
        self._since = (clock(), cpu_seconds())

    def reckon(self) -> None:
        """By what was used since the last time."""
        before, now = self._since, (self._clock(), self._cpu_seconds())
        self._since = now
        if now[0] <= before[0]:
            return
        share = (now[1] - before[1]) / (now[0] - before[0])
        if share > MOST_CPU:
            self.times = min(MOST_TIMES, self.times * 2)
        elif share < LEAST_CPU:
            self.times = max(1, self.times // 2)


def shift(number: int, every: float) -> float:
    """Seconds by which looks at one of many servers are earlier, so that all are spread over the time between two of
    one, however often that is doubled."""
    return number * GOLDEN % 1 * every * MOST_TIMES
