"""Everything that crosses the engine's border: step records, snapshots and control.

A snapshot plus every record after its sequence number is the engine's exact state (`tui.fold` folds one).
Nothing is said twice: who owns a block follows from the block tables, its references are their count.
Times are seconds on the engine's monotonic clock; durations are seconds. This module imports no torch.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL_VERSION = 1

Batching = Literal["continuous", "static"]
Allocation = Literal["paged", "reserved"]
BlockState = Literal["free", "cached", "reserved", "filling", "full", "shared"]
RowKind = Literal["prefill", "decode", "held"]
RequestStatus = Literal["waiting", "running", "held"]
FinishReason = Literal["stop", "length", "abort", "error"]


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What can be switched while requests run; each change holds from a step boundary."""

    batching: Batching = "continuous"
    allocation: Allocation = "paged"
    prefix_cache: bool = True
    chunked_prefill: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512


class EngineInfo(msgspec.Struct, frozen=True):
    """What does not change while an engine lives."""

    model: str
    dtype: str
    device: str
    block_size: int  # slots per block
    num_blocks: int
    kv_bytes_per_token: int
    max_model_len: int  # tokens; also the slots of one reservation
    version: str
    protocol: int = PROTOCOL_VERSION
    started: float = 0.0  # on the engine's clock
    started_unix: float = 0.0  # the same moment as Unix time


class Durations(msgspec.Struct, frozen=True):
    """Where one step's time went, in seconds; `publish` is commit, hand-over and building this record."""

    schedule: float
    prepare: float
    forward: float
    sample: float
    publish: float


class Arrived(msgspec.Struct, frozen=True):
    """A request entered the queue."""

    request: str
    prompt_tokens: int
    max_tokens: int
    time: float


class Joined(msgspec.Struct, frozen=True):
    """A request entered the batch; `cached_tokens` of its tokens were found in the prefix cache."""

    request: str
    cached_tokens: int
    looked_up_tokens: int
    allocation: Allocation
    resumed: bool  # it had been preempted before: its hits are counted apart


class Row(msgspec.Struct, frozen=True):
    """One request's part of a step's batch.

    `context` is the tokens whose KV exists after the step; `sampled` how many tokens it produced.
    `held`: finished in a static batch, still computed as padding until the batch ends.
    """

    request: str
    kind: RowKind
    tokens: int
    context: int
    cached: int
    sampled: int


class Preempted(msgspec.Struct, frozen=True):
    """A request lost its blocks and went back to the head of the queue; it will recompute `lost_tokens`."""

    request: str
    lost_tokens: int


class Left(msgspec.Struct, frozen=True):
    """A request ended. `Record.left`: it is gone; `Record.held`: it keeps its row and memory."""

    request: str
    reason: FinishReason


class TableChange(msgspec.Struct, frozen=True):
    """A request's block table from index `start` on is now `blocks` (empty: cut off at `start`)."""

    request: str
    start: int
    blocks: tuple[int, ...]


class Block(msgspec.Struct, frozen=True):
    """One physical block as it now is; `references` is the number of block tables that hold it."""

    block: int
    state: BlockState
    references: int
    filled: int  # slots whose KV exists
    hashed: bool  # findable through the prefix cache


class PoolTotals(msgspec.Struct, frozen=True):
    """Blocks by state; they sum to the pool."""

    free: int = 0
    cached: int = 0
    reserved: int = 0
    filling: int = 0
    full: int = 0
    shared: int = 0


class WasteLedger(msgspec.Struct, frozen=True):
    """Slots. held = filled + internal; external lies in free holes too short for the next reservation."""

    held: int = 0
    filled: int = 0
    internal: int = 0
    external: int = 0


class SharingLedger(msgspec.Struct, frozen=True):
    """saved_blocks = logical - physical. Token counts are totals since the engine started."""

    logical_blocks: int = 0  # sum of all block tables' lengths
    physical_blocks: int = 0  # distinct blocks in them
    saved_blocks: int = 0
    saved_bytes: int = 0
    looked_up_tokens: int = 0  # prompt tokens of first admissions
    found_tokens: int = 0
    resumed_looked_up_tokens: int = 0  # the same for requests that come back after preemption
    resumed_found_tokens: int = 0


class Queue(msgspec.Struct, frozen=True):
    """Requests that wait, and for how long the oldest of them has, in seconds."""

    length: int = 0
    oldest_age: float = 0.0


class Record(msgspec.Struct, frozen=True, tag="step"):
    """What one step did. A step with no rows tells of changes made while nothing ran."""

    seq: int
    time: float
    control: Control
    durations: Durations
    rows: tuple[Row, ...]
    arrived: tuple[Arrived, ...]
    joined: tuple[Joined, ...]
    preempted: tuple[Preempted, ...]
    held: tuple[Left, ...]
    left: tuple[Left, ...]
    released: tuple[str, ...]  # held requests that are gone now, with the static batch they were in
    tables: tuple[TableChange, ...]
    blocks: tuple[Block, ...]
    pool: PoolTotals
    waste: WasteLedger
    sharing: SharingLedger
    queue: Queue
    unreserved: tuple[str, ...] = ()  # gave their unfilled slots back when `paged` was chosen, and go on paged


class RequestState(msgspec.Struct, frozen=True):
    """One live request; generated tokens are `num_tokens - prompt_tokens`."""

    request: str
    status: RequestStatus
    prompt_tokens: int
    max_tokens: int
    num_tokens: int
    computed_tokens: int
    cached_tokens: int
    preemptions: int
    arrived: float
    first_token: float | None
    allocation: Allocation | None  # None while it waits
    reason: FinishReason | None  # why it ended, while it is held
    table: tuple[int, ...]


class Counters(msgspec.Struct, frozen=True):
    """Totals since the engine started."""

    steps: int = 0  # records with at least one row
    prefill_tokens: int = 0
    decode_tokens: int = 0
    held_tokens: int = 0
    sampled_tokens: int = 0
    preemptions: int = 0
    stopped: int = 0
    length_capped: int = 0
    aborted: int = 0
    failed: int = 0


# The counter of each way to end.
ENDINGS: dict[FinishReason, str] = {
    "stop": "stopped",
    "length": "length_capped",
    "abort": "aborted",
    "error": "failed",
}


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """The whole state after record `seq` (0: before the first). Blocks that are free are not listed.

    Requests come in the order of their arrival, those that run before those that wait.
    """

    seq: int
    time: float
    engine: EngineInfo
    control: Control
    requests: tuple[RequestState, ...]
    blocks: tuple[Block, ...]  # by id
    pool: PoolTotals
    waste: WasteLedger
    sharing: SharingLedger
    queue: Queue
    counters: Counters


class Gap(msgspec.Struct, frozen=True, tag="gap"):
    """Records `first` to `last` were dropped for this reader: read a snapshot again."""

    first: int
    last: int


StreamItem = Record | Gap | Snapshot

encode = msgspec.json.Encoder().encode
decode_item = msgspec.json.Decoder(StreamItem).decode
decode_snapshot = msgspec.json.Decoder(Snapshot).decode


def block_state(references: int, filled: int, hashed: bool, block_size: int) -> BlockState:
    """Derive a block's state; the one place that says what the states mean."""
    if references == 0:
        return "cached" if hashed else "free"
    if references > 1:
        return "shared"
    if filled == 0:
        return "reserved"
    return "full" if filled == block_size else "filling"
