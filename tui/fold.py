"""The engine's state, folded from its own stream: a snapshot plus every record after it. Pure; no clock, no I/O."""

from __future__ import annotations

import msgspec
import numpy as np

from engine.protocol import Record, RequestState, Snapshot, counted
from tui.block_columns import CACHED, FREE, SHARED, UNKNOWN, BlockColumns

Dropped = list[tuple[int, tuple[int, ...]]]  # who lost blocks of its table: its ordinal, and the table as it was


class MissingRecords(ValueError):
    """The record does not follow the state: a snapshot must be read again."""


class EngineFold:
    """Holds what a snapshot holds, and moves it forward record by record.

    `requests` maps ids to states in the order of arrival. Beyond a snapshot, `blocks` has what follows from the stream
    since it began: whose a block is, what it goes on from, how often it was found, and since when. `ordinals` has a
    number for each request while it lives, given in the order of arrival. A record is taken to be sound
    (`tui.checks`): of one that is not, the fold makes anything.
    """

    def __init__(self, snapshot: Snapshot, blocks: BlockColumns | None = None) -> None:
        """`blocks`: the columns where they are known already."""
        self.engine = snapshot.engine
        self.seq = snapshot.seq
        self.time = snapshot.time
        self.control = snapshot.control
        self.requests: dict[str, RequestState] = {
            state.request: state for state in sorted(snapshot.requests, key=lambda state: state.arrived)
        }
        self.ordinals: dict[str, int] = {request: ordinal for ordinal, request in enumerate(self.requests)}
        self.seen = len(self.ordinals)  # requests that have had an ordinal: the next one's
        self.blocks = BlockColumns(snapshot.engine.num_blocks) if blocks is None else blocks
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

    @classmethod
    def restored(
        cls,
        snapshot: Snapshot,
        requests: dict[str, RequestState],
        ordinals: dict[str, int],
        seen: int,
        blocks: BlockColumns,
        record: Record | None,
    ) -> EngineFold:
        """A fold as it was: `snapshot` has neither blocks nor tables, which come apart."""
        fold = cls(msgspec.structs.replace(snapshot, requests=()), blocks)
        fold.requests, fold.ordinals, fold.seen, fold.record = requests, ordinals, seen, record
        return fold

    def apply(self, record: Record) -> None:
        """Move to the state after `record`; raises MissingRecords unless it is the very next one."""
        if record.seq != self.seq + 1:
            raise MissingRecords(f"record {record.seq} does not follow {self.seq}")
        self.seq, self.time, self.control = record.seq, record.time, record.control
        dropped: Dropped = []
        for name in (
            *record.released,
            *(lost.request for lost in record.preempted),
            *(one.request for one in record.transferred if one.error),
            *(end.request for end in record.left),
        ):
            if name in self.requests:
                dropped.append((self.ordinals[name], self.requests[name].table))
        taken = self._apply_requests(record, dropped)
        for left in record.left:
            del self.requests[left.request]
            del self.ordinals[left.request]
        if record.blocks:
            self._apply_blocks(record, dropped, taken)
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

    def _apply_requests(self, record: Record, dropped: Dropped) -> list[int]:
        """`dropped` gets who lost blocks; returns those taken empty, also where another had them until then."""
        requests = self.requests
        for request in record.unreserved:
            self._change(request, allocation="paged")
        # A held request's id may be taken again by one that arrives in the same record.
        for request in record.released:
            del requests[request]
            del self.ordinals[request]
        for new in record.arrived:
            self.ordinals[new.request] = self.seen
            self.seen += 1
            requests[new.request] = RequestState(
                request=new.request,
                status="waiting",
                prompt_tokens=new.prompt_tokens,
                max_tokens=new.max_tokens,
                num_tokens=new.prompt_tokens + new.generated_tokens,
                computed_tokens=0,
                cached_tokens=0,
                preemptions=0,
                arrived=new.time,
                first_token=new.time if new.generated_tokens else None,
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
        self._end_transfers(record)
        for joined in record.joined:
            computed = joined.cached_tokens + joined.shared_tokens + joined.swapped_tokens + joined.received_tokens
            self._change(
                joined.request,
                status="running",
                computed_tokens=computed,
                cached_tokens=joined.cached_tokens,
                allocation=joined.allocation,
                parent=None,
                swapped_tokens=0,
            )
            if joined.allocation == "reserved":  # what is reserved is not shared: its children run on their own
                for state in [state for state in requests.values() if state.parent == joined.request]:
                    self._change(state.request, parent=None)
        size = self.engine.block_size
        found = {joined.request: (joined.cached_tokens - joined.copied_tokens) // size for joined in record.joined}
        full = {joined.request: found[joined.request] + -(-joined.shared_tokens // size) for joined in record.joined}
        for joined in record.joined:
            if joined.received_blocks:  # it took what it had found when it began to receive
                del found[joined.request]
        for coming in record.receiving:
            self._change(
                coming.request,
                status="receiving",
                computed_tokens=coming.cached_tokens,
                cached_tokens=coming.cached_tokens,
                allocation="paged",
            )
            found[coming.request] = full[coming.request] = coming.cached_tokens // size
        taken = [copy.target for copy in record.copies]
        for change in record.tables:
            name = change.request
            table = requests[name].table
            taken_empty = change.blocks[max(0, full.get(name, 0) - change.start) :]
            if change.start < len(table):  # a beam may go on from what another holds
                dropped.append((self.ordinals[name], table))
                taken_empty = tuple(block for block in taken_empty if not self.blocks.references[block])
            taken += taken_empty
            self._change(name, table=table[: change.start] + change.blocks)
            self._own(name, requests[name].table, change.start)
        self.blocks.hits[taken] = 0
        for name, count in found.items():
            if count:
                blocks = list(requests[name].table[:count])
                self.blocks.hits[blocks] += 1
                self.blocks.touched[blocks] = True
        self._advance(record)
        for held in record.held:
            self._change(held.request, status="held", reason=held.reason)
        for offered in record.offered:
            self._change(offered.request, status="sending")
        return taken

    def _end_transfers(self, record: Record) -> None:
        """What did not come is computed anew; whoever was to share it runs on its own, or is forked now."""
        received = {one.request: one for one in record.transferred if one.side == "received"}
        if not received:
            return
        for name, one in received.items():
            if one.error:
                self._change(name, status="waiting", computed_tokens=0, cached_tokens=0, allocation=None, table=())
        for state in [state for state in self.requests.values() if state.parent in received]:
            self._change(state.request, parent=None)

    def _own(self, request: str, table: tuple[int, ...], start: int) -> None:
        """A request's table is new from index `start` on."""
        if 0 < start == len(table) - 1:  # one block more, as most changes are: without arrays
            block = table[start]
            self.blocks.parent[block] = table[start - 1]
            self.blocks.owner[block] = self.ordinals[request]
            self.blocks.touched[block] = True
        elif start < len(table):
            new = np.array(table[max(0, start - 1) :], np.int64)
            if start == 0:
                self.blocks.parent[new[:1]] = UNKNOWN
            self.blocks.parent[new[1:]] = new[:-1]
            own = new[1:] if start else new
            self.blocks.owner[own] = self.ordinals[request]
            self.blocks.touched[own] = True

    def _apply_blocks(self, record: Record, dropped: Dropped, taken: list[int]) -> None:
        columns = self.blocks
        ids = np.fromiter((block.block for block in record.blocks), np.int64, len(record.blocks))
        was_shared, was_held = columns.state[ids] == SHARED, columns.references[ids] > 0
        was_cached = columns.state[ids] == CACHED
        columns.put(record.blocks)
        columns.changed[ids] = record.seq
        held = columns.references[ids] > 0
        columns.since[ids[held & ~was_held]] = columns.since[taken] = record.time
        # By a request that joined and ended at once, which tells no table: found, or filled with something else.
        passed = ids[was_cached & (columns.state[ids] == CACHED)]
        columns.since[passed] = record.time
        columns.owner[passed] = columns.parent[passed] = UNKNOWN
        columns.hits[passed] = 0
        freed = ids[columns.state[ids] == FREE]
        columns.since[freed] = np.nan
        columns.owner[freed] = columns.parent[freed] = UNKNOWN
        columns.hits[freed] = 0
        if dropped:
            stale = np.isin(columns.owner[ids], [ordinal for ordinal, _ in dropped])
            self._find_owners(ids[was_shared & held & stale].tolist(), dropped)

    def _find_owners(self, blocks: list[int], dropped: Dropped) -> None:
        """Of shared blocks whose owner in `dropped` may have let them go.

        A shared block is at the same place in every table, and so are all before it: of each table that lost some,
        the first of them tells who may hold the rest.
        """
        names = {self.ordinals[name]: name for name in self.requests} if blocks else {}
        wanted = {block for block in blocks if not self._holds(names.get(int(self.blocks.owner[block])), block)}
        if not wanted:
            return
        self.blocks.owner[list(wanted)] = UNKNOWN
        firsts = {
            next(((at, block) for at, block in enumerate(table) if block in wanted), (0, UNKNOWN))
            for _, table in dropped
        }
        for request, state in self.requests.items():
            table = state.table
            if any(at < len(table) and table[at] == block for at, block in firsts):
                for block in wanted.intersection(table):
                    self.blocks.owner[block] = self.ordinals[request]
                    wanted.discard(block)
                if not wanted:
                    break

    def _holds(self, request: str | None, block: int) -> bool:
        return request is not None and block in self.requests[request].table

    def _advance(self, record: Record) -> None:
        """Move the requests with rows on, and fill their blocks: one pass, there may be a thousand.

        A record leaves out the blocks that were being filled and still are: their rows tell how far.
        """
        size, requests, replace = self.engine.block_size, self.requests, msgspec.structs.replace
        blocks, slots = [], []
        for row in record.rows:
            if row.kind == "held":
                continue
            name, context, sampled = row.request, row.context, row.sampled
            state = requests[name]
            if sampled and state.first_token is None:
                state = replace(state, first_token=record.time)
            requests[name] = replace(state, computed_tokens=context, num_tokens=state.num_tokens + sampled)
            filled = context % size
            if filled and row.tokens:
                table, index = state.table, context // size
                # One that ended with this step may lack its newest blocks here; `record.blocks` has them.
                if index < len(table):
                    blocks.append(table[index])
                    slots.append(filled)
        if blocks:
            at = np.array(blocks, np.int64)
            self.blocks.filled[at] = slots
            self.blocks.changed[at] = record.seq
            self.blocks.touched[at] = True

    def _change(self, request: str, **changes: object) -> None:
        self.requests[request] = msgspec.structs.replace(self.requests[request], **changes)
