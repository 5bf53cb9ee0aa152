"""Everything that crosses the engine's border: step records, snapshots and control.

A snapshot plus every record after its sequence number is the engine's exact state (`tui.fold` folds one).
Nothing is said twice: who owns a block follows from the block tables, its references are their count, and how far
the block a row writes is filled follows from the row.
Times are seconds on the engine's monotonic clock; durations are seconds. This module imports no torch.
What comes by the thousand in a step is not tracked by the garbage collector (`gc=False`): it can form no cycle.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

PROTOCOL_VERSION = 2
MAX_NUM_SEQS = 4096
MAX_BATCHED_TOKENS = 1 << 20
MAX_WAIT = 86_400.0  # seconds
MAX_WORDS = 200  # characters of each of a load generator's own words

Batching = Literal["continuous", "static"]
Allocation = Literal["paged", "reserved"]
BlockState = Literal["free", "cached", "reserved", "filling", "full", "shared"]
RowKind = Literal["prefill", "decode", "fork", "held"]
RequestStatus = Literal["waiting", "running", "held", "sending", "receiving"]
FinishReason = Literal["stop", "length", "abort", "error", "deadline", "handed_over"]
ReservedFit = Literal["first", "best"]
SchedulingPolicy = Literal["fcfs", "priority", "shortest_prefill", "fair"]
Preempt = Literal["recompute", "swap", "auto"]
PreemptedBy = Literal["recompute", "swap"]
Quantize = Literal["none", "int8", "q4"]
WaitCause = Literal["rows", "tokens", "blocks", "hole", "batch", "prefix", "parent", "share"]
Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]  # that a load generator has counted
Measured = Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # by it: seconds, or a ratio
Words = Annotated[str, msgspec.Meta(max_length=MAX_WORDS)]


class Control(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What can be switched while requests run; each change holds from a step boundary.

    `max_prefill_chunk` caps one prefill's tokens in a step; 0: half of the budget while others can use the rest.
    `max_wait` (seconds) bounds what `shortest_prefill` may keep a request waiting: after that it goes first.
    """

    batching: Batching = "continuous"
    allocation: Allocation = "paged"
    reserved_fit: ReservedFit = "first"  # which hole a reservation takes
    prefix_cache: bool = True
    chunked_prefill: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_prefill_chunk: int = 0
    scheduling_policy: SchedulingPolicy = "fcfs"
    max_wait: float = 10.0
    preempt: Preempt = "auto"


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
    num_host_blocks: int = 0  # swap space, in blocks
    protocol: int = PROTOCOL_VERSION
    started: float = 0.0  # on the engine's clock
    started_unix: float = 0.0  # the same moment as Unix time
    quantize: Quantize = "none"  # bits of the matrices, where they are fewer than dtype's
    restarts: int = 0  # how often the engine was started again after a death, this time included


class Durations(msgspec.Struct, frozen=True):
    """Where one step's time went, in seconds; `publish` is commit, hand-over and building this record,
    `transfer` the block copies and swaps, which come before `forward`."""

    schedule: float
    prepare: float
    forward: float
    sample: float
    publish: float
    transfer: float = 0.0


class Parts(msgspec.Struct, frozen=True):
    """Where a step's forward went, in seconds, measured where the decoder's threads meet.

    They add up to about `Durations.forward`: the rest is the host's own time, before, between and after them.
    """

    norm: float  # the embedding too
    qkv: float
    rope: float  # rotation, and writing keys and values to the cache
    attention: float
    output: float  # with the residual's addition
    gate_up: float  # with SiLU(gate) * up
    down: float  # with the residual's addition
    head: float  # the output layer


class Arrived(msgspec.Struct, frozen=True):
    """A request entered the queue. One with a `parent` waits for that one's prompt and is forked off it."""

    request: str
    prompt_tokens: int
    max_tokens: int
    time: float
    parent: str | None = None
    priority: int = 0
    generated_tokens: int = 0  # of its answer, that it came with: another engine has generated them


class Joined(msgspec.Struct, frozen=True):
    """A request entered the batch; `cached_tokens` of its tokens were found in the prefix cache.

    It has KV for cached + shared + swapped tokens. `parent`: it was forked, and shares `shared_tokens` with that one.
    """

    request: str
    cached_tokens: int
    looked_up_tokens: int
    allocation: Allocation
    resumed: bool  # it had been preempted before: its hits are counted apart
    decoded_tokens: int = 0  # of the cached ones: lie in blocks with generated tokens
    copied_tokens: int = 0  # of the cached ones: copied out of a block that goes on otherwise
    evicted_tokens: int = 0  # not found, though they were cached once
    parent: str | None = None
    shared_tokens: int = 0
    swapped_tokens: int = 0  # brought back from host memory
    swapped_blocks: int = 0
    recomputed_tokens: int = 0  # had KV before it was preempted, and are computed again
    received_tokens: int = 0  # whose KV came from another engine
    received_blocks: int = 0


