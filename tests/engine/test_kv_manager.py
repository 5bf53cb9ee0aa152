from typing import Any

import pytest

from engine.block_pool import BlockPool, IllegalState
from engine.host_pool import HostPool
from engine.kv_manager import NOTHING, KVManager, Loss, blocks_for
from engine.request import Request
from engine.sampling_params import SchedulingParams
from tests.engine.mirror import greedy


def request(name: str, prompt: list[int], **settings: Any) -> Request:
    return Request(name, prompt, greedy(8), 0.0, 0, **settings)


def computed(kv: KVManager, req: Request, tokens: int) -> Request:
    kv.admit_paged([req], [kv.cached_prefix(req)], publish=True)
    assert kv.grow(req, tokens)
    kv.settle()
    kv.commit(req, tokens - req.num_computed, publish=True)
    return req


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (70, 5)])
def test_blocks_for(tokens, blocks):
    assert blocks_for(tokens, 16) == blocks


def test_a_wholly_cached_prompt_leaves_one_token_to_compute():
    # Trap 1: the last block is copied but for its last token.
    kv = KVManager(BlockPool(16, 4), 64)
    computed(kv, request("a", list(range(8))), 8)
    found = kv.cached_prefix(request("b", list(range(8))))
    assert (len(found.blocks), found.partial, found.tokens(4)) == (1, 3, 7)
    whole = KVManager(BlockPool(16, 4), 64, partial_hits=False)
    computed(whole, request("a", list(range(8))), 8)
    assert whole.cached_prefix(request("b", list(range(8)))).tokens(4) == 4
    assert whole.cached_prefix(request("c", list(range(9)))).tokens(4) == 8


def test_a_prefix_is_found_up_to_the_first_token_that_differs():
    kv = KVManager(BlockPool(16, 4), 64)
    first = computed(kv, request("a", list(range(12))), 12)
    found = kv.cached_prefix(request("b", [0, 1, 2, 3, 4, 5, 9, 9, 8]))
    assert (found.blocks, found.partial, found.source) == ((first.table[0],), 2, first.table[1])


def test_a_partial_hit_copies_the_block_and_pins_it_for_the_step():
    kv = KVManager(BlockPool(16, 4), 64)
    first = computed(kv, request("a", list(range(8))), 8)
    branch = request("b", [0, 1, 2, 3, 4, 5, 9])
    kv.admit_paged([branch], [kv.cached_prefix(branch)], publish=True)
    (copy,) = kv.take_moves().copies
    assert (copy.request, copy.source, copy.target, copy.tokens) == ("b", first.table[1], branch.table[1], 2)
    assert branch.num_computed == branch.cached == 6
    assert kv.pool.pins == {first.table[1]: 1}
    kv.settle()
    assert not kv.pool.pins
    assert kv.take_moves().copies == ()


def test_the_tail_of_one_that_runs_is_found_and_copied():
    kv = KVManager(BlockPool(16, 4), 64)
    first = computed(kv, request("a", list(range(7))), 6)  # two tokens in its second block
    found = kv.cached_prefix(request("b", [0, 1, 2, 3, 4, 5, 6, 7]))
    assert (found.blocks, found.partial, found.source) == ((first.table[0],), 2, first.table[1])


def test_a_block_that_gets_its_contents_in_this_step_is_not_copied_from():
    kv = KVManager(BlockPool(16, 4), 64)
    computed(kv, request("a", list(range(8))), 8)
    for name in ("b", "c"):
        branch = request(name, [0, 1, 2, 3, 4, 5, 9])
        kv.admit_paged([branch], [kv.cached_prefix(branch)], publish=True)
    copies = kv.take_moves().copies
    assert {copy.source for copy in copies}.isdisjoint(copy.target for copy in copies)


def test_salts_and_those_that_opt_out_share_nothing():
    # Trap 4.
    kv = KVManager(BlockPool(16, 4), 64)
    prompt = list(range(9))
    computed(kv, request("a", prompt, scheduling=SchedulingParams(cache_salt="x")), 8)
    assert kv.cached_prefix(request("b", prompt)).tokens(4) == 0
    assert kv.cached_prefix(request("c", prompt, scheduling=SchedulingParams(cache_salt="y"))).tokens(4) == 0
    assert kv.cached_prefix(request("d", prompt, scheduling=SchedulingParams(cache_salt="x"))).tokens(4) == 8
    computed(kv, request("e", [9, *prompt], scheduling=SchedulingParams(prefix_cache=False)), 8)
    assert kv.cached_prefix(request("f", [9, *prompt])).tokens(4) == 0


