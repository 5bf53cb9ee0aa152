"""The numbers behind all figures over time, one point per record, in arrays of bounded size."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from engine.protocol import Control, FinishReason, Preempted, Queue

MAX_POINTS = 120_000  # records kept
MAX_EVENTS = 50_000  # of each kind: first tokens, ends, preemptions

T = TypeVar("T")
Floats = npt.NDArray[np.float64]


class Ended(NamedTuple):
    """A request that ended: why, and how many tokens it had in the end, of them generated."""

    reason: FinishReason
    context: int
    generated: int


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of a control that has a key, held from step `seq` on."""

    seq: int
    time: float
    before: Control
    after: Control


class Totals(NamedTuple):
    """Sums over every record up to a moment. Tokens, seconds, and from `held` on slot-seconds."""

    steps: float = 0.0
    schedule: float = 0.0
    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    publish: float = 0.0
    step_transfer: float = 0.0  # in steps
    transfer: float = 0.0  # in steps and outside
    prefill_tokens: float = 0.0
    output_tokens: float = 0.0
    tokens: float = 0.0
    budget: float = 0.0
    waiting_steps: float = 0.0
    looked_up_tokens: float = 0.0
    found_tokens: float = 0.0
    recomputed_tokens: float = 0.0
    held: float = 0.0
    internal: float = 0.0
    external: float = 0.0


HELD = Totals._fields.index("held")  # what comes before is spread over a step, the rest over the time between records
_TIME, _BEGAN, _SEQ, _QUEUE, _OLDEST, _SUMS = range(6)


class Events(Generic[T]):
    """What happened once, with when (engine's clock) and in which record; both ascend."""

    __slots__ = ("_seqs", "times", "what")

    def __init__(self) -> None:
        self.times = array("d")
        self._seqs = array("q")
        self.what: list[T] = []

    def add(self, time: float, seq: int, what: T) -> None:
        self.times.append(time)
        self._seqs.append(seq)
        self.what.append(what)

    def between(self, start: float, end: float, last: int | None) -> Sequence[T]:
        """What happened after `start` and up to `end`, up to record `last`."""
        high = bisect_right(self.times, end)
        if last is not None:
            high = min(high, bisect_right(self._seqs, last))
        return self.what[bisect_right(self.times, start) : high]

    def end_life(self) -> None:
        """Records are counted from 0 again: these are before that."""
        self._seqs = array("q", (-1 for _ in self._seqs))

    def drop_before(self, time: float) -> None:
        cut = bisect_left(self.times, time)
        del self.times[:cut], self._seqs[:cut], self.what[:cut]


