"""Which requests of a run count: those sent after the warm-up and before the cool-down. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from loadgen.durations import parse_duration
from loadgen.outcome import RequestRecord


class Part(StrEnum):
    """Where in a run a request was sent."""

    WARMUP = "warm-up"
    MEASURED = "measured"
    COOLDOWN = "cool-down"


@dataclass(frozen=True, slots=True)
class Span:
    """A warm-up or cool-down: so many seconds after the first or before the last send, or so many requests."""

    seconds: float = 0.0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds of the run, both ends within; the whole run unless told."""

    begin: float = -math.inf
    end: float = math.inf

    def part(self, record: RequestRecord) -> Part:
        """By when it was sent, else by when it should have been. One without either counts: it may be a failure."""
        moment = record.scheduled if record.sent is None else record.sent
        if moment is not None and moment < self.begin:
            return Part.WARMUP
        if moment is not None and moment > self.end:
            return Part.COOLDOWN
        return Part.MEASURED


WHOLE_RUN = Window()


def find_window(records: Iterable[RequestRecord], warmup: Span, cooldown: Span) -> Window:
    """The window of a run in one pass over its requests, in memory for the requests left out.

    Where more requests are to be left out than were sent, none that was sent counts. Requests sent at the very same
    moment are in the same part.
    """
    if warmup == cooldown == Span():
        return WHOLE_RUN
    earliest: list[float] = []  # as heaps: one more than is left out, so that the next one is known
    latest: list[float] = []
    for record in records:
        if record.sent is not None:
            _keep(earliest, -record.sent, warmup.requests + 1)
            _keep(latest, record.sent, cooldown.requests + 1)
    if not earliest:
        return WHOLE_RUN
    begin = -earliest[0] + warmup.seconds if len(earliest) > warmup.requests else math.inf
    end = latest[0] - cooldown.seconds if len(latest) > cooldown.requests else -math.inf
    return Window(-math.inf if warmup == Span() else begin, math.inf if cooldown == Span() else end)


def _keep(heap: list[float], value: float, most: int) -> None:
    """The largest ones seen, up to `most`."""
    if len(heap) < most:
        heapq.heappush(heap, value)
    else:
        heapq.heappushpop(heap, value)


def parse_span(text: str) -> Span:
    """`10s` or `500ms` is a time, `50` a number of requests. Raises ValueError that says what is allowed."""
    if text.strip().isdecimal():
        return Span(requests=int(text))
    try:
        return Span(seconds=parse_duration(text))
    except ValueError as error:
        raise ValueError(f"expected a time or a number of requests, like 10s or 50: {error}") from None
