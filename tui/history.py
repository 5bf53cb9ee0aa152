"""What has been seen so far, in bounded memory: running totals, latencies, switches, and who ran in which lane.

Every figure over time on the screen is the difference of two running totals, divided by the time that was really
observed: a stretch whose records are missing counts for nothing. A step's work is spread evenly over the time that
it took; what a record says of memory holds until the next one. Times are seconds on the engine's clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from engine.protocol import (
    Control,
    Copy,
    Durations,
    Left,
    Parts,
    Preempted,
    Record,
    RequestState,
    RowKind,
    Snapshot,
    WasteLedger,
)
from tui import controls

MAX_POINTS = 40_000  # records kept
MAX_AGE = 900.0  # seconds kept
MAX_STEPS = 600  # columns of the batch timeline kept
MAX_COLUMNS = 4_000  # finished plot columns kept
SWITCH_GROUP = 5.0  # switches closer than this are one change
COMPARE_LIMIT = 60.0  # the longest window on each side of a switch

T = TypeVar("T")
End = Literal["", "left", "aborted", "finished", "preempted", "swapped"]


class State(Protocol):
    """What history reads of the state before a record is applied (the fold has it)."""

    @property
    def requests(self) -> dict[str, RequestState]: ...

    def ordinal(self, request: str) -> int: ...


class Totals(NamedTuple):
    """Sums over every record up to a moment; in the middle of a step, a part of it."""

    steps: float = 0.0
    step_seconds: float = 0.0
    transfer_seconds: float = 0.0
    prefill_tokens: float = 0.0
    output_tokens: float = 0.0
    held_slot_seconds: float = 0.0
    internal_slot_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """What happened after `start` and up to `end`. `observed` is the seconds of it that records cover."""

    start: float
    end: float
    observed: float
    steps: float
    step_seconds: float
    transfer_seconds: float  # of step_seconds: block copies and swaps
    prefill_tokens: float
    output_tokens: float
    internal_share: float | None  # slot-seconds of internal waste over slot-seconds held
    ttft: tuple[float, ...]  # seconds, of the requests whose first token came in the window
    tpot: tuple[float, ...]  # seconds per output token after the first, of requests that ended in the window
    preempted: tuple[Preempted, ...]
    queue_length: int | None  # at the end of the window; None if that was not seen

    def per_second(self, tokens: float) -> float | None:
        """Tokens per observed second; None where less than a quarter of a second was observed."""
        return tokens / self.observed if self.observed >= 0.25 else None

    @property
    def step_mean(self) -> float | None:
        return self.step_seconds / self.steps if self.steps else None


@dataclass(frozen=True, slots=True)
class Cell:
    """One request's part of one step, as the batch timeline shows it."""

    request: str
    kind: RowKind
    hue: int
    end: End = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One column of the batch timeline. `cells` are by lane; `missing` records were lost before this step."""

    seq: int
    time: float
    cells: dict[int, Cell]
    tokens: int
    budget: int
    switched: bool
    durations: Durations
    copies: tuple[Copy, ...] = ()
    missing: int = 0
    parts: Parts | None = None


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of a control that has a key, held from step `seq` on."""

    seq: int
    time: float
    before: Control
    after: Control


@dataclass(frozen=True, slots=True)
class Comparison:
    """Windows of equal length on the two sides of the last switch."""

    first: Switch
    last: Switch
    before: Window
    after: Window


def step_seconds(durations: Durations) -> float:
    """The whole time of a step."""
    return float(sum(msgspec.structs.astuple(durations)))


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile by linear interpolation between order statistics; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    position = (len(ordered) - 1) * q
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


