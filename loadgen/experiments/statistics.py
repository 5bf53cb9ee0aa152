"""Whether two sides differ: Student's t over repeats, and Holm's correction over figures. Pure.

The unit is a repeat, not a request: the requests of one run share its machine, its cache and its queue, so that they
are not independent, and treating them so finds differences of an engine with itself. Of the methods tried on simulated
runs (`python -m benchmarks.compare_methods`), the bootstrap over repeats finds such differences in 16 to 75 % of
comparisons with 3 to 12 repeats; t over unpaired runs holds its rate, but finds next to nothing when the machine drifts
from repeat to repeat; t over the differences of pairs does both, for one repeat more on a quiet machine.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

ERROR_RATE = 0.05  # of a whole comparison: how often it finds anything between equal sides
POWER = 0.9  # with which the smallest difference that is told would be found
MOST_REPEATS = 200


def t_tail(t: float, freedom: int) -> float:
    """The probability that |T| exceeds `t` >= 0, for Student's T with a whole number of degrees of freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be at least 1, got {freedom}")
    if math.isinf(t):
        return 0.0
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    inside = math.sin(angle) * total
    return max(0.0, 1 - (2 / math.pi * (angle + inside) if odd else inside))


def t_quantile(probability: float, freedom: int) -> float:
    """The t that |T| exceeds with a probability above 0 and below 1."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability is above 0 and below 1, got {probability}")
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > probability:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if t_tail(middle, freedom) > probability else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of what some repeats gave, and its standard error."""

    value: float
    error: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Raises ValueError for less than two: one says nothing of how far it is off."""
        if len(values) < 2:
            raise ValueError(f"a mean with its uncertainty needs at least 2 repeats, got {len(values)}")
        return cls(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)), len(values))

    @property
    def chance(self) -> float:
        """The probability of a mean as far from 0 if the true one is 0 (the two-sided p value)."""
        if self.value == 0:
            return 1.0
        return t_tail(abs(self.value) / self.error if self.error else math.inf, self.repeats - 1)

    def interval(self, error_rate: float) -> tuple[float, float]:
        """Where the true mean is, but for this share of cases."""
        half = t_quantile(error_rate, self.repeats - 1) * self.error
        return self.value - half, self.value + half


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a figure differs, and the error rate at which its interval is to be told to agree with that."""

    differs: bool
    error_rate: float


def holm(chances: Sequence[float], error_rate: float = ERROR_RATE) -> list[Decision]:
    """Decide on several figures so that all together err with at most the rate, however they depend on each other.

    The least chance is held against rate / n, the next against rate / (n - 1), and so on until one is too likely; that
    one and the rest are told at the level that stopped it, so that each of their intervals holds "no difference".
    Source: Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6 (1979) 65-70.
    """
    decisions: dict[int, Decision] = {}
    stopped: float | None = None
    for place, index in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        level = stopped or error_rate / (len(chances) - place)
        if chances[index] > level:
            stopped = level
        decisions[index] = Decision(stopped is None, level)
    return [decisions[index] for index in range(len(chances))]


def smallest_found(error: float, repeats: int, figures: int, power: float = POWER) -> float:
    """About the smallest true difference that would be found with this power, given a standard error of the mean.

    `figures` are decided on together; the least favourable step of Holm is assumed.
    """
    freedom = repeats - 1
    return (t_quantile(ERROR_RATE / figures, freedom) + t_quantile(2 * (1 - power), freedom)) * error


def repeats_needed(deviation: float, difference: float, figures: int, power: float = POWER) -> int | None:
    """How many repeats find a difference with this power, if repeats scatter by `deviation`; None beyond 200."""

    def enough(repeats: int) -> bool:
        return smallest_found(deviation / math.sqrt(repeats), repeats, figures, power) <= difference

    counts = range(2, MOST_REPEATS + 1)
    least = bisect_left(counts, True, key=enough)
    return counts[least] if least < len(counts) else None