def test_hits_and_misses_are_told_by_cause():
    kv = KVManager(BlockPool(3, 4), 64)
    first = request("a", list(range(4)))
    first.tokens.extend(range(4, 13))  # generated
    kv.free(computed(kv, first, 12))
    found = kv.cached_prefix(request("b", list(range(13))))
    assert (len(found.blocks), found.decoded_tokens(4), found.evicted_tokens) == (3, 8, 0)
    kv.pool.allocate(1)  # evicts the last of them
    found = kv.cached_prefix(request("b", list(range(13))))
    assert (len(found.blocks), found.decoded_tokens(4), found.evicted_tokens) == (2, 4, 4)


def test_a_fork_shares_all_and_whoever_writes_first_copies():
    # Traps 11 and 20.
    kv = KVManager(BlockPool(8, 4), 64)
    parent, child = request("a", list(range(6))), request("b", list(range(6)))
    computed(kv, parent, 6)
    kv.fork(parent, child)
    assert child.table == parent.table
    assert [kv.pool.references[block] for block in parent.table] == [2, 2]
    assert (kv.pool.logical, kv.pool.num_available) == (4, 6)
    for one in (parent, child):
        one.tokens.append(7)
    assert kv.needed([parent, child], [7, 7]) == 1
    shared = parent.table[1]
    assert kv.grow(parent, 7)
    assert kv.grow(child, 7)
    assert child.table[1] == shared != parent.table[1]
    assert [(copy.source, copy.target, copy.tokens) for copy in kv.take_moves().copies] == [
        (shared, parent.table[1], 2)
    ]
    kv.settle()
    kv.free(parent)
    kv.free(child)
    assert kv.pool.num_available == 8


def test_no_copy_is_begun_that_does_not_fit():
    kv = KVManager(BlockPool(2, 4), 64)
    parent, child = request("a", list(range(6))), request("b", list(range(6)))
    computed(kv, parent, 6)
    kv.fork(parent, child)
    parent.tokens.append(7)
    assert not kv.grow(parent, 7)
    assert kv.take_moves().copies == ()


def test_swapped_out_and_back_in_what_was_shared_is_shared_again():
    kv = KVManager(BlockPool(4, 4), 64, HostPool(3))
    parent, child = request("a", list(range(6))), request("b", list(range(6)))
    computed(kv, parent, 6)
    kv.fork(parent, child)
    blocks = list(parent.table)
    assert kv.losses([parent, child]) == [Loss(6, 2, 2), Loss(6, 0, 0)]
    assert (kv.swap_out(parent), kv.swap_out(child)) == (2, 0)
    assert [device for device, _ in kv.take_moves().swap_out] == blocks
    assert (kv.host.num_used, parent.num_swapped, parent.table) == (2, 6, [])
    kv.settle()
    kv.pool.clear_cache()
    assert kv.admit_paged([parent, child], [NOTHING, NOTHING], publish=True) == [2, 0]
    assert parent.table == child.table
    assert parent.num_computed == 6
    assert len(kv.take_moves().swap_in) == 2
    assert kv.host.num_used == 2  # until the step has read them
    kv.settle()
    assert kv.host.num_used == 0


def test_what_the_cache_still_has_is_not_brought_back():
    kv = KVManager(BlockPool(4, 4), 64, HostPool(3))
    one = computed(kv, request("a", list(range(6))), 6)
    kv.swap_out(one)
    kv.settle()
    kv.admit_paged([one], [kv.cached_prefix(one)], publish=True)
    assert (one.cached, one.num_computed) == (4, 6)
    assert len(kv.take_moves().swap_in) == 1


def test_growth_takes_all_blocks_or_none():
    # Trap 12.
    kv = KVManager(BlockPool(4, 4), 64)
    req = request("a", list(range(40)))
    kv.admit_paged([req], [NOTHING], publish=True)
    assert kv.grow(req, 8)
    before = list(req.table)
    assert not kv.grow(req, 20)
    assert req.table == before
    assert kv.pool.num_available == 2