class Log:
    """Running totals by record, events, gaps and switches. Adding costs O(1), and the oldest go first."""

    def __init__(self) -> None:
        self._points: Floats = np.zeros((_SUMS + len(Totals._fields), 1024))
        self._count = 0
        self.pool_slots = 0
        self.ttft: Events[float] = Events()
        self.tpot: Events[float] = Events()
        self.e2e: Events[float] = Events()
        self.ended: Events[Ended] = Events()
        self.preempted: Events[Preempted] = Events()
        self.switches: list[Switch] = []
        self.restarts: list[float] = []  # when the engine was seen again after its death
        self._gaps: list[tuple[float, float]] = []  # stretches whose records are missing

    def end_life(self, again: float) -> None:
        """The engine is dead, and is seen `again` with records from 0 on: what there is lies before that.

        Switches are forgotten: what came after one and what came before it are not of one life.
        """
        if self._count:
            self.add_gap(again)
            self._points[_SEQ, : self._count] -= self._points[_SEQ, self._count - 1] + 1
        for events in (self.ttft, self.tpot, self.e2e, self.ended, self.preempted):
            events.end_life()
        self.switches = []
        self.restarts.append(again)

    @property
    def life_start(self) -> float | None:
        """The time from which on all is of the engine's present life."""
        return self.restarts[-1] if self.restarts else self.start

    @property
    def start(self) -> float | None:
        """The time of the first point."""
        return float(self._points[_TIME, 0]) if self._count else None

    @property
    def end(self) -> float | None:
        """The time of the last point."""
        return float(self._points[_TIME, self._count - 1]) if self._count else None

    def __len__(self) -> int:
        return self._count

    def add(self, time: float, began: float, seq: int, queue: Queue, more: Totals) -> None:
        """A point: `more` came since the last one. `queue`: who waits, and for how long."""
        if self._count == self._points.shape[1]:
            self._make_room()
        at = self._count
        self._points[:_SUMS, at] = time, began, seq, queue.length, queue.oldest_age
        self._points[_SUMS:, at] = more
        if at:
            self._points[_SUMS:, at] += self._points[_SUMS:, at - 1]
        self._count += 1

    def add_gap(self, end: float) -> None:
        """Records since the last point are missing up to `end`."""
        if self._count:
            self._gaps.append((float(self._points[_TIME, self._count - 1]), end))

    def points_until(self, last: int | None) -> int:
        """How many points there are up to record `last`."""
        if last is None:
            return self._count
        return int(np.searchsorted(self._points[_SEQ, : self._count], last, "right"))

    def at(self, time: float, points: int) -> Floats:
        """The totals at a moment by the first `points`: between two, a part of what came in between."""
        index = self._index(time, points)
        last: Floats = self._points[_SUMS:, index]
        since = float(self._points[_TIME, index])
        if index + 1 == points or time <= since:
            return last
        end, began = self._points[:_SEQ, index + 1].tolist()
        part = self._points[_SUMS:, index + 1] - last
        part[:HELD] *= (time - began) / (end - began) if time > began else 0.0
        part[HELD:] *= (time - since) / (end - since)
        return last + part

    def queue(self, time: float, points: int) -> int:
        """Who waited at a moment."""
        return int(self._points[_QUEUE, self._index(time, points)])

    def oldest(self, start: float, end: float, points: int) -> float:
        """The most that the oldest of those who waited had waited: as the records after `start` and up to `end` tell,
        or the last one before where none do."""
        last = self._index(end, points)
        first = min(last, int(np.searchsorted(self._points[_TIME, :points], start, "right")))
        return float(self._points[_OLDEST, first : last + 1].max())

    def unseen(self, start: float, end: float) -> float:
        """Seconds between two moments whose records are missing."""
        return sum(max(0.0, min(b, end) - max(a, start)) for a, b in self._gaps)

    def in_gap(self, time: float) -> bool:
        return any(a < time < b for a, b in self._gaps)

    def trim(self) -> None:
        """Drop what is too old, in large pieces."""
        oldest = -np.inf
        for events in (self.ttft, self.tpot, self.e2e, self.ended, self.preempted):
            if len(events.times) > MAX_EVENTS * 1.1:
                oldest = max(oldest, events.times[-MAX_EVENTS])
        cut = self._count - MAX_POINTS if self._count > MAX_POINTS * 1.1 else 0
        if oldest > -np.inf:
            cut = max(cut, int(np.searchsorted(self._points[_TIME, : self._count], oldest)))
        if cut:
            kept = self._count - cut
            for column in self._points:
                column[:kept] = column[cut : self._count]
            self._count = kept
            self._forget_before(float(self._points[_TIME, 0]))

    def _forget_before(self, oldest: float) -> None:
        for events in (self.ttft, self.tpot, self.e2e, self.ended, self.preempted):
            events.drop_before(oldest)
        self._gaps = [gap for gap in self._gaps if gap[1] > oldest]
        self.switches = [switch for switch in self.switches if switch.time > oldest]
        self.restarts = [time for time in self.restarts if time > oldest]

    def _index(self, time: float, points: int) -> int:
        """Of the last point up to `time` (inclusive); of the first before any."""
        return max(0, int(np.searchsorted(self._points[_TIME, :points], time, "right")) - 1)

    def _make_room(self) -> None:
        columns, room = self._points.shape
        larger = np.zeros((columns, min(room * 2, int(MAX_POINTS * 1.1) + 2)))
        larger[:, :room] = self._points
        self._points = larger
