"""Who arrives when: a trace once or several times over, as fast as wanted, with turns that wait for the ones before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import msgspec

from engine.trace_lengths import TracedRequest


class Arrival(msgspec.Struct, frozen=True):
    """A traced request at the time (simulated seconds) it comes; `round` is how often the trace was over before."""

    id: str
    time: float
    traced: TracedRequest
    index: int
    round: int


class Arrivals:
    """The first `requests` requests of a trace that is repeated; the first one comes at 0.

    A round begins where the one before ended, after the mean gap between two arrivals. `speed` divides arrivals and
    think times, `crowd` arrivals alone: so many times as many people, who think as long as ever. A turn of a chat comes
    when its session's turn before has ended; `ended` or `failed` must say so.
    """

    def __init__(self, trace: Sequence[TracedRequest], requests: int, speed: float = 1.0, crowd: float = 1.0) -> None:
        if not trace:
            raise ValueError("a trace needs at least one request")
        if requests < 1 or not speed > 0:
            raise ValueError(f"requests must be at least 1 and speed above 0, got {requests} and {speed}")
        if not crowd > 0:
            raise ValueError(f"crowd must be above 0, got {crowd}")
        self.total = requests
        self.unsent = 0  # turns whose session ended early
        self._trace = trace
        self._speed = speed
        self._pace = speed * crowd
        self._first = trace[0].arrival
        span = trace[-1].arrival - self._first
        self._period = span * len(trace) / max(1, len(trace) - 1)
        self._followers: dict[int, list[int]] = {}
        for index, traced in enumerate(trace):
            if traced.after is not None:
                self._followers.setdefault(traced.after, []).append(index)
        self._opening = [index for index, traced in enumerate(trace) if traced.after is None]
        self._openings = self._open()
        self._next = next(self._openings, None)
        self._followed: list[tuple[float, int, int]] = []  # a heap of (time, round, index)

    @property
    def next_time(self) -> float | None:
        """When the next request comes that waits for no other; None when there is none."""
        times = [self._next.time] if self._next else []
        times += [entry[0] for entry in self._followed[:1]]
        return min(times, default=None)

    def due(self, now: float) -> Iterator[Arrival]:
        """Take everyone who comes up to `now`, in order."""
        while True:
            opening, followed = self._next, self._followed
            if followed and followed[0][0] <= now and (opening is None or followed[0][0] < opening.time):
                time, round, index = heappop(followed)
                yield self._arrival(round, index, time)
            elif opening is not None and opening.time <= now:
                self._next = next(self._openings, None)
                yield opening
            else:
                return

    def ended(self, arrival: Arrival, time: float) -> None:
        """A request was served: who waited for it comes after thinking."""
        for index in self._following(arrival.index, arrival.round):
            heappush(self._followed, (time + self._trace[index].think / self._speed, arrival.round, index))

    def failed(self, arrival: Arrival) -> None:
        """A request was not served: its session ends here."""
        lost = [arrival.index]
        for index in lost:
            lost += self._following(index, arrival.round)
        self.unsent += len(lost) - 1

    def _open(self) -> Iterator[Arrival]:
        for round in range(-(-self.total // len(self._trace))):
            begin = round * self._period - self._first
            for index in self._opening:
                if round * len(self._trace) + index >= self.total:
                    return
                yield self._arrival(round, index, (begin + self._trace[index].arrival) / self._pace)

    def _following(self, index: int, round: int) -> list[int]:
        most = self.total - round * len(self._trace)
        return [follower for follower in self._followers.get(index, ()) if follower < most]

    def _arrival(self, round: int, index: int, time: float) -> Arrival:
        return Arrival(str(round * len(self._trace) + index), time, self._trace[index], index, round)