class Row(msgspec.Struct, frozen=True, gc=False):
    """One request's part of a step's batch.

    `context` is the tokens whose KV exists after the step; `sampled` how many tokens it produced.
    `fork`: computes nothing and draws its first token from the logits of its parent's row.
    `held`: finished in a static batch, still computed as padding until the batch ends.
    The blocks it wrote, those at [context - tokens, context) of its table, are filled up to `context`.
    """

    request: str
    kind: RowKind
    tokens: int
    context: int
    cached: int
    sampled: int


class Preempted(msgspec.Struct, frozen=True):
    """A request lost its blocks and went back into the queue.

    `lost_tokens` had KV that is given up; what it does not find in the cache when it resumes it computes again.
    The seconds are what either way was expected to cost this request by the rates measured so far (None: not
    measured yet): computing or moving what no other request holds.
    """

    request: str
    lost_tokens: int
    by: PreemptedBy = "recompute"
    swapped_blocks: int = 0  # copied to host memory
    recompute_seconds: float | None = None
    swap_seconds: float | None = None


class Left(msgspec.Struct, frozen=True):
    """A request ended. `Record.left`: it is gone; `Record.held`: it keeps its row and memory."""

    request: str
    reason: FinishReason


class Offered(msgspec.Struct, frozen=True):
    """A request's prompt is computed and its first token drawn; it leaves the batch and goes on in another engine. Its
    blocks are kept until that one has them, or until `deadline`."""

    request: str
    lease: str
    tokens: int  # whose KV is offered
    blocks: int
    nbytes: int
    deadline: float


class Receiving(msgspec.Struct, frozen=True):
    """A waiting request has taken blocks; the KV of `tokens` tokens is on its way into `blocks` of them, after the
    `cached_tokens` that were found here. It joins the batch when it has come."""

    request: str
    lease: str
    engine: str  # whose KV it is
    cached_tokens: int
    tokens: int
    blocks: int
    nbytes: int


HAS_ENDED = "the request has ended"  # here, before its blocks had come: nothing is computed here for it


class Transferred(msgspec.Struct, frozen=True):
    """A transfer ended, on this side of it. With an `error` the request, if it lives, has given its blocks back and
    waits to compute what did not come (received), or nobody has asked for the blocks in time (sent)."""

    request: str
    lease: str
    side: Literal["sent", "received"]
    blocks: int
    nbytes: int
    seconds: float  # from Offered or Receiving on
    error: str = ""


class TableChange(msgspec.Struct, frozen=True):
    """A request's block table from index `start` on is now `blocks` (empty: cut off at `start`)."""

    request: str
    start: int
    blocks: tuple[int, ...]


class Copy(msgspec.Struct, frozen=True):
    """Before the step computed, `target` got the KV of block `source`, of which `request` needs `tokens` slots."""

    request: str
    source: int
    target: int
    tokens: int


class Block(msgspec.Struct, frozen=True, gc=False):
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
    """saved_blocks = logical - physical. Token counts are totals since the engine started.

    decoded, copied and evicted tokens are those of first admissions, as `Joined` has them.
    """

    logical_blocks: int = 0  # sum of all block tables' lengths
    physical_blocks: int = 0  # distinct blocks in them
    saved_blocks: int = 0
    saved_bytes: int = 0
    looked_up_tokens: int = 0  # prompt tokens of first admissions
    found_tokens: int = 0
    resumed_looked_up_tokens: int = 0  # the same for requests that come back after preemption
    resumed_found_tokens: int = 0
    decoded_tokens: int = 0
    copied_tokens: int = 0
    evicted_tokens: int = 0
    forked_tokens: int = 0  # prompt tokens that forks share with their parents, never looked up


class Wait(msgspec.Struct, frozen=True):
    """Why the request that would be next still waits.

    `rows`: max_num_seqs run. `tokens`: the step's budget is spent. `blocks`: it needs more blocks than can be had.
    `hole`: it needs that many adjacent ones, and no hole is as long. `batch`: a static batch runs.
    `prefix`: another computes the blocks it would find. `parent`: it is forked once its parent's prompt is computed.
    `share`: under `fair`, its client holds its share of the batch's rows.
    """

    request: str
    cause: WaitCause
    needed_blocks: int = 0
    available_blocks: int = 0
    longest_hole: int = 0  # blocks


