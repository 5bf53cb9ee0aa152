"""What a snapshot and a record must be before anything of them is believed: sound in itself, and one after the other.

The engine's stream is JSON from elsewhere. A block number that is too large would raise somewhere, and a negative one
would quietly be another block: both are found here, in words for a person.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from engine.protocol import Block, Durations, EngineInfo, PoolTotals, Queue, Record, RequestState, Snapshot, WasteLedger
from tui.block_columns import FREE, NAMES, STATES
from tui.fold import EngineFold

MAX_BLOCKS = 8_000_000
MAX_TIME = 1e11  # seconds, on any clock: sums of times stay exact to the microsecond
MAX_COUNT = 1 << 48  # what no count of a sound engine comes near to


class Contradiction(ValueError):
    """The stream says what cannot be."""


def check_engine(engine: EngineInfo) -> None:
    """Raises Contradiction with the name of the field that cannot be."""
    _require(1 <= engine.block_size <= 1 << 20, "engine.block_size", engine.block_size)
    _require(0 <= engine.num_blocks <= MAX_BLOCKS, "engine.num_blocks", engine.num_blocks)
    _require(0 <= engine.num_host_blocks < MAX_COUNT, "engine.num_host_blocks", engine.num_host_blocks)
    _require(0 <= engine.kv_bytes_per_token < MAX_COUNT, "engine.kv_bytes_per_token", engine.kv_bytes_per_token)
    _require(1 <= engine.max_model_len < MAX_COUNT, "engine.max_model_len", engine.max_model_len)
    _require(_is_time(engine.started), "engine.started", engine.started)
    _require(_is_time(engine.started_unix), "engine.started_unix", engine.started_unix)


def check_snapshot(snapshot: Snapshot) -> None:
    """Raises Contradiction, with the field and what it has, unless a fold can start from this."""
    check_engine(snapshot.engine)
    _require(0 <= snapshot.seq < MAX_COUNT, "seq", snapshot.seq)
    _require(_is_time(snapshot.time), "time", snapshot.time)
    _check_totals(snapshot.pool, snapshot.waste, snapshot.queue, snapshot.engine)
    _check_counts(snapshot.sharing, "sharing")
    _check_counts(snapshot.counters, "counters")
    names = {state.request for state in snapshot.requests}
    _require(len(names) == len(snapshot.requests), "requests", "the same one twice")
    for state in snapshot.requests:
        _check_request(state, snapshot.engine.num_blocks)
    logical = sum(len(state.table) for state in snapshot.requests)
    _require(logical == snapshot.sharing.logical_blocks, "sharing.logical_blocks", snapshot.sharing.logical_blocks)
    states, ids = _block_states(snapshot.blocks, snapshot.engine)
    counts = np.bincount(states, minlength=len(NAMES))
    counts[FREE] += snapshot.engine.num_blocks - len(ids)
    _check_pool(snapshot.pool, counts.tolist())


def check_record(record: Record, fold: EngineFold) -> None:
    """Raises Contradiction unless `record`, the next one by its number, can follow the state."""
    engine, requests = fold.engine, fold.requests
    _require(record.time >= fold.time and _is_time(record.time), "time", record.time)
    for name in Durations.__struct_fields__:
        seconds = getattr(record.durations, name)
        _require(0.0 <= seconds < 1e9, f"durations.{name}", seconds)
    _check_totals(record.pool, record.waste, record.queue, engine)
    _check_counts(record.sharing, "sharing")
    for name in record.unreserved:
        _require(name in requests, "unreserved", name)
    lengths: dict[str, int] = {}  # of the tables this record changes; the tables' sum is told by the engine too
    logical = fold.sharing.logical_blocks
    for name in record.released:
        _require(name in requests and name not in lengths, "released", name)
        logical -= len(requests[name].table)
        lengths[name] = 0
    came = {arrived.request for arrived in record.arrived}
    _require(len(came) == len(record.arrived), "arrived", "the same one twice")
    for arrived in record.arrived:
        name = arrived.request
        _require(name not in requests or name in lengths, "arrived", name)
        _require(0 <= arrived.prompt_tokens < MAX_COUNT, "arrived.prompt_tokens", arrived.prompt_tokens)
        _require(_is_time(arrived.time), "arrived.time", arrived.time)
    gone = lengths.keys() - came
    _check_known([lost.request for lost in record.preempted], requests, came, gone, "preempted")
    _check_known([joined.request for joined in record.joined], requests, came, gone, "joined")
    _check_known([held.request for held in record.held], requests, came, gone, "held")
    left = [ended.request for ended in record.left]
    _check_known(left, requests, came, gone, "left")
    _check_known([one.request for one in record.offered], requests, came, gone, "offered")
    _check_known([one.request for one in record.receiving], requests, came, gone, "receiving")
    _check_known([one.request for one in record.transferred], requests, came, gone, "transferred")
    _check_known([row.request for row in record.rows], requests, came, gone, "rows")
    _check_known([change.request for change in record.tables], requests, came, gone, "tables", once=False)
    lengths = dict.fromkeys(came, 0)
    for lost in record.preempted:
        logical -= _length(lost.request, lengths, requests)
        lengths[lost.request] = 0
    for one in record.transferred:
        if one.side == "received" and one.error:
            logical -= _length(one.request, lengths, requests)
            lengths[one.request] = 0
    for joined in record.joined:
        for field in ("cached_tokens", "copied_tokens", "shared_tokens", "swapped_tokens", "received_tokens"):
            _require(0 <= getattr(joined, field) < MAX_COUNT, f"joined.{field}", getattr(joined, field))
    for change in record.tables:
        length = _length(change.request, lengths, requests)
        _require(0 <= change.start <= length, "tables.start", change.start)
        if change.blocks:
            _require(min(change.blocks) >= 0, "tables.blocks", min(change.blocks))
            _require(max(change.blocks) < engine.num_blocks, "tables.blocks", max(change.blocks))
        lengths[change.request] = change.start + len(change.blocks)
        logical += lengths[change.request] - length
    for copy in record.copies:
        for field in ("source", "target"):
            _require(0 <= getattr(copy, field) < engine.num_blocks, f"copies.{field}", getattr(copy, field))
    for name in left:
        logical -= _length(name, lengths, requests)
    _require(logical == record.sharing.logical_blocks, "sharing.logical_blocks", record.sharing.logical_blocks)
    for joined in record.joined:
        if joined.request in left:
            continue  # one that joined and ended at once tells no table
        found = (joined.cached_tokens - joined.copied_tokens) // engine.block_size
        _require(found <= _length(joined.request, lengths, requests), "joined.cached_tokens", joined.cached_tokens)
    for coming in record.receiving:
        _require(0 <= coming.cached_tokens < MAX_COUNT, "receiving.cached_tokens", coming.cached_tokens)
        if coming.request not in left:
            found = coming.cached_tokens // engine.block_size
            length = _length(coming.request, lengths, requests)
            _require(found <= length, "receiving.cached_tokens", coming.cached_tokens)
    limit = engine.max_model_len + engine.block_size
    for row in record.rows:
        if not (0 <= row.tokens <= limit and 0 <= row.context <= limit and 0 <= row.sampled <= limit):
            raise Contradiction(f"rows has {row.tokens} tokens, context {row.context}, sampled {row.sampled}")
    states, ids = _block_states(record.blocks, engine)
    change_of = np.bincount(states, minlength=len(NAMES)) - np.bincount(fold.blocks.state[ids], minlength=len(NAMES))
    before = msgspec.structs.astuple(fold.pool)
    _check_pool(record.pool, [had + more for had, more in zip(before, change_of.tolist(), strict=True)])


def _check_known(
    names: Iterable[str],
    requests: dict[str, RequestState],
    came: set[str],
    gone: set[str],
    where: str,
    once: bool = True,
) -> None:
    seen = 0
    unlike = set()
    for name in names:
        if (name not in requests or name in gone) and name not in came:
            raise Contradiction(f"{where} has {name[:80]!r}, which is not there")
        seen += 1
        unlike.add(name)
    _require(not once or seen == len(unlike), where, "the same one twice")


def _length(name: str, lengths: dict[str, int], requests: dict[str, RequestState]) -> int:
    return lengths[name] if name in lengths else len(requests[name].table)


def _check_request(state: RequestState, blocks: int) -> None:
    for field in ("prompt_tokens", "num_tokens", "computed_tokens", "cached_tokens", "preemptions", "swapped_tokens"):
        _require(0 <= getattr(state, field) < MAX_COUNT, f"requests.{field}", getattr(state, field))
    _require(_is_time(state.arrived), "requests.arrived", state.arrived)
    _require(state.first_token is None or _is_time(state.first_token), "requests.first_token", state.first_token)
    if state.table:
        _require(min(state.table) >= 0, "requests.table", min(state.table))
        _require(max(state.table) < blocks, "requests.table", max(state.table))


def _block_states(blocks: tuple[Block, ...], engine: EngineInfo) -> tuple[np.ndarray, np.ndarray]:
    """The state codes and the ids of some blocks, each [blocks], once they are in the pool and in bounds."""
    count = len(blocks)
    try:
        ids = np.array([block.block for block in blocks], np.int64)
        filled = np.array([block.filled for block in blocks], np.int64)
        references = np.array([block.references for block in blocks], np.int64)
    except OverflowError:
        raise Contradiction("blocks has a number that is larger than any count") from None
    for values, most, field in (
        (ids, engine.num_blocks - 1, "block"),
        (filled, engine.block_size, "filled"),
        (references, (1 << 31) - 1, "references"),
    ):
        if count:
            _require(int(values.min()) >= 0, f"blocks.{field}", int(values.min()))
            _require(int(values.max()) <= most, f"blocks.{field}", int(values.max()))
    _require(len({block.block for block in blocks}) == count, "blocks", "the same one twice")
    return np.array([STATES[block.state] for block in blocks], np.int64), ids


def _check_totals(pool: PoolTotals, waste: WasteLedger, queue: Queue, engine: EngineInfo) -> None:
    _check_counts(pool, "pool")
    _check_counts(waste, "waste")
    _require(waste.held <= engine.num_blocks * engine.block_size, "waste.held", waste.held)
    _require(waste.held == waste.filled + waste.internal, "waste.internal", waste.internal)
    _require(0 <= queue.length < MAX_COUNT, "queue.length", queue.length)
    _require(_is_time(queue.oldest_age), "queue.oldest_age", queue.oldest_age)


def _check_counts(counts: msgspec.Struct, where: str) -> None:
    values = msgspec.structs.astuple(counts)
    if min(values) < 0 or max(values) >= MAX_COUNT:
        name, value = next(
            (name, value)
            for name, value in zip(counts.__struct_fields__, values, strict=True)
            if not 0 <= value < MAX_COUNT
        )
        _require(False, f"{where}.{name}", value)


def _check_pool(pool: PoolTotals, counts: list[int]) -> None:
    """`counts`: the blocks by state that follow from what is told of each."""
    for name, count, told in zip(NAMES, counts, msgspec.structs.astuple(pool), strict=True):
        if count != told:
            raise Contradiction(f"pool.{name} is {told:,}, and {count:,} blocks are {name}")


def _is_time(seconds: float) -> bool:
    return abs(seconds) < MAX_TIME  # neither infinite nor NaN


def _require(holds: bool, field: str, value: object) -> None:
    if not holds:
        raise Contradiction(f"{field} cannot be {str(value)[:80]}")