class History:
    """Fed with each record before the fold applies it; asked for windows, steps and switches.

    Append-only but for what is too old, so that a question about a past moment keeps its answer. Only a step that
    began before the question and ended after it changes it: what it did was not known then.
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._totals: list[Totals] = []
        self._queues: list[int] = []  # waiting requests
        self._ttft: list[tuple[float, float]] = []  # (when, seconds)
        self._tpot: list[tuple[float, float]] = []
        self._preempted: list[tuple[float, Preempted]] = []
        self._gaps: list[tuple[float, float]] = []  # stretches whose records are missing
        self._lanes: dict[str, int] = {}
        self._last_token: dict[str, float] = {}
        self._control: Control | None = None
        self._waste = WasteLedger()  # as the last record or snapshot told it
        self._pending_missing = 0
        self._columns: dict[tuple[float, int], Window] = {}
        self._columns_end = 0.0  # the latest end among them
        self.steps: list[Step] = []
        self.switches: list[Switch] = []

    @property
    def start(self) -> float | None:
        """The moment from which on everything is known, but for gaps."""
        return self._times[0] if self._times else None

    @property
    def lanes(self) -> dict[str, int]:
        """The lane of every request in the batch."""
        return self._lanes

    def begin(self, snapshot: Snapshot, missing: int = 0) -> None:
        """Start, or go on after `missing` lost records, from a snapshot of the same engine."""
        self._columns.clear()
        if self._times and missing:
            self._gaps.append((self._times[-1], snapshot.time))
        self._note_switch(snapshot.control, snapshot.seq, snapshot.time)
        self._push(snapshot.time, self._totals[-1] if self._totals else Totals(), snapshot.queue.length)
        self._waste = snapshot.waste
        self._pending_missing += missing
        alive = {request.request for request in snapshot.requests if request.status != "waiting"}
        for request in [name for name in self._lanes if name not in alive]:
            del self._lanes[request]
        for request in (r.request for r in snapshot.requests if r.status != "waiting"):
            self._enter(request)

    def observe(self, record: Record, state: State) -> None:
        """Take one record; `state` is as it was before it."""
        began = self._began(record)
        self._note_switch(record.control, record.seq, began)
        switched = bool(self.switches) and self.switches[-1].seq == record.seq
        self._measure_latencies(record, state)
        in_batch = {row.request for row in record.rows}
        for preempted in record.preempted:
            self._preempted.append((record.time, preempted))
            self._leave_before(preempted.request, "swapped" if preempted.by == "swap" else "preempted")
        for left in record.left:
            if left.request not in in_batch:
                self._leave_before(left.request, _ending(left))
        for released in record.released:
            self._leave_before(released, "left")
        for joined in record.joined:
            self._enter(joined.request)
        self._add(record, began)
        if record.rows:
            self._add_step(record, switched, state)
        for left in record.left:
            self._forget(left.request)
        self._trim()

    def window(self, start: float, end: float) -> Window:
        """Everything after `start` and up to `end`."""
        if self.start is None:
            return Window(start, end, 0.0, 0, 0.0, 0.0, 0, 0, None, (), (), (), None)
        start = max(start, self.start)
        end = max(end, start)
        did = Totals(*(b - a for a, b in zip(self._at(start), self._at(end), strict=True)))
        observed = end - start - self._unseen(start, end)
        end_seen = observed > 0 and not any(a < end < b for a, b in self._gaps)
        return Window(
            start=start,
            end=end,
            observed=observed,
            steps=did.steps,
            step_seconds=did.step_seconds,
            transfer_seconds=did.transfer_seconds,
            prefill_tokens=did.prefill_tokens,
            output_tokens=did.output_tokens,
            internal_share=did.internal_slot_seconds / did.held_slot_seconds if did.held_slot_seconds else None,
            ttft=_between(self._ttft, start, end),
            tpot=_between(self._tpot, start, end),
            preempted=_between(self._preempted, start, end),
            queue_length=self._queues[self._index(end)] if end_seen else None,
        )

    def columns(self, now: float, span: float, count: int) -> list[Window]:
        """The last `count` finished windows of `span` seconds, cut at whole multiples of it, the newest last."""
        newest = int(now // span)
        out = []
        for index in range(newest - count, newest):
            key = (span, index)
            if key not in self._columns:
                if len(self._columns) > MAX_COLUMNS:
                    self._columns.clear()
                self._columns[key] = self.window(index * span, (index + 1) * span)
                self._columns_end = max(self._columns_end, (index + 1) * span)
            out.append(self._columns[key])
        return out

    def comparison(self, now: float) -> Comparison | None:
        """Equal windows around the last switch (switches in quick succession are one); None before any."""
        switches = [switch for switch in self.switches if switch.time <= now]
        if not switches or self.start is None:
            return None
        group = [switches[-1]]
        for switch in reversed(switches[:-1]):
            if group[0].time - switch.time > SWITCH_GROUP:
                break
            group.insert(0, switch)
        first, last = group[0], group[-1]
        earlier = [switch.time for switch in switches if switch.time < first.time]
        had = first.time - max([self.start, *earlier[-1:]])
        span = min(COMPARE_LIMIT, now - last.time, had)
        before = self.window(first.time - span, first.time)
        return Comparison(first, last, before, self.window(now - span, now))

    def _enter(self, request: str) -> None:
        if request in self._lanes:
            return
        taken = set(self._lanes.values())
        self._lanes[request] = next(lane for lane in range(len(taken) + 1) if lane not in taken)

    def _leave_before(self, request: str, end: End) -> None:
        """A request left the batch before this step was planned: the mark goes on the last step it was in."""
        lane = self._lanes.get(request)
        self._forget(request)
        if lane is None or not self.steps:
            return
        cell = self.steps[-1].cells.get(lane)
        if cell and cell.request == request and not cell.end:
            self.steps[-1].cells[lane] = Cell(request, cell.kind, cell.hue, end)

    def _forget(self, request: str) -> None:
        for known in (self._lanes, self._last_token):
            known.pop(request, None)

    def _measure_latencies(self, record: Record, state: State) -> None:
        """TTFT from arrival to first token; TPOT over the tokens after the first, when a request ends by itself."""
        arrivals = {arrived.request: arrived.time for arrived in record.arrived}
        sampled = {row.request: row.sampled for row in record.rows if row.sampled}
        for request in sampled:
            self._last_token[request] = record.time
            known = state.requests.get(request)
            arrived = known.arrived if known else arrivals.get(request)
            if (known is None or known.first_token is None) and arrived is not None:
                self._ttft.append((record.time, record.time - arrived))
        for left in (*record.held, *record.left):
            known = state.requests.get(left.request)
            last = self._last_token.get(left.request)
            if left.reason not in ("stop", "length") or known is None:
                continue
            generated = known.num_tokens - known.prompt_tokens + sampled.get(left.request, 0)
            if known.first_token is not None and last is not None and generated > 1:
                self._tpot.append((record.time, (last - known.first_token) / (generated - 1)))

    def _began(self, record: Record) -> float:
        """When a record's work began: when the last record was made, or later."""
        spent = record.durations
        began = record.time - (step_seconds(spent) - spent.publish)
        return max(began, self._times[-1]) if self._times else began

    def _add(self, record: Record, began: float) -> None:
        """Add a record's sums, spread over the time that it took. Without rows it moved blocks, or only tells."""
        if began < record.time:
            if self._times and began > self._times[-1]:
                self._push(began, self._held_until(began), self._queues[-1])
            if began < self._columns_end:
                self._columns = {key: window for key, window in self._columns.items() if window.end <= began}
                self._columns_end = began
        more = Totals(
            steps=bool(record.rows),
            step_seconds=step_seconds(record.durations) if record.rows else 0.0,
            transfer_seconds=record.durations.transfer,
            prefill_tokens=sum(row.tokens for row in record.rows if row.kind == "prefill"),
            output_tokens=sum(row.sampled for row in record.rows),
        )
        before = self._held_until(record.time)
        self._push(record.time, Totals(*(a + b for a, b in zip(before, more, strict=True))), record.queue.length)
        self._waste = record.waste

    def _held_until(self, time: float) -> Totals:
        """The last totals, with what was held since."""
        if not self._totals:
            return Totals()
        last, waste = self._totals[-1], self._waste
        seconds = time - self._times[-1]
        return last._replace(
            held_slot_seconds=last.held_slot_seconds + waste.held * seconds,
            internal_slot_seconds=last.internal_slot_seconds + waste.internal * seconds,
        )

    def _add_step(self, record: Record, switched: bool, state: State) -> None:
        ends: dict[str, End] = {left.request: "finished" for left in record.held}
        ends |= {left.request: _ending(left) for left in record.left}
        cells = {
            self._lanes[row.request]: Cell(row.request, row.kind, state.ordinal(row.request), ends.get(row.request, ""))
            for row in record.rows
            if row.request in self._lanes
        }
        self.steps.append(
            Step(
                seq=record.seq,
                time=record.time,
                cells=cells,
                tokens=sum(row.tokens for row in record.rows),
                budget=record.control.max_num_batched_tokens,
                switched=switched,
                durations=record.durations,
                copies=record.copies,
                missing=self._pending_missing,
                parts=record.parts,
            )
        )
        self._pending_missing = 0

    def _note_switch(self, control: Control, seq: int, time: float) -> None:
        old, self._control = self._control, control
        if old is not None and controls.changes(old, control):
            self.switches.append(Switch(seq, time, old, control))

    def _push(self, time: float, totals: Totals, queue: int) -> None:
        self._times.append(time)
        self._totals.append(totals)
        self._queues.append(queue)

    def _index(self, time: float) -> int:
        """Of the last point up to `time` (inclusive); of the first before any."""
        return max(0, bisect_right(self._times, time) - 1)

    def _at(self, time: float) -> Totals:
        """The totals at a moment: between the two points of a step, a part of it."""
        index = self._index(time)
        last = self._totals[index]
        if index + 1 == len(self._times) or time <= self._times[index] or self._totals[index + 1] is last:
            return last
        part = (time - self._times[index]) / (self._times[index + 1] - self._times[index])
        return Totals(*(a + part * (b - a) for a, b in zip(last, self._totals[index + 1], strict=True)))

    def _unseen(self, start: float, end: float) -> float:
        return sum(max(0.0, min(b, end) - max(a, start)) for a, b in self._gaps)

    def _trim(self) -> None:
        """Drop what is too old, in chunks, so that a record costs O(1)."""
        oldest = self._times[-1] - MAX_AGE
        if len(self._times) > MAX_POINTS * 1.1 or self._times[0] < oldest - MAX_AGE * 0.1:
            cut = max(len(self._times) - MAX_POINTS, bisect_left(self._times, oldest), 0)
            del self._times[:cut], self._totals[:cut], self._queues[:cut]
            oldest = self._times[0]
            for events in (self._ttft, self._tpot, self._preempted):
                del events[: bisect_left(events, oldest, key=_when)]
            self._gaps = [gap for gap in self._gaps if gap[1] > oldest]
            self.switches = [switch for switch in self.switches if switch.time > oldest]
        if len(self.steps) > MAX_STEPS * 1.1:
            del self.steps[: len(self.steps) - MAX_STEPS]


def _ending(left: Left) -> End:
    return "left" if left.reason in ("stop", "length") else "aborted"


def _when(event: tuple[float, Any]) -> float:
    return event[0]


def _between(events: list[tuple[float, T]], start: float, end: float) -> tuple[T, ...]:
    """What happened after `start` and up to `end`."""
    low, high = bisect_right(events, start, key=_when), bisect_right(events, end, key=_when)
    return tuple(what for _, what in events[low:high])