def test_a_cached_prefix_that_nobody_holds_counts_against_the_room():
    kv = KVManager(BlockPool(4, 4), 64)
    kv.free(computed(kv, request("a", list(range(12))), 12))
    newcomer = request("b", list(range(13)))
    prefix = kv.cached_prefix(newcomer)
    assert len(prefix.blocks) == 3
    assert kv.blocks_taken(newcomer, prefix, 16) == 4
    assert kv.blocks_taken(newcomer, prefix, 17) == 5


def test_a_reservation_is_one_contiguous_run_and_is_not_published():
    kv = KVManager(BlockPool(8, 4), 12)
    req = request("a", list(range(8)))
    assert kv.admit_reserved(req) == 0
    assert req.table == [0, 1, 2]
    kv.commit(req, 8, publish=True)
    assert not len(kv.pool.cache)
    assert [kv.pool.block(block).state for block in req.table] == ["full", "full", "reserved"]


def test_freeing_lets_the_head_of_a_prefix_live_longest():
    kv = KVManager(BlockPool(3, 4), 64)
    req = computed(kv, request("a", list(range(12))), 12)
    table = list(req.table)
    kv.free(req)
    assert kv.pool.allocate(3) == table[::-1]


def test_computing_more_than_there_is_is_refused():
    kv = KVManager(BlockPool(3, 4), 64)
    req = request("a", [1, 2])
    kv.admit_paged([req], [NOTHING], publish=True)
    kv.grow(req, 4)
    with pytest.raises(IllegalState):
        kv.commit(req, 3, publish=True)
    with pytest.raises(IllegalState):
        kv.admit_paged([req], [NOTHING], publish=True)


def test_table_changes_are_told_from_the_first_new_block():
    kv = KVManager(BlockPool(8, 4), 64)
    req = computed(kv, request("a", list(range(30))), 8)
    assert [(c.start, c.blocks) for c in kv.drain_tables()] == [(0, tuple(req.table))]
    kv.grow(req, 16)
    assert [(c.start, c.blocks) for c in kv.drain_tables()] == [(2, tuple(req.table[2:]))]
    kv.grow(req, 20)
    kv.free(req)
    assert kv.drain_tables() == ()


def test_what_is_brought_back_can_be_found_once_the_step_is_done():
    kv = KVManager(BlockPool(4, 4), 64, HostPool(3))
    one = computed(kv, request("a", list(range(9))), 9)
    kv.swap_out(one)
    kv.settle()
    kv.clear_cache()
    assert kv.admit_paged([one], [NOTHING], publish=True) == [3]
    assert not len(kv.pool.cache)
    kv.settle()
    assert len(kv.cached_prefix(request("b", list(range(9)))).blocks) == 2


def test_what_one_has_found_is_not_evicted_for_another_admitted_with_it():
    kv = KVManager(BlockPool(4, 4), 64, HostPool(4))
    first = computed(kv, request("a", list(range(4))), 4)
    kv.free(first)  # its block is cached
    kv.free(computed(kv, request("other", [9] * 12), 12))  # fills the rest of the pool with cached blocks
    second, late = request("b", [7] * 5), request("c", list(range(5)))
    second.num_swapped, second.host_table = 4, [kv.host.allocate()]
    found = kv.cached_prefix(late)
    assert len(found.blocks) == 1
    kv.admit_paged([second, late], [NOTHING, found], publish=True)
    assert set(second.table).isdisjoint(late.table)
    assert kv.cached_prefix(request("d", list(range(5)))).blocks == tuple(late.table)


def test_cached_blocks_that_others_hold_are_not_lost():
    kv = KVManager(BlockPool(8, 4), 64)
    first = computed(kv, request("a", list(range(10))), 10)
    other = computed(kv, request("b", [*range(8), 50, 51, 52]), 11)
    assert other.table[:2] == first.table[:2]
    assert kv.losses([other]) == [Loss(3, 3, 1)]
    assert kv.losses([first, other]) == [Loss(10, 3, 3), Loss(11, 1, 1)]
