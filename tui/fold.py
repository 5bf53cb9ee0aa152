"""The engine's state, folded from its own stream: a snapshot plus every record after it. Pure; no clock, no I/O."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from engine.protocol import Record, RequestState, Row, Snapshot, counted
from tui.block_columns import FREE, SHARED, UNKNOWN, BlockColumns


class MissingRecords(ValueError):
    """The record does not follow the state: a snapshot must be read again."""


class EngineFold:
    """Holds what a snapshot holds, and moves it forward record by record.

    `requests` maps ids to states in the order of arrival. Beyond a snapshot, `blocks` has what follows from the stream
    since it began: whose a block is, what it goes on from, how often it was found, and since when.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.engine = snapshot.engine
        self.seq = snapshot.seq
        self.time = snapshot.time
        self.control = snapshot.control
        self.requests: dict[str, RequestState] = {
            state.request: state for state in sorted(snapshot.requests, key=lambda state: state.arrived)
        }
        self.ordinals: dict[str, int] = {}
        self._seen = 0  # requests that have had an ordinal
        self.blocks = BlockColumns(snapshot.engine.num_blocks)
        self.blocks.put(snapshot.blocks)
        for state in self.requests.values():
            self._own(state.request, state.table, 0)
        self.pool = snapshot.pool
        self.waste = snapshot.waste
        self.sharing = snapshot.sharing
        self.queue = snapshot.queue
        self.counters = snapshot.counters
        self.host_blocks = snapshot.host_blocks
        self.record: Record | None = None  # the last one

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> EngineFold:
        return cls(snapshot)

    def ordinal(self, request: str) -> int:
        """A number that goes with a request while it lives, given in the order in which requests are seen."""
        if request not in self.ordinals:
            self.ordinals[request] = self._seen
            self._seen += 1
        return self.ordinals[request]

    def apply(self, record: Record) -> None:
        """Move to the state after `record`; raises MissingRecords unless it is the very next one."""
        if record.seq != self.seq + 1:
            raise MissingRecords(f"record {record.seq} does not follow {self.seq}")
        self.seq, self.time, self.control = record.seq, record.time, record.control
        self._apply_requests(record)
        self._fill(record.rows)
        for left in record.left:
            del self.requests[left.request]
            self.ordinals.pop(left.request, None)
        if record.blocks:
            self._apply_blocks(record)
        self.pool, self.waste, self.sharing = record.pool, record.waste, record.sharing
        self.queue = record.queue
        self.host_blocks = record.host_blocks
        self.record = record
        self.counters = counted(self.counters, record)

    def to_snapshot(self) -> Snapshot:
        """The state as the engine's own snapshot at this sequence number would have it."""
        waiting = [state for state in self.requests.values() if state.status == "waiting"]
        running = [state for state in self.requests.values() if state.status != "waiting"]
        return Snapshot(
            seq=self.seq,
            time=self.time,
            engine=self.engine,
            control=self.control,
            requests=(*running, *waiting),
            blocks=tuple(self.blocks.block(at) for at in np.flatnonzero(self.blocks.state != FREE).tolist()),
            pool=self.pool,
            waste=self.waste,
            sharing=self.sharing,
            queue=self.queue,
            counters=self.counters,
            host_blocks=self.host_blocks,
        )

    def _apply_requests(self, record: Record) -> None:
        requests = self.requests
        for request in record.unreserved:
            self._change(request, allocation="paged")
        # A held request's id may be taken again by one that arrives in the same record.
        for request in record.released:
            del requests[request]
            self.ordinals.pop(request, None)
        for new in record.arrived:
            self.ordinal(new.request)
            requests[new.request] = RequestState(
                request=new.request,
                status="waiting",
                prompt_tokens=new.prompt_tokens,
                max_tokens=new.max_tokens,
                num_tokens=new.prompt_tokens,
                computed_tokens=0,
                cached_tokens=0,
                preemptions=0,
                arrived=new.time,
                first_token=None,
                allocation=None,
                reason=None,
                table=(),
                parent=new.parent,
                priority=new.priority,
            )
        for lost in record.preempted:
            state = requests[lost.request]
            self._change(
                lost.request,
                status="waiting",
                computed_tokens=0,
                cached_tokens=0,
                preemptions=state.preemptions + 1,
                allocation=None,
                table=(),
                swapped_tokens=state.computed_tokens if lost.by == "swap" else 0,
            )
        for joined in record.joined:
            self._change(
                joined.request,
                status="running",
                computed_tokens=joined.cached_tokens + joined.shared_tokens + joined.swapped_tokens,
                cached_tokens=joined.cached_tokens,
                allocation=joined.allocation,
                parent=None,
                swapped_tokens=0,
            )
            if joined.allocation == "reserved":  # what is reserved is not shared: its children run on their own
                for state in [state for state in requests.values() if state.parent == joined.request]:
                    self._change(state.request, parent=None)
        for change in record.tables:
            table = requests[change.request].table
            self._change(change.request, table=table[: change.start] + change.blocks)
            self._own(change.request, requests[change.request].table, change.start)
        for joined in record.joined:
            found = (joined.cached_tokens - joined.copied_tokens) // self.engine.block_size
            if found:
                self.blocks.hits[list(requests[joined.request].table[:found])] += 1
        for row in record.rows:
            if row.kind == "held":
                continue
            state = requests[row.request]
            first = record.time if row.sampled and state.first_token is None else state.first_token
            self._change(
                row.request,
                computed_tokens=row.context,
                num_tokens=state.num_tokens + row.sampled,
                first_token=first,
            )
        for held in record.held:
            self._change(held.request, status="held", reason=held.reason)

    def _own(self, request: str, table: tuple[int, ...], start: int) -> None:
        """A request's table is new from index `start` on."""
        if start < len(table):
            new = np.array(table[max(0, start - 1) :], np.int64)
            if start == 0:
                self.blocks.parent[new[:1]] = UNKNOWN
            self.blocks.parent[new[1:]] = new[:-1]
            self.blocks.owner[new[1:] if start else new] = self.ordinal(request)

    def _apply_blocks(self, record: Record) -> None:
        columns = self.blocks
        ids = np.fromiter((block.block for block in record.blocks), np.int64, len(record.blocks))
        was_shared, was_held = columns.state[ids] == SHARED, columns.references[ids] > 0
        columns.put(record.blocks)
        columns.changed[ids] = record.seq
        held = columns.references[ids] > 0
        columns.since[ids[held & ~was_held]] = record.time
        freed = ids[columns.state[ids] == FREE]
        columns.since[freed] = np.nan
        columns.owner[freed] = columns.parent[freed] = UNKNOWN
        columns.hits[freed] = 0
        self._find_owners(ids[was_shared & (columns.references[ids] == 1)])

    def _find_owners(self, blocks: npt.NDArray[np.int64]) -> None:
        """Of blocks that several requests shared and one still holds."""
        wanted = set(blocks.tolist())
        for state in self.requests.values():
            if not wanted:
                break
            for block in wanted.intersection(state.table):
                self.blocks.owner[block] = self.ordinal(state.request)
                wanted.discard(block)

    def _fill(self, rows: tuple[Row, ...]) -> None:
        """A record leaves out the blocks that were being filled and still are: their rows tell how far."""
        size = self.engine.block_size
        blocks, slots = [], []
        for row in rows:
            index, filled = divmod(row.context, size)
            table = self.requests[row.request].table
            # One that ended with this step may lack its newest blocks here; `record.blocks` has them.
            if filled and row.tokens and row.kind != "held" and index < len(table):
                blocks.append(table[index])
                slots.append(filled)
        self.blocks.filled[blocks] = slots
        self.blocks.changed[blocks] = self.seq

    def _change(self, request: str, **changes: object) -> None:
        self.requests[request] = msgspec.structs.replace(self.requests[request], **changes)
