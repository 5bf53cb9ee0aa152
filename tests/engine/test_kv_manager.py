import pytest

from engine.block_pool import BlockPool, IllegalState
from engine.kv_manager import KVManager, blocks_for
from engine.request import Request
from tests.engine.mirror import greedy


def request(name: str, prompt: list[int], sequence: int = 0) -> Request:
    return Request(name, prompt, greedy(8), 0.0, sequence)


def computed(kv: KVManager, req: Request, tokens: int) -> Request:
    kv.admit_paged(req, kv.cached_prefix(req))
    assert kv.grow(req, tokens)
    kv.commit(req, tokens - req.num_computed, publish=True)
    return req


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (70, 5)])
def test_blocks_for(tokens, blocks):
    assert blocks_for(tokens, 16) == blocks


def test_a_wholly_cached_prompt_leaves_its_last_block_to_compute():
    # Trap 1.
    kv = KVManager(BlockPool(16, 4), 64)
    computed(kv, request("a", list(range(8))), 8)
    assert len(kv.cached_prefix(request("b", list(range(8))))) == 1
    assert len(kv.cached_prefix(request("c", list(range(9))))) == 2


def test_a_prefix_is_found_up_to_the_first_block_that_differs():
    kv = KVManager(BlockPool(16, 4), 64)
    first = computed(kv, request("a", list(range(12))), 12)
    assert kv.cached_prefix(request("b", [0, 1, 2, 3, 9, 9, 9, 9, 8])) == first.table[:1]


def test_growth_takes_all_blocks_or_none():
    # Trap 12.
    kv = KVManager(BlockPool(4, 4), 64)
    req = request("a", list(range(40)))
    kv.admit_paged(req, [])
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
    assert len(prefix) == 3
    assert kv.can_admit(prefix, 16, spare=0)
    assert not kv.can_admit(prefix, 17, spare=0)
    assert not kv.can_admit(prefix, 16, spare=1)


def test_a_reservation_is_one_contiguous_run_and_is_not_published():
    kv = KVManager(BlockPool(8, 4), 12)
    req = request("a", list(range(8)))
    assert kv.admit_reserved(req)
    assert req.table == [0, 1, 2]
    kv.commit(req, 8, publish=True)
    assert not any(kv.pool.hashes)
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
    kv.admit_paged(req, [])
    kv.grow(req, 4)
    with pytest.raises(IllegalState):
        kv.commit(req, 3, publish=True)
    with pytest.raises(IllegalState):
        kv.admit_paged(req, [])


def test_table_changes_are_told_from_the_first_new_block():
    kv = KVManager(BlockPool(8, 4), 64)
    req = computed(kv, request("a", list(range(30))), 8)
    assert [(c.start, c.blocks) for c in kv.drain_tables()] == [(0, tuple(req.table))]
    kv.grow(req, 16)
    assert [(c.start, c.blocks) for c in kv.drain_tables()] == [(2, tuple(req.table[2:]))]
    kv.grow(req, 20)
    kv.free(req)
    assert kv.drain_tables() == ()
