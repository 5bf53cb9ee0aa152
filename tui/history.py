"""What has been seen so far, in bounded memory: figures over time, switches, and who ran in which lane.

Figures are `tui.windows`' of a `tui.log`; the batch's steps are `tui.steps`'. Times are seconds on the engine's clock.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.protocol import Control, Record, RequestState, RowKind, SharingLedger, Snapshot, WasteLedger
from tui import controls
from tui.lanes import End, Lanes, ending, gone_before
from tui.log import Ended, Log, Switch, Totals
from tui.steps import Cell, Cells, Step, Steps
from tui.windows import Comparison, Window, Windows, quantile, step_seconds

__all__ = [
    "Cell",
    "Cells",
    "Comparison",
    "End",
    "Ended",
    "History",
    "Step",
    "Switch",
    "Window",
    "Windows",
    "quantile",
    "step_seconds",
]


class State(Protocol):
    """What history reads of the state before a record is applied (the fold has it)."""

    requests: dict[str, RequestState]
    ordinals: dict[str, int]
    seen: int  # the next request's ordinal


class _Work(NamedTuple):
    """What the rows of one record come to."""

    prefill_tokens: int
    output_tokens: int
    tokens: int
    cells: Cells


class History(Windows):
    """Fed with each record before the fold applies it; asked for windows, steps and switches."""

    def __init__(self, log: Log | None = None) -> None:
        """`log`: of the engine's lives before this one."""
        super().__init__(log or Log())
        self._steps = Steps()
        self._lanes = Lanes()
        self._cells: dict[tuple[str, RowKind], Cell] = {}  # the running requests' own
        self._last_token: dict[str, float] = {}
        self._control: Control | None = None
        self._waste = WasteLedger()  # as the last record or snapshot told it
        self._sharing = SharingLedger()
        self._pending_missing = 0

    @property
    def steps(self) -> list[Step]:
        """As far back as memory allows, the oldest first."""
        return self._steps.kept

    @property
    def points(self) -> int:
        """The records whose figures are kept."""
        return len(self._log)

    @property
    def held_lanes(self) -> Lanes:
        """The lanes themselves, for whoever keeps them."""
        return self._lanes

    @property
    def lanes(self) -> dict[str, int]:
        """The lane of every request in the batch."""
        return self._lanes.by_request

    def until(self, seq: int) -> Windows:
        """The figures as they were known after record `seq`."""
        return Windows(self._log, seq)

    def steps_until(self, seq: int, count: int) -> tuple[Step, ...]:
        """The last `count` steps as they were known after record `seq`."""
        return self._steps.until(seq, count)

    def begin(self, snapshot: Snapshot, missing: int = 0) -> None:
        """Start, or go on after `missing` lost records, from a snapshot of the same engine."""
        self._columns.clear()
        if missing:
            self._log.add_gap(snapshot.time)
            self._last_token.clear()
        self._note_switch(snapshot.control, snapshot.seq, snapshot.time)
        self._log.pool_slots = snapshot.engine.num_blocks * snapshot.engine.block_size
        self._log.add(snapshot.time, snapshot.time, snapshot.seq, snapshot.queue, Totals())
        self._waste, self._sharing = snapshot.waste, snapshot.sharing
        self._pending_missing += missing
        self._cells.clear()
        self._lanes.begin(request.request for request in snapshot.requests if request.status != "waiting")
        self._log.trim()

    def observe(self, record: Record, state: State) -> None:
        """Take one record; `state` is as it was before it."""
        began = self._began(record)
        self._note_switch(record.control, record.seq, began)
        for preempted in record.preempted:
            self._log.preempted.add(record.time, record.seq, preempted)
        self._see_ends(record, state)
        gone = list(gone_before(record))
        ends = [(request, self.lanes[request], end) for request, end in gone if request in self.lanes]
        self._steps.mark(ends, record.seq)
        for request, _ in gone:
            self._forget(request)
        self._lanes.open(record)
        work = self._see_rows(record, state)
        self._forget_columns(began)
        self._add(record, began, work)
        if record.rows:
            self._add_step(record, work)
        self._lanes.close(record)
        for left in record.left:
            self._forget(left.request)
        self._log.trim()

    def next_life(self, snapshot: Snapshot) -> History:
        """A history of the same engine after it was started again: figures over time stay, with a gap between.

        Nothing else does: steps are counted anew. This one is of no more use.
        """
        self._log.end_life(snapshot.time)
        return History(self._log)

    def _forget(self, request: str) -> None:
        self._last_token.pop(request, None)
        for kind in ("prefill", "decode", "fork", "held"):
            self._cells.pop((request, kind), None)

    def _see_rows(self, record: Record, state: State) -> _Work:
        """One pass over the rows: there may be a thousand. TTFT is from arrival to the first token."""
        requests, known, lanes, last = state.requests, self._cells, self.lanes, self._last_token
        time, seq = record.time, record.seq
        arrivals = {arrived.request: arrived.time for arrived in record.arrived}
        ordinals = {arrived.request: at for at, arrived in enumerate(record.arrived, state.seen)}
        ends: dict[str, End] = {left.request: "finished" for left in record.held}
        ends |= {left.request: ending(left) for left in record.left}
        cells: list[Cell | None] = [None] * (max(lanes.values(), default=-1) + 1)
        prefill = output = tokens = 0
        for row in record.rows:
            name, kind, sampled = row.request, row.kind, row.sampled
            tokens += row.tokens
            if kind == "prefill":
                prefill += row.tokens
            if sampled:
                output += sampled
                last[name] = time
                before = None if name in arrivals else requests.get(name)
                if before is None or before.first_token is None:
                    arrived = arrivals[name] if before is None else before.arrived
                    self._log.ttft.add(time, seq, time - arrived)
            lane = lanes.get(name)
            if lane is None:
                continue
            cell = known.get((name, kind))
            if cell is None:
                hue = ordinals[name] if name in ordinals else state.ordinals[name]
                cell = known[name, kind] = Cell(name, kind, hue)
            cells[lane] = Cell(name, kind, cell.hue, ends[name]) if name in ends else cell
        return _Work(prefill, output, tokens, Cells(tuple(cells)))

    def _see_ends(self, record: Record, state: State) -> None:
        """TPOT over the tokens after the first, and the whole time, when a request ends by itself."""
        if not record.held and not record.left:
            return
        log, time, seq = self._log, record.time, record.seq
        sampled = {row.request: row.sampled for row in record.rows if row.sampled}
        arrivals = {arrived.request: arrived for arrived in record.arrived}
        for left in (*record.held, *record.left):
            name = left.request
            new = arrivals.get(name)
            if new is not None:
                prompt, generated, arrived, first = new.prompt_tokens, 0, new.time, None
            else:
                known = state.requests[name]
                prompt, generated = known.prompt_tokens, known.num_tokens - known.prompt_tokens
                arrived, first = known.arrived, known.first_token
            generated += sampled.get(name, 0)
            log.ended.add(time, seq, Ended(left.reason, prompt + generated, generated))
            if left.reason not in ("stop", "length"):
                continue
            log.e2e.add(time, seq, time - arrived)
            last = time if name in sampled else self._last_token.get(name)
            if first is not None and last is not None and generated > 1:
                log.tpot.add(time, seq, (last - first) / (generated - 1))

    def _began(self, record: Record) -> float:
        """When a record's work began: when the last record was made, or later."""
        spent = record.durations
        began = record.time - (step_seconds(spent) - spent.publish)
        end = self._log.end
        return began if end is None else max(began, end)

    def _add(self, record: Record, began: float, work: _Work) -> None:
        """Add a record's sums, spread over the time that it took. Without rows it moved blocks, or only tells."""
        spent, waste, ledger = record.durations, self._waste, record.sharing
        end = self._log.end
        seconds = record.time - (record.time if end is None else end)  # for which memory was held as it was
        stepped = bool(record.rows)
        more = Totals(
            steps=stepped,
            schedule=spent.schedule * stepped,
            prepare=spent.prepare * stepped,
            forward=spent.forward * stepped,
            sample=spent.sample * stepped,
            publish=spent.publish * stepped,
            step_transfer=spent.transfer * stepped,
            transfer=spent.transfer,
            prefill_tokens=work.prefill_tokens,
            output_tokens=work.output_tokens,
            tokens=work.tokens,
            budget=record.control.max_num_batched_tokens * stepped,
            waiting_steps=stepped and record.queue.length > 0,
            looked_up_tokens=ledger.looked_up_tokens - self._sharing.looked_up_tokens,
            found_tokens=ledger.found_tokens - self._sharing.found_tokens,
            recomputed_tokens=sum(joined.recomputed_tokens for joined in record.joined),
            held=waste.held * seconds,
            internal=waste.internal * seconds,
            external=waste.external * seconds,
        )
        self._log.add(record.time, began, record.seq, record.queue, more)
        self._waste, self._sharing = record.waste, ledger

    def _add_step(self, record: Record, work: _Work) -> None:
        switches, before = self._log.switches, self._steps.kept
        self._steps.add(
            Step(
                seq=record.seq,
                time=record.time,
                cells=work.cells,
                tokens=work.tokens,
                budget=record.control.max_num_batched_tokens,
                switched=bool(switches) and (not before or switches[-1].seq > before[-1].seq),
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
            self._log.switches.append(Switch(seq, time, old, control))
