"""What must hold after every step (shared/reference/engine-traps.md): checked in tests and by --check-invariants."""

from __future__ import annotations

from collections import Counter

from engine.block_pool import IllegalState
from engine.plan import StepPlan
from engine.scheduler import Scheduler


class InvariantViolated(IllegalState):
    """The engine's books do not agree with each other."""


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantViolated(what)


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """Before a step runs: every slot is written once, into a block that one request owns and none can find, and no
    move reads what another one of its stage writes."""
    pool = scheduler.kv.pool
    written: set[int] = set()
    for row in plan.rows:
        slots = [slot for slot in row.slots(pool.block_size) if slot >= 0]
        _require(written.isdisjoint(slots) and len(set(slots)) == len(slots), "a slot is written twice in a step")
        written.update(slots)
    for block in {slot // pool.block_size for slot in written}:
        _require(pool.references[block] == 1, f"block {block} is written and has not exactly one owner")
        _require(block not in pool.cache, f"block {block} is written and published")
    copied_to, brought_to = [copy.target for copy in plan.copies], [target for _, target in plan.swap_in]
    targets = [*copied_to, *brought_to]
    _require(len(set(targets)) == len(targets), "a block is moved into twice in a step")
    _require({copy.source for copy in plan.copies}.isdisjoint(copied_to), "a block is copied from and into")
    _require(all(pool.references[block] for block in targets), "a block is moved into that nobody holds")
    hosts = [host for _, host in plan.swap_out]
    _require(len(set(hosts)) == len(hosts), "a host block is moved into twice in a step")
    pins = Counter(copy.source for copy in plan.copies)
    _require(pins == pool.pins, "the blocks that are pinned are not those that copies read")


def check_state(scheduler: Scheduler) -> None:
    """Between steps: references are tables, hashes are of full blocks, nothing is lost and nothing counted twice."""
    _check_pool(scheduler)
    _check_tables(scheduler)
    _check_host(scheduler)
    _check_beams(scheduler)
    _check_hand_over(scheduler)
    waiting, running, unforked = list(scheduler.waiting), scheduler.running, list(scheduler.unforked)
    handed = (*scheduler.hand_over.receiving, *scheduler.hand_over.sending.values())
    every = (*waiting, *running, *unforked, *handed)
    listed = {request.id for request in every}
    _require(len(listed) == len(every), "a request is in two lists")
    _require(listed == scheduler.requests.keys(), "a request is in no list")
    _require(all(r.allocation is None and not r.table for r in (*waiting, *unforked)), "a waiting one holds blocks")
    _require(all(r.allocation is not None for r in running), "a running request was not admitted")
    _require(scheduler.held.keys() == {r for r in running if r.reason is not None}, "the held requests are others")
    _require(all(r.parent is not None and r in r.parent.children for r in unforked), "a child has no parent")


def _check_pool(scheduler: Scheduler) -> None:
    pool = scheduler.kv.pool
    held = Counter(block for request in scheduler.requests.values() for block in request.table)
    queued = set(pool.queue)
    _require(not pool.pins, "a block is pinned between steps")
    _require(len(queued) == len(pool.queue), "the free queue has lost its count")
    for block in range(pool.num_blocks):
        references, filled = pool.references[block], pool.filled[block]
        _require(references == held[block], f"block {block}: {references} references, in {held[block]} tables")
        _require((references == 0) == (block in queued), f"block {block} is held and queued, or neither")
        _require(pool.is_available(block) == (block in queued), f"block {block} is not where runs are looked for")
        if block in pool.cache:
            _require(filled == pool.block_size, f"block {block} is published and not full")
            _require(block in pool.cache.by_hash[pool.cache.contents[block].hash], f"block {block} cannot be found")
            _require(block in pool.cache.beginning_with(block), f"the beginning of block {block} cannot be found")
        elif references == 0:
            _require(filled == 0, f"block {block} is free and not empty")
    _require(pool.logical == sum(held.values()), "the count of references is wrong")
    _require(pool.held_slots_filled == sum(pool.filled[block] for block in held), "the count of filled slots is wrong")
    found = sum(len(blocks) for blocks in pool.cache.by_hash.values())
    _require(found == len(pool.cache), "the hash index has stale entries")


def _check_tables(scheduler: Scheduler) -> None:
    """Each block is filled as far as its request is computed, all that hold it have the same tokens up to there, and
    its hash, if it has one, is the chain over them."""
    pool = scheduler.kv.pool
    size = pool.block_size
    contents: dict[int, list[int]] = {}
    for request in scheduler.requests.values():
        hashes = request.true_hashes(size)
        _require(request.num_computed <= request.num_tokens, f"{request.id}: computed more than it has")
        _require(request.num_computed <= len(request.table) * size, f"{request.id}: computed beyond its table")
        for index, block in enumerate(request.table):
            expected = min(size, max(0, request.num_computed - index * size))
            _require(pool.filled[block] == expected, f"{request.id}: block {block} is not filled as computed")
            tokens = list(request.tokens[: index * size + expected])
            _require(contents.setdefault(block, tokens) == tokens, f"block {block} is shared by different tokens")
            if block in pool.cache:
                _require(pool.cache.contents[block].hash == hashes[index], f"block {block} has another's hash")


def _check_host(scheduler: Scheduler) -> None:
    host = scheduler.kv.host
    held = Counter(block for request in scheduler.requests.values() for block in request.host_table)
    _require(host.references == [held[block] for block in range(host.num_blocks)], "host blocks are lost")
    _require(host.num_used == len(held), "the host pool has lost its count")
    contents: dict[int, list[int]] = {}
    for request in scheduler.requests.values():
        size = scheduler.kv.block_size
        for index, block in enumerate(request.host_table):
            tokens = list(request.tokens[: min((index + 1) * size, request.num_swapped)])
            _require(contents.setdefault(block, tokens) == tokens, f"host block {block} is shared by different tokens")
        expected = -(-request.num_swapped // size)
        _require(len(request.host_table) == expected, f"{request.id}: host blocks and swapped tokens disagree")


def _check_beams(scheduler: Scheduler) -> None:
    """The beams of one search have equally many tokens and are admitted and preempted together."""
    for request in scheduler.requests.values():
        group = request.beams
        if group is None or request in scheduler.unforked:
            continue
        _require(request in group.members, f"{request.id} is no member of its own search")
        _require(len({member.num_tokens for member in group.members}) == 1, f"the beams of {request.id} differ")
        _require(len({member.status for member in group.members}) == 1, f"some beams of {request.id} wait")


def _check_hand_over(scheduler: Scheduler) -> None:
    """Blocks that others read or that are being filled change for nobody; who waits for an offer has not taken any."""
    pool, size, hand_over = scheduler.kv.pool, scheduler.kv.block_size, scheduler.hand_over
    for request in scheduler.requests.values():
        name, incoming, outgoing = request.id, request.incoming, request.outgoing
        receives = incoming is not None and incoming.since is not None
        _require((request in hand_over.receiving) == receives, f"{name} has blocks to be filled, and does not receive")
        _require((request.status == "receiving") == receives, f"{name} receives and has another status")
        _require((request.status == "sending") == (outgoing is not None), f"{name} sends and has another status")
        _require(incoming is None or outgoing is None, f"{name} is sent and received at once")
        if incoming is not None and not receives:
            _require(request in scheduler.waiting, f"{name} was offered KV and does not wait")
        elif incoming is not None:
            found = request.num_computed
            _require(found % size == 0 and found == request.cached, f"{name} has more than it found")
            _require(len(request.table) == -(-incoming.tokens // size), f"{name} receives into other blocks")
            for block in request.table[found // size :]:
                _require(pool.references[block] == 1, f"block {block} is received into and shared")
                _require(block not in pool.cache, f"block {block} is received into and published")
        elif outgoing is not None:
            _require(hand_over.sending.get(outgoing.lease) is request, f"{name} sends under another lease")
            _require(request.reason is not None, f"{name} is sent and goes on here")
            _require(request.num_computed == outgoing.tokens, f"{name} has other tokens than it offered")
            _require(tuple(request.table) == outgoing.blocks, f"{name} has other blocks than it offered")
            _require(all(map(pool.references.__getitem__, outgoing.blocks)), f"a block of {name} is free")
    for request in scheduler.unforked:
        _require(request.incoming is None, f"{request.id} is to be forked and was offered KV")
