"""What happened when: a run's requests counted in stretches of its time, and a sample of their latencies."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from loadgen.outcome import Outcome, RequestRecord

STRETCHES = 120
SHORTEST = 0.05  # seconds of a stretch
SAMPLE = 1500  # points of a plot
TOGETHER = 4  # stretches of a plotted rate of requests


class Point(NamedTuple):
    """One request: when it was sent and its TTFT from then and from its schedule, in seconds."""

    sent: float
    ttft: float
    from_scheduled: float


@dataclass(slots=True)
class Series:
    """Takes requests in any order, and needs memory for `STRETCHES` stretches of `seconds` and one sample alone."""

    seconds: float  # of the run, to the last moment that any request has
    width: float = field(init=False)  # seconds of a stretch
    sent: list[int] = field(init=False)
    completed: list[int] = field(init=False)
    failed: list[int] = field(init=False)
    tokens: list[float] = field(init=False)  # output tokens of completed requests
    slowest: list[float] = field(init=False)  # TTFT in seconds by the time of sending, from sent; 0: none
    points: list[Point] = field(default_factory=list)  # a sample, if there are more than `SAMPLE`
    measured: int = 0  # requests that points were drawn from
    _over: list[int] = field(init=False)  # of those that were sent, however they ended
    _random: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise ValueError(f"a run's seconds are not negative, got {self.seconds}")
        count = max(1, min(STRETCHES, int(self.seconds / SHORTEST)))
        self.sent, self.completed, self.failed, self._over = ([0] * count for _ in range(4))
        self.tokens, self.slowest = [0.0] * count, [0.0] * count
        self.width = max(self.seconds, SHORTEST) / count

    @property
    def in_flight(self) -> list[tuple[float, int]]:
        """(second, requests sent and not yet over) at the start and at the end of each stretch."""
        changes = (sent - over for sent, over in zip(self.sent, self._over, strict=True))
        return [(at * self.width, count) for at, count in enumerate(accumulate(changes, initial=0))]

    def per_second(self, counts: Sequence[float], together: int = 1) -> list[tuple[float, float]]:
        """Counts of stretches as (second, rate), so many `together`: rates of few requests jump."""
        rates = []
        for at in range(0, len(counts), together):
            group = counts[at : at + together]
            rates.append(((at + len(group) / 2) * self.width, sum(group) / (len(group) * self.width)))
        return rates

    def add(self, record: RequestRecord) -> None:
        """Take one request; one that was not sent only if it failed."""
        if record.outcome.failed:
            moment = next((at for at in (record.ended, record.sent, record.scheduled) if at is not None), None)
            if moment is not None:
                self.failed[self._at(moment)] += 1
        if record.sent is None:
            return
        self.sent[self._at(record.sent)] += 1
        if record.ended is not None:
            self._over[self._at(record.ended)] += 1
        if record.outcome is Outcome.COMPLETED and record.ended is not None:
            self.completed[self._at(record.ended)] += 1
            self._spread(record.chunks, record.output_tokens)
            if record.chunks and record.scheduled is not None and record.streamed:
                self._measure(Point(record.sent, record.chunks[0] - record.sent, record.chunks[0] - record.scheduled))

    def _at(self, moment: float) -> int:
        return min(max(0, int(moment / self.width)), len(self.sent) - 1)

    def _spread(self, chunks: Sequence[float], tokens: int) -> None:
        """A request's tokens evenly over its chunks, which come in order."""
        if not chunks:
            return
        taken, stretch, last = 0, self._at(chunks[0]), len(self.tokens) - 1
        while taken < len(chunks):
            until = bisect_left(chunks, (stretch + 1) * self.width, taken) if stretch < last else len(chunks)
            self.tokens[stretch] += (until - taken) * tokens / len(chunks)
            taken, stretch = until, stretch + 1

    def _measure(self, point: Point) -> None:
        """Each request has the same chance to be in the sample (reservoir sampling, Vitter's algorithm R)."""
        at = self._at(point.sent)
        self.slowest[at] = max(self.slowest[at], point.ttft)
        self.measured += 1
        if len(self.points) < SAMPLE:
            self.points.append(point)
        elif (place := self._random.randrange(self.measured)) < SAMPLE:
            self.points[place] = point
