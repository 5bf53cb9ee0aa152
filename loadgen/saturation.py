"""Whether a server falls behind an open loop: requests come faster than they are answered, and wait longer and longer.

Both have to be seen over the same stretch, cut into `PARTS`:
1. the requests without an answer grow: their growth in the parts is above 0 in the mean (Student's t). The parts are
   differences, so that what is tested against is a queue at its very limit, which wanders; a queue that holds wanders
   less, and bursts that are longer than a part show in the spread.
2. TTFT from the scheduled moment grows by more than `BEHIND` seconds each second (the slope of a line through the
   parts' means, Student's t). A server that only fills up from the start has more and more in flight too, but its TTFT
   stays; one that serves in order at a rate mu, asked at lambda, has it grow by lambda/mu - 1.

That both must grow is GuideLLM's rule (its over-saturation constraint), which puts lines through both. A line through
the number in flight takes the wandering of a healthy queue for growth: lines alone end every run at 50 % of what the
server can do within ten minutes. Stretches of 40 s, 80 s, ... 640 s are looked at every second, so that a fast server
is judged soon and a slow one by enough requests; a chance of `CHANCE` for each keeps the whole run's small. In
`python -m benchmarks.saturation` none of 80 queues at 80 %, and one of 80 at 90 %, is taken for saturated within half
an hour; at 150 % all are, in the median after 40 to 94 s where answers take a second or five, and after 186 s where
they take a minute.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadgen.experiments.statistics import t_tail

PARTS = 10
STRETCHES = (40, 80, 160, 320, 640)  # in samples, which are a second apart
KEPT = max(STRETCHES) + 1  # samples that are needed
BEHIND = 0.02
CHANCE = 0.0003
_LEAST_PARTS = 5  # with a TTFT: a line through fewer says nothing


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment of a run: what is unanswered, and the TTFTs from scheduled of all that have ended, in seconds."""

    elapsed: float
    unanswered: int
    ttft_total: float
    ttft_count: int


@dataclass(frozen=True, slots=True)
class Saturated:
    """What was found over `seconds`: how many requests/s stay unanswered, and how many s/s TTFT grows."""

    seconds: float
    unanswered: float
    ttft: float

    def __str__(self) -> str:
        return (
            f"over the last {self.seconds:.0f} s unanswered requests grew by {self.unanswered:.2g} a second, "
            f"TTFT by {self.ttft:.2g} s a second"
        )


def _above(value: float, error: float, freedom: int) -> bool:
    """Whether a mean above 0 would come from one of 0 or less with a chance under `CHANCE`."""
    if value <= 0 or not error:
        return value > 0
    return t_tail(value / error, freedom) / 2 < CHANCE


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The slope of the least-squares line, and its standard error."""
    times, values = zip(*points, strict=True)
    slope, start = statistics.linear_regression(times, values)
    rest = sum((value - start - slope * time) ** 2 for time, value in points)
    return slope, math.sqrt(rest / (len(points) - 2) / (statistics.pvariance(times) * len(points)))


def _over(parts: Sequence[tuple[Sample, Sample]]) -> Saturated | None:
    growths = [after.unanswered - before.unanswered for before, after in parts]
    growth, error = statistics.fmean(growths), statistics.stdev(growths) / math.sqrt(len(parts))
    if not _above(growth, error, len(parts) - 1):
        return None
    waits = [
        ((before.elapsed + after.elapsed) / 2, (after.ttft_total - before.ttft_total) / answered)
        for before, after in parts
        if (answered := after.ttft_count - before.ttft_count)
    ]
    if len(waits) < _LEAST_PARTS:
        return None
    slope, error = _slope(waits)
    if not _above(slope - BEHIND, error, len(waits) - 2):
        return None
    seconds = parts[-1][1].elapsed - parts[0][0].elapsed
    return Saturated(seconds, sum(growths) / seconds, slope)


def find_saturation(samples: Sequence[Sample]) -> Saturated | None:
    """Whether the server falls behind at the end of samples that are a second apart; None if that cannot be said."""
    for stretch in STRETCHES:
        if stretch >= len(samples):
            return None
        every = stretch // PARTS
        ends = [samples[len(samples) - 1 - stretch + part * every] for part in range(PARTS + 1)]
        if (found := _over(list(pairwise(ends)))) is not None:
            return found
    return None