class Queue(msgspec.Struct, frozen=True):
    """Requests that wait, the age of the oldest of them since it arrived, in seconds, and why the next one waits."""

    length: int = 0
    oldest_age: float = 0.0
    head: Wait | None = None


class Record(msgspec.Struct, frozen=True, tag="step"):
    """What one step did. A step with no rows tells of changes made while nothing ran, or has a `fault`.

    `blocks` leaves out those that were being filled and still are: their filling follows from `rows`.
    """

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
    copies: tuple[Copy, ...] = ()
    cleared: int = 0  # blocks that the prefix cache was told to forget
    host_blocks: int = 0  # of the swap space, in use
    parts: Parts | None = None  # None: not measured (a GPU), or nothing was computed
    fault: str = ""  # what went wrong in this step, for a person; whoever it cost their answer has left as `error`
    offered: tuple[Offered, ...] = ()
    receiving: tuple[Receiving, ...] = ()
    transferred: tuple[Transferred, ...] = ()


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
    first_token: float | None  # when it arrived, if it came with generated tokens
    allocation: Allocation | None  # None while it waits
    reason: FinishReason | None  # why it ended, while it is held
    table: tuple[int, ...]
    parent: str | None = None  # while it waits to be forked
    priority: int = 0
    swapped_tokens: int = 0  # whose KV waits in host memory


class Counters(msgspec.Struct, frozen=True):
    """Totals since the engine started."""

    steps: int = 0  # records with at least one row
    prefill_tokens: int = 0
    decode_tokens: int = 0
    held_tokens: int = 0
    sampled_tokens: int = 0
    preemptions: int = 0
    swap_preemptions: int = 0  # of those, by swap
    stopped: int = 0
    length_capped: int = 0
    aborted: int = 0
    failed: int = 0
    expired: int = 0
    forks: int = 0
    copied_blocks: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    recomputed_tokens: int = 0
    handed_over: int = 0  # requests that go on in another engine
    received: int = 0  # requests whose KV came from another engine
    received_tokens: int = 0
    received_blocks: int = 0
    transfers_failed: int = 0  # on either side


# The counter of each way to end.
ENDINGS: dict[FinishReason, str] = {
    "stop": "stopped",
    "length": "length_capped",
    "abort": "aborted",
    "error": "failed",
    "deadline": "expired",
    "handed_over": "handed_over",
}


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """The whole state after record `seq` (0: before the first). Blocks that are free are not listed.

    Requests come in the order of their arrival, those that hold blocks before those that wait.
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
    host_blocks: int = 0


class Gap(msgspec.Struct, frozen=True, tag="gap"):
    """Records `first` to `last` were dropped for this reader: read a snapshot again."""

    first: int
    last: int


class LiveRequest(msgspec.Struct, frozen=True):
    """One request that lives, in short."""

    request: str
    status: RequestStatus
    prompt_tokens: int
    num_tokens: int
    computed_tokens: int
    blocks: int  # in its table


class LiveRequests(msgspec.Struct, frozen=True):
    """Those that live after record `seq`, in a snapshot's order, and how many have each status."""

    seq: int
    waiting: int
    running: int
    held: int
    requests: tuple[LiveRequest, ...]
    sending: int = 0
    receiving: int = 0


class RequestText(msgspec.Struct, frozen=True):
    """A live request's tokens from place `first` on, after record `seq`: its prompt, then what it generated.

    `texts[i]` is what the token at `first + i` adds to the text; put together they are the text. A character of which
    a token has only some bytes is told with the token that completes it. There are `first + len(tokens)` tokens in
    all: where more were asked to be left out, `first` is that number. A beam of a search may go on from another's
    tokens at any step, so all that it generated is told every time.
    """

    seq: int
    request: str
    prompt_tokens: int
    first: int
    tokens: tuple[int, ...]
    texts: tuple[str, ...]


class BlockText(msgspec.Struct, frozen=True):
    """The tokens whose KV is in a block's filled slots after record `seq`; texts are as in `RequestText`.

    The hashes are the beginnings of those by which the prefix cache finds the block, and the block before it. None:
    it does not know the block, or (`parent_hash` alone) the block begins a prompt that has no salt. A free block has no
    tokens.
    """

    seq: int
    block: int
    hash: str | None
    parent_hash: str | None
    tokens: tuple[int, ...]
    texts: tuple[str, ...]


