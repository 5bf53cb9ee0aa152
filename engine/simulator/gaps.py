"""The gaps between an answer's tokens, all of a run, in bounded memory: counts of values to 0.4 % of themselves."""

from __future__ import annotations

from collections import Counter
from math import frexp, ldexp

from engine.simulator.prediction import Percentiles

_STEPS = 128  # from a power of two to the next


class Gaps:
    """Seconds. Count, mean and most are exact; a percentile is that of the rounded values, without interpolation."""

    def __init__(self) -> None:
        self._counts: Counter[float] = Counter()
        self._count = 0
        self._total = self._most = 0.0

    def add(self, seconds: float) -> None:
        fraction, exponent = frexp(seconds)
        self._counts[ldexp(round(fraction * 2 * _STEPS), exponent)] += 1
        self._count += 1
        self._total += seconds
        self._most = max(self._most, seconds)

    def told(self) -> Percentiles:
        if not self._count:
            return Percentiles(0)
        p50, p90, p99 = map(self._percentile, (50, 90, 99))
        return Percentiles(self._count, self._total / self._count, p50, p90, p99, self._most)

    def _percentile(self, percent: int) -> float:
        """The least value that at least so many percent do not exceed."""
        seen = 0
        for value, count in sorted(self._counts.items()):
            seen += count
            if 100 * seen >= percent * self._count:
                return min(value / (2 * _STEPS), self._most)
        raise AssertionError("percentiles are of what was counted")
