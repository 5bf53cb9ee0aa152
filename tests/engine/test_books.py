"""Each quick check is shown a state that breaks it; the state machine (test_core) shows it every sound one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.books import check_books, check_totals
from engine.core import EngineCore
from engine.invariants import InvariantViolated
from engine.request import Request
from tests.engine import test_invariants as broken
from tests.engine.mirror import greedy
from tests.engine.test_invariants import named, running_core


def refer_once_less(core: EngineCore) -> None:
    core.pool.references[named(core, "a").table[0]] -= 1


def refer_to_another(core: EngineCore) -> None:
    """The sum of all references is as it was."""
    core.pool.references[named(core, "a").table[0]] += 1
    core.pool.references[named(core, "b").table[0]] -= 1


def queue_twice(core: EngineCore) -> None:
    queue = core.pool.queue
    queue._next[queue.first()] = queue.first()


def queue_what_is_held(core: EngineCore) -> None:
    core.pool.queue.push_back(named(core, "a").table[0])


def queue_what_is_held_for_another(core: EngineCore) -> None:
    """As many blocks are queued as were."""
    core.pool.queue.remove(core.pool.queue.first())
    core.pool.queue.push_back(named(core, "a").table[0])


def lose_a_block(core: EngineCore) -> None:
    request = named(core, "a")
    request.table.pop()
    request.num_computed = 8


def hold_what_is_queued(core: EngineCore) -> None:
    core.pool.references[core.pool.queue.first()] += 1
    core.pool.logical += 1


def look_for_runs_elsewhere(core: EngineCore) -> None:
    core.pool._available[core.pool.queue.first()] = 0
    core.pool._available[named(core, "a").table[0]] = 1


def hold_a_block_that_is_not(core: EngineCore) -> None:
    named(core, "a").table[0] = -1


def hold_a_block_twice(core: EngineCore) -> None:
    pool, request = core.pool, named(core, "a")
    first, second = request.table[:2]
    request.table[1] = first
    request.block_hashes.clear()
    pool.references[first], pool.references[second] = 2, 0
    pool.held_slots_filled -= 4
    pool.queue.push_back(second)
    pool._available[second] = 1
    pool._changed.add(second)  # or what records have told would not agree


def exchange_hashes(core: EngineCore) -> None:
    """The index has as many entries as were, each under another's hash."""
    by_hash, (first, second) = core.pool.cache.by_hash, named(core, "a").block_hashes[:2]
    by_hash[first], by_hash[second] = by_hash[second], by_hash[first]


def mistake_a_hash(core: EngineCore) -> None:
    request = named(core, "a")
    request.tokens[5] += 1


def find_a_beginning_that_is_gone(core: EngineCore) -> None:
    core.pool.cache._beginnings[b"stale", 1] = {23: None}


def swap_out_for_nobody(core: EngineCore) -> None:
    broken.swapped(core)
    host = core.scheduler.kv.host
    host.references[0], host.references[5] = 1, 1
    host._free.remove(5)


def be_known_by_another_name(core: EngineCore) -> None:
    named(core, "a").id = "z"


def stay_when_ended(core: EngineCore) -> None:
    other = Request("ghost", [1], greedy(1), 0.0, 99)
    core.scheduler.waiting.add(other)


def tell_of_other_totals(core: EngineCore) -> None:
    core.ledger._totals["free"] += 1


TOTALS = [
    (broken.pin, "pinned between steps"),
    (broken.refer_once_more, "block .*: 2 references, in 1 tables"),
    (refer_once_less, "block .*: 0 references, in 1 tables"),
    (hold_what_is_queued, "block .*: 1 references, in 0 tables"),
    (lose_a_block, "block .*: 1 references, in 0 tables"),
    (broken.miscount_references, "tables have .* entries, not"),
    (broken.take_from_the_queue, "held by nobody, and .* are queued"),
    (queue_what_is_held, "held by nobody, and .* are queued"),
    (broken.lengthen_the_queue, "held by nobody, and .* are queued"),
    (broken.hide_from_runs, "free queue has lost its count"),
    (broken.index_what_is_gone, "hash index has .* entries"),
    (find_a_beginning_that_is_gone, "index of beginnings"),
    (broken.refer_to_a_host_block, "host block 7: 1 references, in 0 tables"),
    (broken.miscount_host_blocks, "host pool has lost its count"),
    (broken.wait_while_running, "in two lists"),
    (broken.be_in_no_list, "in no list"),
    (stay_when_ended, "one that has ended is in one"),
    (be_known_by_another_name, "known by another's name"),
    (broken.wait_with_blocks, "waits and holds blocks"),
    (broken.run_without_admission, "was not admitted"),
    (broken.hold_one_that_runs, "the held requests are others"),
    (broken.compute_more_than_there_is, "99 of .* tokens are computed"),
    (broken.compute_beyond_the_table, "13 tokens are computed, in 3 blocks"),
    (broken.compute_without_filling, "filled slots, not"),
    (mistake_a_hash, "a hash is not that of its tokens"),
    (tell_of_other_totals, "records told of"),
    (broken.fill_a_free_block, "slots are filled, not"),
    (broken.miscount_filled_slots, "slots are filled, not"),
]
ENTRIES = [
    (refer_to_another, "block .*: 2 references, in 1 tables"),
    (queue_twice, "links do not agree"),
    (queue_what_is_held_for_another, "is held and queued"),
    (look_for_runs_elsewhere, "looked for among the available ones"),
    (hold_a_block_that_is_not, "a table has block -1"),
    (hold_a_block_twice, "holds a block twice"),
    (exchange_hashes, "cannot be found by its hash"),
    (broken.publish_under_another_hash, "published under another hash"),
    (broken.index_another_block, "cannot be found by its hash"),
    (swap_out_for_nobody, "host block 0: 1 references, in 2 tables"),
]


@pytest.mark.parametrize(("breaking", "message"), TOTALS)
def test_sums_show_what_is_broken(breaking: Callable[[EngineCore], None], message: str):
    core = running_core()
    check_totals(core.scheduler, core.ledger)
    breaking(core)
    with pytest.raises(InvariantViolated, match=message):
        check_totals(core.scheduler, core.ledger)


@pytest.mark.parametrize(("breaking", "message"), ENTRIES)
def test_entries_show_what_sums_do_not(breaking: Callable[[EngineCore], None], message: str):
    core = running_core()
    check_books(core.scheduler, core.ledger)
    breaking(core)
    check_totals(core.scheduler, core.ledger)
    with pytest.raises(InvariantViolated, match=message):
        check_books(core.scheduler, core.ledger)


def test_an_orphan_is_noticed():
    core = running_core()
    core.add("d", [1], greedy(1), siblings=["e"])
    check_books(core.scheduler, core.ledger)  # while news waits, too
    named(core, "e").parent = None
    with pytest.raises(InvariantViolated, match=r"'e'.* is to be forked off nobody"):
        check_totals(core.scheduler, core.ledger)
