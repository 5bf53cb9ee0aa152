"""How regular arrivals are: the gaps between them, and how much their number varies from one window to the next.

The index of dispersion for counts is the variance of the number of arrivals in windows of one length / its mean
(Gusella, IEEE JSAC 9(2), 1991): 1 at every length for a Poisson process, 0 for a clock, more for bursts. A rate that
drifts raises it in long windows too.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.inspection.columns import Floats
from loadgen.inspection.distribution import Distribution, distribution
from loadgen.metrics.histogram import Histogram

WINDOWS = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)  # seconds
FEWEST_WINDOWS = 10  # of which a variance tells something


class Window(msgspec.Struct, frozen=True):
    """Arrivals in `windows` whole windows of `seconds`."""

    seconds: float
    windows: int
    mean: float
    most: int
    dispersion: float


class Burstiness(msgspec.Struct, frozen=True):
    """Of `arrivals` over `seconds` from the first to the last."""

    arrivals: int
    seconds: float
    gaps: Distribution | None
    at_once: int  # arrivals at the very moment of the one before
    windows: tuple[Window, ...]

    @property
    def rate(self) -> float | None:
        """Arrivals/s: one over the mean gap."""
        return (self.arrivals - 1) / self.seconds if self.seconds else None

    @property
    def gamma(self) -> float | None:
        """`burstiness` of the gamma process whose gaps vary as much, as `vllm bench serve` has it: 1 is Poisson."""
        variation = self.gaps.variation if self.gaps else None
        return 1 / variation**2 if variation else None


class _Counts:
    """Arrivals counted in windows of one length from 0 on; the one that the last arrival is in has not ended."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = 0  # the number of the window that goes on
        self._open = 0
        self._total = 0
        self._squares = 0
        self._most = 0

    def add(self, times: Floats) -> None:
        numbers = np.floor(times / self._seconds).astype(np.int64)
        windows, counts = np.unique(numbers, return_counts=True)
        if windows[0] == self._last:
            counts[0] += self._open
        else:
            self._close(np.array([self._open]))
        self._close(counts[:-1])
        self._last, self._open = int(windows[-1]), int(counts[-1])

    def _close(self, counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        if len(counts):
            self._total += int(counts.sum())
            self._squares += int(counts @ counts)
            self._most = max(self._most, int(counts.max()))

    def window(self) -> Window | None:
        """None for too few windows, or none with an arrival."""
        if self._last < FEWEST_WINDOWS or not self._total:
            return None
        mean = self._total / self._last
        variance = self._squares / self._last - mean**2
        return Window(self._seconds, self._last, mean, self._most, variance / mean)


class BurstinessMeter:
    """Takes arrivals in order, in constant memory."""

    def __init__(self) -> None:
        self._arrivals = 0
        self._first = self._last = 0.0
        self._at_once = 0
        self._gaps = Histogram()
        self._counts = [_Counts(seconds) for seconds in WINDOWS]

    def add(self, times: Floats) -> None:
        """Seconds, none before the one before it."""
        if not len(times):
            return
        if not self._arrivals:
            self._first = self._last = float(times[0])
            gaps = np.diff(times)
        else:
            gaps = np.diff(times, prepend=self._last)
        self._arrivals += len(times)
        self._last = float(times[-1])
        self._at_once += int(np.count_nonzero(gaps == 0))
        self._gaps.extend(gaps)
        for counts in self._counts:
            counts.add(times - self._first)

    def burstiness(self) -> Burstiness | None:
        """None without an arrival."""
        if not self._arrivals:
            return None
        windows = [window for counts in self._counts if (window := counts.window()) is not None]
        return Burstiness(
            self._arrivals, self._last - self._first, distribution(self._gaps), self._at_once, tuple(windows)
        )
