"""A distribution in bounded memory: counts of values that are kept to eleven significant bits.

The buckets are those of a log-linear (HDR) histogram with 1,024 steps from each power of two to the next
(https://hdrhistogram.org). A value goes to the nearest step, so whole numbers up to 2,048 are kept as they are and
every other one to `RELATIVE_ERROR`. Count, mean, standard deviation, minimum and maximum are of the values themselves.
Histograms of parts of a run, of workers or of repeats merge into that of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RELATIVE_ERROR = 2.0**-11  # 0.049 %
LARGEST = 1e150  # the square of a larger one is not a number any more
# Times this and back leaves the first 53 - 42 bits, rounded to nearest (Dekker 1971, Veltkamp's splitting).
_SPLIT = 2.0**42 + 1
_LONG = 24  # from here on numpy is faster than a loop


class Histogram(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Values of one unit, and how many more were infinite: requests that failed and never gave one.

    `msgspec.json` writes and reads it. `counts` is by rounded value; `squares` the sum of squared distances from the
    mean, which loses no digits where the values are close to each other.
    """

    counts: dict[float, int] = {}
    count: int = 0  # of the finite values
    infinite: int = 0
    total: float = 0.0  # of the finite values
    squares: float = 0.0
    minimum: float | None = None
    maximum: float | None = None

    def __post_init__(self) -> None:
        if self.count != sum(self.counts.values()):
            raise ValueError(f"count is {self.count}, but counts add up to {sum(self.counts.values())}")

    def add(self, value: float, count: int = 1) -> None:
        """Take one value `count` times. Raises ValueError for what is no number, and beyond `LARGEST`."""
        if value == math.inf:
            self.infinite += count
            return
        if not -LARGEST <= value <= LARGEST:
            raise ValueError(f"a histogram takes numbers up to {LARGEST:g} and inf, got {value}")
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        scaled = value * _SPLIT
        rounded = scaled - (scaled - value)
        self.counts[rounded] = self.counts.get(rounded, 0) + count
        self._join(count, value * count, 0.0, value, value)

    def extend(self, values: Sequence[float] | NDArray[np.float64]) -> None:
        """Take many finite values at once. Raises ValueError, and takes none, if one cannot be taken."""
        if len(values) < _LONG:
            if not all(-LARGEST <= value <= LARGEST for value in values):
                raise ValueError(f"extend takes finite numbers up to {LARGEST:g}")
            for value in values:
                self.add(float(value))
            return
        import numpy as np

        taken = np.asarray(values, dtype=np.float64)
        low, high = float(taken.min()), float(taken.max())
        if not (low >= -LARGEST and high <= LARGEST):
            raise ValueError(f"extend takes finite numbers up to {LARGEST:g}")
        scaled = taken * _SPLIT
        counts, known = self.counts, self.counts.get
        for value in (scaled - (scaled - taken)).tolist():
            counts[value] = known(value, 0) + 1
        total = float(taken.sum())
        distances = taken - total / taken.size
        self._join(taken.size, total, float(distances @ distances), low, high)

    def merge(self, other: Histogram) -> None:
        """Take all that another one holds."""
        self.infinite += other.infinite
        if other.minimum is None or other.maximum is None:
            return
        for value, count in other.counts.items():
            self.counts[value] = self.counts.get(value, 0) + count
        self._join(other.count, other.total, other.squares, other.minimum, other.maximum)

    def copy(self) -> Histogram:
        """What it holds now, whatever is added later."""
        return msgspec.structs.replace(self, counts=dict(self.counts))

    def _join(self, count: int, total: float, squares: float, low: float, high: float) -> None:
        """The sums of the values here and of `count` others (Chan, Golub, LeVeque 1979)."""
        together = self.count + count
        if self.minimum is None or self.maximum is None:
            self.minimum, self.maximum, self.squares = low, high, squares
        else:
            distance = total / count - self.total / self.count
            between = distance * distance * (self.count * count / together)
            self.squares = self.squares + squares + between  # in this order: the same from either side
            if low < self.minimum:
                self.minimum = low
            if high > self.maximum:
                self.maximum = high
        self.count = together
        self.total += total

    @property
    def mean(self) -> float | None:
        """Of the finite values; None without any."""
        return self.total / self.count if self.count else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the finite values as a population; None without any."""
        if not self.count:
            return None
        return 0.0 if self.minimum == self.maximum else math.sqrt(self.squares / self.count)

    def buckets(self) -> list[tuple[float, int]]:
        """(value, how many) of the finite values in ascending order, each to `RELATIVE_ERROR`."""
        return sorted(self.counts.items())

    def percentile(self, percent: float) -> float | None:
        """One of `percentiles`."""
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Sequence[float]) -> tuple[float | None, ...]:
        """Percentiles (0 to 100) with linear interpolation between neighbours in order, as `numpy.percentile` has it.

        The infinite values are the last in order: a percentile that falls among them, or next to them, is None, as
        are all without any value. Raises ValueError for a percent outside of 0 to 100.
        """
        for percent in percents:
            if not 0 <= percent <= 100:
                raise ValueError(f"a percentile is from 0 to 100, got {percent}")
        everything = self.count + self.infinite
        if not everything:
            return (None,) * len(percents)
        positions = [(everything - 1) * percent / 100 for percent in percents]
        ranks = sorted({rank for position in positions for rank in (math.floor(position), math.ceil(position))})
        value = dict(zip(ranks, self._at(ranks), strict=True))
        found: list[float | None] = []
        for position in positions:
            low, high = value[math.floor(position)], value[math.ceil(position)]
            found.append(low + (high - low) * (position % 1) if high < math.inf else None)
        return tuple(found)

    def _at(self, ranks: Sequence[int]) -> list[float]:
        """The values at ascending places from 0 in the order of all values."""
        buckets = iter(sorted(self.counts))
        value, passed = -math.inf, 0
        found = []
        for rank in ranks:
            while passed <= rank and (bucket := next(buckets, None)) is not None:
                value, passed = bucket, passed + self.counts[bucket]
            found.append(self._true(rank, value) if rank < passed else math.inf)
        return found

    def _true(self, rank: int, rounded: float) -> float:
        """The first and the last are known, and rounding led none between them beyond these."""
        assert self.minimum is not None
        assert self.maximum is not None
        if rank == 0:
            return self.minimum
        if rank == self.count - 1:
            return self.maximum
        return min(max(rounded, self.minimum), self.maximum)
