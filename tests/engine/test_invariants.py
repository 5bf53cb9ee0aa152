"""A check that cannot fail checks nothing: each is shown a state that breaks it and no check before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.core import EngineCore
from engine.invariants import InvariantViolated, check_plan, check_state
from engine.plan import StepPlan
from engine.protocol import Control, Copy
from engine.sampling_params import BeamParams
from tests.engine.mirror import greedy, mirror_core

ENDLESS = {"ignore_eos": True}


def running_core() -> EngineCore:
    """One that runs with two full blocks and a tail, two forks that share all theirs, and a cached block."""
    core = mirror_core(24, 4, 24, Control(preempt="swap"), num_host_blocks=8)
    core.add("gone", [9] * 4, greedy(1))
    core.step()
    core.add("a", list(range(10)), greedy(9, **ENDLESS))
    core.add("b", [7] * 6, greedy(9, **ENDLESS), siblings=["c"])
    core.step()
    return core


def named(core: EngineCore, name: str) -> Any:
    return core.scheduler.requests[name]


def swapped(core: EngineCore) -> None:
    """Move b and c, which share, to host memory."""
    core.scheduler.preempt(named(core, "b"))
    core.scheduler.preempt(named(core, "c"))
    core.scheduler.kv.settle()


def pin(core: EngineCore) -> None:
    core.pool.pin(named(core, "a").table[0])


def lengthen_the_queue(core: EngineCore) -> None:
    core.pool.queue._length += 1


def refer_once_more(core: EngineCore) -> None:
    core.pool.references[named(core, "a").table[0]] += 1


def take_from_the_queue(core: EngineCore) -> None:
    core.pool.queue.remove(core.pool.queue.first())


def hide_from_runs(core: EngineCore) -> None:
    core.pool._available[core.pool.queue.first()] = 0


def empty_a_cached_block(core: EngineCore) -> None:
    (block,) = core.pool.cache.by_hash[named(core, "a").block_hashes[0]]
    core.pool.filled[block] = 3


def index_another_block(core: EngineCore) -> None:
    core.pool.cache.by_hash[named(core, "a").block_hashes[0]] = {23: None}


def lose_a_beginning(core: EngineCore) -> None:
    block = named(core, "a").table[0]
    contents = core.pool.cache.contents[block]
    core.pool.cache._beginnings[contents.parent, contents.tokens[0]] = {23: None}


def fill_a_free_block(core: EngineCore) -> None:
    core.pool.filled[core.pool.queue.first()] = 1


def miscount_references(core: EngineCore) -> None:
    core.pool.logical += 1


def miscount_filled_slots(core: EngineCore) -> None:
    core.pool.held_slots_filled -= 1


def index_what_is_gone(core: EngineCore) -> None:
    core.pool.cache.by_hash[b"stale"] = {23: None}


def compute_more_than_there_is(core: EngineCore) -> None:
    named(core, "a").num_computed = 99


def compute_beyond_the_table(core: EngineCore) -> None:
    request = named(core, "a")
    request.tokens += [1] * 9
    request.num_computed = 13


def compute_without_filling(core: EngineCore) -> None:
    named(core, "a").num_computed -= 1


def change_a_shared_token(core: EngineCore) -> None:
    named(core, "c").tokens[0] = 8


def publish_under_another_hash(core: EngineCore) -> None:
    block = named(core, "a").table[0]
    core.pool.cache.add(block, core.pool.cache.forget(block)._replace(hash=b"nonsense"))


def refer_to_a_host_block(core: EngineCore) -> None:
    core.scheduler.kv.host.references[7] += 1


def miscount_host_blocks(core: EngineCore) -> None:
    core.scheduler.kv.host._free.pop()


def change_a_token_shared_on_the_host(core: EngineCore) -> None:
    swapped(core)
    named(core, "c").tokens[0] = 8


def forget_what_was_swapped(core: EngineCore) -> None:
    swapped(core)
    named(core, "b").num_swapped = named(core, "c").num_swapped = 4


def wait_while_running(core: EngineCore) -> None:
    core.scheduler.waiting.add(named(core, "a"))


def be_in_no_list(core: EngineCore) -> None:
    core.scheduler.running.clear()


def wait_with_blocks(core: EngineCore) -> None:
    request = named(core, "a")
    core.scheduler.running.remove(request)
    core.scheduler.waiting.add(request)


def run_without_admission(core: EngineCore) -> None:
    core.add("d", [1], greedy(1))
    request = named(core, "d")
    core.scheduler.waiting.remove(request)
    core.scheduler.running.append(request)


def hold_one_that_runs(core: EngineCore) -> None:
    core.scheduler.held[named(core, "a")] = None


def orphan(core: EngineCore) -> None:
    core.add("d", [1], greedy(1), siblings=["e"])
    named(core, "d").children.clear()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (pin, "pinned between steps"),
        (lengthen_the_queue, "free queue has lost its count"),
        (refer_once_more, "2 references, in 1 tables"),
        (take_from_the_queue, "held and queued, or neither"),
        (hide_from_runs, "not where runs are looked for"),
        (empty_a_cached_block, "published and not full"),
        (index_another_block, "cannot be found"),
        (lose_a_beginning, "the beginning of block"),
        (fill_a_free_block, "free and not empty"),
        (miscount_references, "count of references is wrong"),
        (miscount_filled_slots, "count of filled slots is wrong"),
        (index_what_is_gone, "stale entries"),
        (compute_more_than_there_is, "computed more than it has"),
        (compute_beyond_the_table, "computed beyond its table"),
        (compute_without_filling, "not filled as computed"),
        (change_a_shared_token, "shared by different tokens"),
        (publish_under_another_hash, "another's hash"),
        (refer_to_a_host_block, "host blocks are lost"),
        (miscount_host_blocks, "host pool has lost its count"),
        (change_a_token_shared_on_the_host, "host block 0 is shared by different tokens"),
        (forget_what_was_swapped, "host blocks and swapped tokens disagree"),
        (wait_while_running, "in two lists"),
        (be_in_no_list, "in no list"),
        (wait_with_blocks, "a waiting one holds blocks"),
        (run_without_admission, "was not admitted"),
        (hold_one_that_runs, "the held requests are others"),
        (orphan, "a child has no parent"),
    ],
)
def test_a_broken_state_is_noticed(broken: Callable[[EngineCore], None], message: str):
    core = running_core()
    check_state(core.scheduler)
    broken(core)
    with pytest.raises(InvariantViolated, match=message):
        check_state(core.scheduler)


def test_a_swapped_state_is_sound():
    core = running_core()
    swapped(core)
    check_state(core.scheduler)
    assert core.scheduler.kv.host.num_used == 2


def searching_core() -> EngineCore:
    core = mirror_core(24, 4, 24, Control(preempt="swap"), num_host_blocks=16)
    core.add("a", [1] * 6, greedy(9, beam=BeamParams(2), **ENDLESS), siblings=["a.1"])
    core.step()
    core.step()
    check_state(core.scheduler)
    return core


def forget_a_member(core: EngineCore) -> None:
    named(core, "a").beams.members.pop()


def lengthen_a_beam(core: EngineCore) -> None:
    named(core, "a").tokens.append(1)


def preempt_one_beam(core: EngineCore) -> None:
    scheduler, beam = core.scheduler, named(core, "a.1")
    scheduler.running.remove(beam)
    scheduler.kv.free(beam)
    scheduler.waiting.add(beam)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (forget_a_member, "no member of its own search"),
        (lengthen_a_beam, "the beams of a.* differ"),
        (preempt_one_beam, "some beams of a.* wait"),
    ],
)
def test_broken_beams_are_noticed(broken: Callable[[EngineCore], None], message: str):
    core = searching_core()
    broken(core)
    with pytest.raises(InvariantViolated, match=message):
        check_state(core.scheduler)


# Plans


def planned() -> tuple[EngineCore, StepPlan]:
    """A step of two decodes whose shared tail is copied, with one decode beside them."""
    core = running_core()
    plan = core.scheduler.plan(core.clock())
    check_plan(core.scheduler, plan)
    assert len(plan.copies) == 1
    return core, plan


def row_of(plan: StepPlan, name: str) -> Any:
    return next(row for row in plan.rows if row.request_id == name)


def test_one_slot_is_written_once_in_a_step():
    core, plan = planned()
    twice = msgspec.structs.replace(plan, rows=(*plan.rows, row_of(plan, "a")))
    with pytest.raises(InvariantViolated, match="slot is written twice"):
        check_plan(core.scheduler, twice)


def test_two_requests_do_not_write_the_same_slot():
    # Trap 11.
    core, plan = planned()
    named(core, "c").table[-1] = named(core, "b").table[-1]
    with pytest.raises(InvariantViolated, match="slot is written twice"):
        check_plan(core.scheduler, plan)


def test_a_block_with_two_holders_is_not_written():
    # Trap 11.
    core, plan = planned()
    core.pool.references[named(core, "a").table[-1]] += 1
    with pytest.raises(InvariantViolated, match="has not exactly one owner"):
        check_plan(core.scheduler, plan)


def test_a_block_that_can_be_found_is_not_written():
    # Trap 3.
    core, plan = planned()
    cache = core.pool.cache
    known = cache.contents[named(core, "a").table[0]]
    cache.add(named(core, "a").table[-1], known._replace(hash=b"too early"))
    with pytest.raises(InvariantViolated, match="is written and published"):
        check_plan(core.scheduler, plan)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        (lambda plan: {"copies": plan.copies * 2}, "moved into twice"),
        (lambda plan: {"swap_in": ((0, plan.copies[0].target),)}, "moved into twice"),
        (lambda plan: {"copies": (*plan.copies, Copy("a", plan.copies[0].target, 0, 1))}, "copied from and into"),
        (lambda plan: {"swap_in": ((0, 23),)}, "that nobody holds"),
        (lambda plan: {"swap_out": ((0, 5), (1, 5))}, "host block is moved into twice"),
        (lambda plan: {"copies": ()}, "are not those that copies read"),
    ],
)
def test_moves_that_undo_each_other_are_noticed(moves: Callable[[StepPlan], dict[str, Any]], message: str):
    # Trap 6.
    core, plan = planned()
    with pytest.raises(InvariantViolated, match=message):
        check_plan(core.scheduler, msgspec.structs.replace(plan, **moves(plan)))


def test_an_engine_that_checks_stops_at_the_first_broken_step():
    core = running_core()
    index_what_is_gone(core)
    core.check_invariants = False
    core.step()
    core.check_invariants = True
    with pytest.raises(InvariantViolated, match="stale entries"):
        core.step()