class LoadLatency(msgspec.Struct, frozen=True):
    """A latency as a load generator measured it, in seconds, of so many requests.

    None: it has measured none yet, or the percentile falls among those that failed, which count as infinitely slow.
    """

    p50: Measured | None = None
    p99: Measured | None = None
    requests: Amount = 0


class LoadRun(msgspec.Struct, frozen=True):
    """What a load generator tells of its run: all of it counted or measured by itself, since the run's beginning.

    Turns become due, wait for a slot of the client's (`queued`), are `sent`, then in flight, and end as completed or
    failed. Latencies count from sending, `_scheduled` ones from the moment that the turn was due.
    """

    label: Words
    trace: Words
    elapsed: Measured  # seconds
    share: Annotated[float, msgspec.Meta(ge=0, le=1)]  # of the run that is done
    sessions: Amount  # to be played
    sessions_done: Amount
    turns: Amount
    due: Amount
    queued: Amount
    sent: Amount
    in_flight: Amount
    completed: Amount
    failed: Amount  # also those never sent because an earlier one failed
    output_tokens: Amount  # of completed turns
    speed: Measured  # trace seconds in a second
    ttft: LoadLatency
    ttft_scheduled: LoadLatency
    tpot: LoadLatency
    e2e: LoadLatency
    e2e_scheduled: LoadLatency
    left: Measured | None = None  # seconds to the end if it goes on like this
    send_lag: Measured | None = None  # seconds that turns were sent after they were due, at p99
    loop_lag: Measured | None = None  # seconds that its event loop woke late, at p99
    cpu_share: Measured = 0.0  # of a core, in its busiest process
    bottleneck: bool = False  # it was too slow itself to measure by
    failure: Words = ""  # the most frequent kind, and what the first of it said
    stopping: Words = ""  # why it ends early


class LiveLoad(msgspec.Struct, frozen=True):
    """A load generator that plays against this engine, and what it told `age` seconds ago."""

    id: str
    age: float
    run: LoadRun


class LiveLoads(msgspec.Struct, frozen=True):
    """Those that were heard of lately, in the order in which they were first heard of."""

    loads: tuple[LiveLoad, ...]


StreamItem = Record | Gap | Snapshot

encode = msgspec.json.Encoder().encode
decode_item = msgspec.json.Decoder(StreamItem).decode
decode_snapshot = msgspec.json.Decoder(Snapshot).decode
decode_request_text = msgspec.json.Decoder(RequestText).decode
decode_block_text = msgspec.json.Decoder(BlockText).decode
decode_loads = msgspec.json.Decoder(LiveLoads).decode


def block_state(references: int, filled: int, hashed: bool, block_size: int) -> BlockState:
    """Derive a block's state; the one place that says what the states mean."""
    if references == 0:
        return "cached" if hashed else "free"
    if references > 1:
        return "shared"
    if filled == 0:
        return "reserved"
    return "full" if filled == block_size else "filling"


def counted(counters: Counters, record: Record) -> Counters:
    """The totals with one more record in them; the one place that says what they count."""
    counts: dict[str, int] = msgspec.structs.asdict(counters)
    rows = record.rows
    others = [row for row in rows if row.kind != "decode" or not row.sampled]  # few, in a large batch
    counts["steps"] += bool(rows)
    counts["decode_tokens"] += len(rows) - len(others)
    counts["sampled_tokens"] += len(rows) - len(others)
    for row in others:
        if row.kind != "fork":
            counts[f"{row.kind}_tokens"] += row.tokens
        counts["sampled_tokens"] += row.sampled
    counts["copied_blocks"] += len(record.copies)
    for lost in record.preempted:
        counts["preemptions"] += 1
        counts["swap_preemptions"] += lost.by == "swap"
        counts["swapped_out_blocks"] += lost.swapped_blocks
    for joined in record.joined:
        counts["forks"] += joined.parent is not None
        counts["swapped_in_blocks"] += joined.swapped_blocks
        counts["recomputed_tokens"] += joined.recomputed_tokens
        counts["received"] += bool(joined.received_blocks)
        counts["received_tokens"] += joined.received_tokens
        counts["received_blocks"] += joined.received_blocks
    counts["transfers_failed"] += sum(bool(one.error) for one in record.transferred)
    for ended in (*record.held, *record.left):
        counts[ENDINGS[ended.reason]] += 1
    return Counters(**counts)
