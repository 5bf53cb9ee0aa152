"""The engine's state, folded from its own stream: a snapshot plus every record after it. Pure; no clock, no I/O."""

from __future__ import annotations

import msgspec

from engine.protocol import Block, Record, RequestState, Row, Snapshot, counted


class MissingRecords(ValueError):
    """The record does not follow the state: a snapshot must be read again."""


class EngineFold:
    """Holds what a snapshot holds, and moves it forward record by record.

    `requests` maps ids to states in the order of arrival; `blocks` maps ids of blocks that are not free.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.engine = snapshot.engine
        self.seq = snapshot.seq
        self.time = snapshot.time
        self.control = snapshot.control
        self.requests: dict[str, RequestState] = {
            state.request: state for state in sorted(snapshot.requests, key=lambda state: state.arrived)
        }
        self.blocks: dict[int, Block] = {block.block: block for block in snapshot.blocks}
        self.pool = snapshot.pool
        self.waste = snapshot.waste
        self.sharing = snapshot.sharing
        self.queue = snapshot.queue
        self.counters = snapshot.counters
        self.host_blocks = snapshot.host_blocks

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> EngineFold:
        return cls(snapshot)

    def apply(self, record: Record) -> None:
        """Move to the state after `record`; raises MissingRecords unless it is the very next one."""
        if record.seq != self.seq + 1:
            raise MissingRecords(f"record {record.seq} does not follow {self.seq}")
        self.seq, self.time, self.control = record.seq, record.time, record.control
        self._apply_requests(record)
        self._fill(record.rows)
        for left in record.left:
            del self.requests[left.request]
        for block in record.blocks:
            if block.state == "free":
                self.blocks.pop(block.block, None)
            else:
                self.blocks[block.block] = block
        self.pool, self.waste, self.sharing = record.pool, record.waste, record.sharing
        self.queue = record.queue
        self.host_blocks = record.host_blocks
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
            blocks=tuple(self.blocks[block] for block in sorted(self.blocks)),
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
        for new in record.arrived:
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

    def _fill(self, rows: tuple[Row, ...]) -> None:
        """A record leaves out the blocks that were being filled and still are: their rows tell how far."""
        size = self.engine.block_size
        for row in rows:
            index, filled = divmod(row.context, size)
            table = self.requests[row.request].table
            # One that ended with this step may lack its newest blocks here; `record.blocks` has them.
            if filled and row.tokens and row.kind != "held" and index < len(table):
                block = self.blocks.get(table[index])
                if block is not None:
                    self.blocks[block.block] = msgspec.structs.replace(block, filled=filled)

    def _change(self, request: str, **changes: object) -> None:
        self.requests[request] = msgspec.structs.replace(self.requests[request], **changes)
