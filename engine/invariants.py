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
    """Before a step runs: every slot is written once, into a block that one request owns and none can find."""
    pool = scheduler.kv.pool
    written: set[int] = set()
    for row in plan.rows:
        slots = [slot for slot in row.slots(pool.block_size) if slot >= 0]
        _require(written.isdisjoint(slots) and len(set(slots)) == len(slots), "a slot is written twice in a step")
        written.update(slots)
    for block in {slot // pool.block_size for slot in written}:
        _require(pool.references[block] == 1, f"block {block} is written and has not exactly one owner")
        _require(pool.hashes[block] is None, f"block {block} is written and published")


def check_state(scheduler: Scheduler) -> None:
    """Between steps: references are tables, hashes are of full blocks, nothing is lost and nothing counted twice."""
    pool = scheduler.kv.pool
    held = Counter(block for request in scheduler.requests.values() for block in request.table)
    queued = set(pool.queue)
    _require(len(queued) == len(pool.queue), "the free queue has lost its count")
    for block in range(pool.num_blocks):
        references, filled, block_hash = pool.references[block], pool.filled[block], pool.hashes[block]
        _require(references == held[block], f"block {block}: {references} references, in {held[block]} tables")
        _require((references == 0) == (block in queued), f"block {block} is held and queued, or neither")
        if block_hash is not None:
            _require(filled == pool.block_size, f"block {block} is published and not full")
            _require(block in pool.by_hash[block_hash], f"block {block} is published and cannot be found")
        elif references == 0:
            _require(filled == 0, f"block {block} is free and not empty")
        else:
            _require(references == 1, f"block {block} is shared and not published")
    found = sum(len(blocks) for blocks in pool.by_hash.values())
    _require(found == sum(1 for h in pool.hashes if h is not None), "the hash index has stale entries")
    for request in scheduler.requests.values():
        size = pool.block_size
        _require(request.num_computed <= request.num_tokens, f"{request.id}: computed more than it has")
        _require(request.num_computed <= len(request.table) * size, f"{request.id}: computed beyond its table")
        for index, block in enumerate(request.table):
            expected = min(size, max(0, request.num_computed - index * size))
            _require(pool.filled[block] == expected, f"{request.id}: block {block} is not filled as computed")
    waiting, running = scheduler.waiting, scheduler.running
    _require(len(waiting) + len(running) == len(scheduler.requests), "a request is in no list, or in two")
    _require(all(r.allocation is None and not r.table for r in waiting), "a waiting request holds blocks")
    _require(all(r.allocation is not None for r in running), "a running request was not admitted")
