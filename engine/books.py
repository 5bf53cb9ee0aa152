"""The engine's books, checked quickly enough for production (`--check-every`): by sums and counts that C code takes.

They are the block tables and what is kept beside them: references, the free queue, filled slots, the prefix cache's
indices, the host pool, the lists of requests. `check_totals` sees whether sums agree, `check_books` whether every entry
does; `engine.invariants` checks more and takes far longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from operator import attrgetter, contains, itemgetter
from typing import TYPE_CHECKING

from engine.block_hash import chain_hash
from engine.block_pool import BlockPool
from engine.host_pool import HostPool
from engine.invariants import InvariantViolated
from engine.ledger import Ledger
from engine.prefix_cache import Contents, PrefixCache
from engine.request import Request

if TYPE_CHECKING:
    from engine.scheduler import Scheduler

Held = Mapping[int, int]  # how many block tables hold each block that any does
_hash = itemgetter(Contents._fields.index("hash"))  # faster than by its name
_id, _table, _host_table = attrgetter("id"), attrgetter("table"), attrgetter("host_table")


def check_books(scheduler: Scheduler, ledger: Ledger) -> None:
    """Raise InvariantViolated, saying what is wrong, if any entry of the books is. Call it between two steps."""
    check_totals(scheduler, ledger)
    pool, requests = scheduler.kv.pool, scheduler.requests.values()
    held = _held(map(_table, requests), pool.num_blocks, "block")
    _check_references(pool.references, held, "block")
    _require(pool.queue.is_linked(), "the free queue is broken: its links do not agree")
    _require(not pool.queue.has_any(held), "a block is held and queued")
    _require(not pool.is_any_available(held), "a block is held and looked for among the available ones")
    _check_filled(pool, held)
    _check_index(pool.cache)
    _check_host(scheduler.kv.host, requests)
    hand_over = scheduler.hand_over
    for request in (*scheduler.running, *hand_over.receiving, *hand_over.sending.values()):
        if request.incoming is not None or request.outgoing is not None:  # else `check_totals` has seen to it
            _check_end(pool, request)
        _require(len(set(request.table)) == len(request.table), f"{request.id} holds a block twice")
        for block_hash, found in zip(request.block_hashes, map(pool.cache.contents.get, request.table), strict=False):
            if found is not None and found.hash != block_hash:
                raise InvariantViolated(f"{request.id}: a block of its table is published under another hash")


def check_totals(scheduler: Scheduler, ledger: Ledger) -> None:
    """The same of what takes next to no time: sums and counts, the lists of requests, and the end of what each holds
    that runs."""
    kv, requests = scheduler.kv, scheduler.requests.values()
    pool, cache, host = kv.pool, kv.pool.cache, kv.host
    _require(not pool.pins, "a block is pinned between steps")
    entries = sum(map(len, map(_table, requests)))
    if sum(pool.references) != entries:  # which block it is takes longer to find
        _check_references(pool.references, _held(map(_table, requests), pool.num_blocks, "block"), "block")
    _require(pool.logical == entries, f"tables have {entries} entries, not {pool.logical}")
    free, queued = pool.references.count(0), len(pool.queue)
    _require(free == queued, f"{free} of {pool.num_blocks} blocks are held by nobody, and {queued} are queued")
    _require(pool.queue.is_counted() and pool.num_findable == queued, "the free queue has lost its count")
    found, published = sum(map(len, cache.by_hash.values())), len(cache)
    _require(found == published, f"the hash index has {found} entries for {published} published blocks")
    # Either all have tokens to be found by their beginning, or none has.
    beginnings = published if any(contents.tokens for contents in islice(cache.contents.values(), 1)) else 0
    _require(cache.num_beginnings == beginnings, "the index of beginnings has stale entries, or has lost some")
    if sum(host.references) != sum(map(len, map(_host_table, requests))):
        _check_host(host, requests)
    _require(host.num_free == host.references.count(0), "the host pool has lost its count")
    _check_lists(scheduler)
    for request in scheduler.running:
        _check_end(pool, request)
    if not pool.has_changes:  # or the next record will tell of them
        told = ledger.pool
        _require(told.free + told.cached == queued, f"records told of {told.free + told.cached} blocks as available")
        slots = pool.held_slots_filled + told.cached * pool.block_size
        _require(sum(pool.filled) == slots, f"{sum(pool.filled)} slots are filled, not {slots}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantViolated(what)


def _held(tables: Iterable[list[int]], num_blocks: int, what: str) -> Held:
    held = Counter(chain.from_iterable(tables))
    if held and not 0 <= min(held) <= max(held) < num_blocks:
        raise InvariantViolated(f"a table has {what} {min(held)} or {max(held)}, and the last one is {num_blocks - 1}")
    return held


def _check_references(references: list[int], held: Held, what: str) -> None:
    """Each block has as many references as tables hold it, and no other has any."""
    free = len(references) - len(held)
    if list(map(references.__getitem__, held)) != list(held.values()) or references.count(0) != free:
        for block, count in enumerate(references):
            _require(count == held.get(block, 0), f"{what} {block}: {count} references, in {held.get(block, 0)} tables")


def _check_filled(pool: BlockPool, held: Held) -> None:
    """What is published is full, and what is free is empty."""
    filled, published, size = pool.filled, pool.cache.contents, pool.block_size
    slots = sum(map(filled.__getitem__, held))
    _require(pool.held_slots_filled == slots, f"{slots} slots of held blocks are filled, not {pool.held_slots_filled}")
    _require({size}.issuperset(map(filled.__getitem__, published)), "a block is published and not full")
    idle = len(published) - sum(map(published.__contains__, held))
    _require(sum(filled) == slots + idle * size, "a block is free and not empty")


def _check_index(cache: PrefixCache) -> None:
    """Each published block is found under its own hash; that nothing else is, the count has shown."""
    published = cache.contents
    try:
        right = all(map(contains, map(cache.by_hash.__getitem__, map(_hash, published.values())), published))
    except KeyError:
        right = False
    _require(right, "a published block cannot be found by its hash")


def _check_host(host: HostPool, requests: Iterable[Request]) -> None:
    held = _held((request.host_table for request in requests if request.host_table), host.num_blocks, "host block")
    _check_references(host.references, held, "host block")


def _check_lists(scheduler: Scheduler) -> None:
    """Each request waits, runs, is to be forked, or is on its way from or to another engine; only those that wait or
    are to be forked hold no blocks."""
    requests, running, hand_over = scheduler.requests, scheduler.running, scheduler.hand_over
    idle = [*scheduler.waiting, *scheduler.unforked]
    listed = {*idle, *running, *hand_over.receiving, *hand_over.sending.values()}
    lengths = len(idle) + len(running) + len(hand_over.receiving) + len(hand_over.sending)
    _require(len(listed) == lengths, "a request is in two lists")
    _require(listed == set(requests.values()), "a request is in no list, or one that has ended is in one")
    _require(list(map(_id, requests.values())) == list(requests), "a request is known by another's name")
    for request in idle:
        _require(request.allocation is None and not request.table, f"{request.id} waits and holds blocks")
    receiving = {r for r in requests.values() if r.incoming is not None and r.allocation is not None}
    _require(hand_over.receiving.keys() == receiving, "those that receive are others")
    leases = {r.outgoing.lease: r for r in requests.values() if r.outgoing is not None}
    _require(hand_over.sending == leases, "those that send are others")
    _require(scheduler.held.keys() == {r for r in running if r.reason is not None}, "the held requests are others")
    orphans = [child.id for child in scheduler.unforked if child.parent is None or child.parent not in listed]
    _require(not orphans, f"{orphans[:1]} is to be forked off nobody")


def _check_end(pool: BlockPool, request: Request) -> None:
    """Its table has room for what is computed, its last block is filled so far, and its last hash is that of its
    tokens: each block's is the last for a while."""
    name, table, computed, size = request.id, request.table, request.num_computed, pool.block_size
    hashes = request.block_hashes
    _require(request.allocation is not None, f"{name} holds blocks and was not admitted")
    _require(0 <= computed <= request.num_tokens, f"{name}: {computed} of {request.num_tokens} tokens are computed")
    _require(computed <= len(table) * size, f"{name}: {computed} tokens are computed, in {len(table)} blocks")
    full, used = divmod(computed, size)
    if used:
        filled = pool.filled[table[full]]
        _require(filled == used, f"{name}: block {table[full]} has {filled} filled slots, not {used}")
    last = min(full, len(hashes)) - 1
    if last >= request.num_given_hashes:
        parent = hashes[last - 1] if last else request.root
        tokens = request.tokens[last * size : (last + 1) * size]
        _require(hashes[last] == chain_hash(parent, tokens), f"{name}: a hash is not that of its tokens")
