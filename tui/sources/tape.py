"""The bounded past of one server: every look, how it stood, and its KV events with keyframes of the trees between.

Looks are kept as they were read: they are small, and a screen of the past asks for twenty minutes of them at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

from servers.looks import KEPT, Look, Looks, Marks, kept_from
from servers.slots import Slot
from tui.sources.kv_tape import KvTape
from tui.sources.view import KvView, Phase

BUDGET = 64 << 20  # bytes, for all servers together
STANDING_COST, SLOT_COST, EVENT_COST = 200, 150, 200  # bytes, about
LOOK_COST = 400  # and what `Look.bytes` says
MARK_COST = 100  # of each break and each layout
DROPPED = 8  # an eighth of the items goes at once
DROP_EVERY = 32  # items between two looks at the budget
RESTARTS_KEPT = 1_000


class NotKept(LookupError):
    """The tape does not have that moment: it is too old, or not yet."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known besides looks and KV events, from an item on until the next that changes it.

    `since` is the first item of this server: looks before it are of another one that answered there.
    """

    name: str
    url: str
    kind: str = ""
    version: str = ""
    every: float = 0.0
    phase: Phase = "finding"
    detail: str = ""
    slots: tuple[Slot, ...] | None = None
    since: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """What a person would stop at, after item `seq`."""

    seq: int
    time: float
    words: str


class Tape:
    """Of each item call `begin`, then what it changes, then `end`. Items are numbered from 1 on; 0 is before them all.

    `first` is the oldest item after which everything is known, `last` the newest. Questions about others raise NotKept.
    """

    def __init__(self, standing: Standing, budget: int = BUDGET) -> None:
        """`budget`: bytes, besides what the newest picture needs."""
        self.budget = budget
        self.first = 0
        self.last = 0
        self._times = array("d", [0.0])  # when each item from `first` on was heard
        self._looks: list[Look] = []
        self._look_seqs = array("q")
        self._look_costs = array("q")
        self._looks_gone = 0
        self._newest_from = 0  # the first look that the newest picture needs
        self._marks: list[Marks] = []
        self._mark_seqs = array("q")
        self._standings = [standing]
        self._standing_seqs = array("q", [0])
        self._events: list[Event] = []
        self._event_seqs = array("q")
        self._restarts: list[tuple[int, float]] = []
        self._kv: dict[str, KvTape] = {}
        self._small = 0  # bytes, about, without KV events

    # What is heard

    def begin(self, seq: int, time: float) -> None:
        """Item `seq` was heard at `time`; of a clock that went back, a moment stands still."""
        self._times.append(max(time, self.now) if self.last else time)
        self.last = seq
        self._small += 8

    def end(self, standing: Standing) -> None:
        """All of the item is known."""
        if standing != self._standings[-1]:
            self._standings.append(standing)
            self._standing_seqs.append(self.last)
            self._small += _cost(standing)
        if self.last % DROP_EVERY == 0:
            while self.size > self.budget and self.first < self.last:
                self._drop(self.first + max(1, (self.last - self.first) // DROPPED))

    def add_look(self, look: Look, marks: Marks, kept: int) -> None:
        """A look, what all looks up to it have of marks, and how many of them the newest picture needs."""
        if not self._marks or marks is not self._marks[-1]:
            self._marks.append(marks)
            self._mark_seqs.append(self.last)
            self._small += _marks_cost(marks)
        self._looks.append(look)
        self._look_seqs.append(self.last)
        self._look_costs.append(look_cost(look))
        first = len(self._looks) - kept
        self._small += sum(self._look_costs[self._newest_from : first])  # they are the past's alone from now on
        self._newest_from = first

    def add_event(self, event: Event) -> None:
        """Of one item there is one, with the words of all."""
        if self._events and self._events[-1].seq == event.seq:
            self._events[-1] = replace(event, words=f"{self._events[-1].words}; {event.words}")
            return
        self._events.append(event)
        self._event_seqs.append(event.seq)
        self._small += EVENT_COST

    def add_restart(self) -> None:
        self._restarts.append((self.last, self.now))
        del self._restarts[:-RESTARTS_KEPT]

    def begin_anew(self) -> None:
        """Another server answers from now on."""
        for kv in self._kv.values():
            kv.begin_anew(self.last, self.now)

    def kv(self, endpoint: str) -> KvTape:
        """An endpoint's, made where it is heard of first."""
        found = self._kv.get(endpoint)
        if found is None:
            found = self._kv[endpoint] = KvTape(endpoint, self.last)
        return found

    # What is kept

    @property
    def now(self) -> float:
        """When the newest item was heard."""
        return self._times[-1]

    @property
    def size(self) -> int:
        """What the past takes, about: the looks that the newest picture needs do not belong to it."""
        return self._small + sum(kv.size for kv in self._kv.values())

    @property
    def looks_seen(self) -> int:
        """How many looks there were."""
        return self._looks_gone + len(self._looks)

    @property
    def endpoints(self) -> tuple[KvTape, ...]:
        return tuple(self._kv.values())

    def time(self, seq: int) -> float:
        """When an item was heard."""
        self._check(seq)
        return self._times[seq - self.first]

    def seq_at(self, time: float) -> int:
        """The newest kept item that was heard by then; the oldest kept one where all came later."""
        return self.first + max(0, bisect_right(self._times, time, lo=1 if self.first == 0 else 0) - 1)

    def seq_before(self, time: float) -> int:
        """The newest kept item that was heard before then; one less than `first` where there is none."""
        return self.first + bisect_left(self._times, time, lo=1 if self.first == 0 else 0) - 1

    def standing(self, seq: int) -> Standing:
        self._check(seq)
        return self._standings[bisect_right(self._standing_seqs, seq) - 1]

    def looks(self, seq: int) -> Looks:
        since = self.standing(seq).since
        begun = bisect_left(self._look_seqs, since)
        begin, end = self._looks_of(seq)
        at = bisect_right(self._mark_seqs, seq) - 1
        marks = self._marks[at] if at >= 0 and self._mark_seqs[at] >= since else Marks()
        last = next((self._looks[at].reading for at in range(end - 1, begun - 1, -1) if self._looks[at].reading), None)
        return Looks(self._looks[begin:end], KEPT, marks, last)

    def _looks_of(self, seq: int) -> tuple[int, int]:
        """The places of those that belong to a moment: of the server that was there, and no more than are kept."""
        end = bisect_right(self._look_seqs, seq)
        return max(bisect_left(self._look_seqs, self.standing(seq).since), kept_from(self._looks, end)), end

    def kv_views(self, seq: int | None = None) -> tuple[KvView, ...]:
        """Of each endpoint that was known then; None: now."""
        if seq is None:
            return tuple(kv.view() for kv in self._kv.values())
        self._check(seq)
        return tuple(kv.view_at(seq) for kv in self._kv.values() if kv.born <= seq)

    def restarts(self, seq: int, since: int) -> tuple[float, ...]:
        """When the counters began anew, from item `since` to `seq`."""
        return tuple(time for at, time in self._restarts if since <= at <= seq)

    def look_number(self, seq: int) -> int:
        """How many looks there were up to an item."""
        return self._looks_gone + bisect_right(self._look_seqs, seq)

    def look_seq(self, number: int) -> int:
        """The item of a look, the nearest that is kept; the first look is number 1."""
        first = bisect_left(self._look_seqs, self.first)
        at = min(max(number - 1 - self._looks_gone, first), len(self._looks) - 1)
        return self._look_seqs[at] if at >= 0 else self.last

    def event_after(self, seq: int) -> Event | None:
        at = bisect_right(self._event_seqs, seq)
        return self._events[at] if at < len(self._events) else None

    def event_before(self, seq: int) -> Event | None:
        at = bisect_left(self._event_seqs, seq)
        return self._events[at - 1] if at else None

    def _check(self, seq: int) -> None:
        if not self.first <= seq <= self.last:
            raise NotKept(f"item {seq:,} is not among those kept, {self.first:,} to {self.last:,}")

    def _drop(self, first: int) -> None:
        """Let the past begin later."""
        del self._times[: first - self.first]
        self._small -= 8 * (first - self.first)
        self.first = first
        looks, _ = self._looks_of(first)
        self._small -= sum(self._look_costs[:looks])
        self._looks_gone += looks
        self._newest_from -= looks
        del self._looks[:looks], self._look_seqs[:looks], self._look_costs[:looks]
        marks = max(0, bisect_right(self._mark_seqs, first) - 1)
        self._small -= sum(_marks_cost(one) for one in self._marks[:marks])
        del self._marks[:marks], self._mark_seqs[:marks]
        standings = bisect_right(self._standing_seqs, first) - 1
        self._small -= sum(map(_cost, self._standings[:standings]))
        del self._standings[:standings], self._standing_seqs[:standings]
        events = max(0, bisect_left(self._event_seqs, first) - 1)  # the last one before may be news still
        self._small -= EVENT_COST * events
        del self._events[:events], self._event_seqs[:events]
        for kv in self._kv.values():
            kv.drop(first)


def _cost(standing: Standing) -> int:
    return STANDING_COST + SLOT_COST * len(standing.slots or ())


def _marks_cost(marks: Marks) -> int:
    return MARK_COST * (1 + len(marks.breaks) + len(marks.layouts))


def look_cost(look: Look) -> int:
    """Bytes that a look takes, about."""
    return LOOK_COST + look.bytes
