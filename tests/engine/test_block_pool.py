import pytest

from engine.block_pool import BlockPool, FreeQueue, IllegalState
from engine.prefix_cache import Contents


def contents(block_hash: bytes) -> Contents:
    return Contents(block_hash, b"root", (1, 2), decoded=False)


def full_block(pool: BlockPool, block_hash: bytes) -> int:
    (block,) = pool.allocate(1)
    pool.fill(block, pool.block_size)
    pool.publish(block, contents(block_hash))
    return block


def test_free_queue_removes_from_the_middle_and_keeps_its_order():
    queue = FreeQueue(5)
    queue.remove(2)
    queue.remove(0)
    queue.push_front(2)
    queue.push_back(0)
    assert list(queue) == [2, 1, 3, 4, 0]
    assert len(queue) == 5
    with pytest.raises(IllegalState):
        queue.push_back(0)


def test_free_queue_refuses_to_remove_twice_and_to_give_from_nothing():
    queue = FreeQueue(1)
    queue.remove(0)
    with pytest.raises(IllegalState):
        queue.remove(0)
    with pytest.raises(IllegalState):
        queue.first()


def test_unhashed_blocks_are_taken_before_cached_ones_and_those_by_age():
    pool = BlockPool(4, 2)
    first, second = full_block(pool, b"a"), full_block(pool, b"b")
    plain = pool.allocate(1)[0]
    pool.release([first])
    pool.release([second])
    pool.release([plain])
    assert pool.allocate(4) == [plain, 3, first, second]
    assert pool.cache.find(b"a") is None
    assert pool.cache.find(b"b") is None


def test_a_hit_moves_a_block_to_the_young_end_of_the_cache():
    pool = BlockPool(2, 2)
    first, second = full_block(pool, b"a"), full_block(pool, b"b")
    pool.release([first, second])
    pool.acquire(first)
    pool.release([first])
    assert pool.allocate(1) == [second]
    assert pool.cache.find(b"a") == first


def test_allocation_is_all_or_nothing():
    pool = BlockPool(3, 2)
    pool.allocate(2)
    with pytest.raises(IllegalState):
        pool.allocate(2)
    assert pool.num_available == 1


def test_evicting_one_of_two_equal_blocks_keeps_the_other_findable():
    # Trap 5.
    pool = BlockPool(2, 2)
    first, second = full_block(pool, b"same"), full_block(pool, b"same")
    pool.release([first])
    assert pool.allocate(1) == [first]
    assert pool.cache.find(b"same") == second


def test_a_run_is_the_first_hole_that_is_long_enough():
    pool = BlockPool(8, 1)
    blocks = pool.allocate(8)
    pool.release([blocks[1], blocks[2], blocks[4], blocks[5], blocks[6]])
    assert pool.short_hole_blocks(3) == 2
    assert pool.allocate_run(4) is None
    assert pool.allocate_run(3) == [4, 5, 6]
    assert pool.allocate_run(1) == [1]


def test_a_run_evicts_the_cached_blocks_in_it():
    pool = BlockPool(3, 1)
    block = full_block(pool, b"a")
    pool.release([block])
    assert pool.allocate_run(3) == [0, 1, 2]
    assert pool.cache.find(b"a") is None


def test_shared_and_published_blocks_are_not_written():
    pool = BlockPool(2, 4)
    block = full_block(pool, b"a")
    with pytest.raises(IllegalState):
        pool.fill(block, 4)
    other = pool.allocate(1)[0]
    pool.fill(other, 2)
    with pytest.raises(IllegalState):
        pool.fill(other, 1)
    with pytest.raises(IllegalState):
        pool.fill(other, 5)


def test_only_full_held_blocks_are_published_and_once():
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1)
    pool.fill(block, 3)
    with pytest.raises(IllegalState):
        pool.publish(block, contents(b"a"))
    pool.fill(block, 4)
    pool.publish(block, contents(b"a"))
    with pytest.raises(IllegalState):
        pool.publish(block, contents(b"a"))


def test_a_block_is_not_released_more_often_than_it_is_held():
    pool = BlockPool(1, 4)
    (block,) = pool.allocate(1)
    pool.release([block])
    with pytest.raises(IllegalState):
        pool.release([block])
    with pytest.raises(IllegalState):
        pool.acquire(block)


def test_the_journal_tells_each_changed_block_once_as_it_is_now():
    pool = BlockPool(3, 2)
    (block,) = pool.allocate(1)
    pool.fill(block, 1)
    pool.fill(block, 2)
    (change,) = pool.drain_journal()
    assert (change.block, change.state, change.references, change.filled, change.hashed) == (block, "full", 1, 2, False)
    assert pool.drain_journal() == ()
    pool.publish(block, contents(b"a"))
    pool.acquire(block)
    assert pool.drain_journal()[0].state == "shared"
    pool.release([block, block])
    assert pool.drain_journal()[0].state == "cached"


def test_what_goes_on_being_filled_is_not_in_the_journal():
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1)
    pool.fill(block, 1)
    assert [change.filled for change in pool.drain_journal()] == [1]
    pool.fill(block, 3)
    assert pool.drain_journal() == ()
    assert pool.held_slots_filled == 3
    pool.fill(block, 4)
    assert [change.state for change in pool.drain_journal()] == ["full"]


def test_a_pinned_block_keeps_its_contents_until_it_is_unpinned():
    # Trap 6.
    pool = BlockPool(2, 4)
    (tail,) = pool.allocate(1)
    pool.fill(tail, 3)
    pool.pin(tail)
    pool.release([tail])
    assert pool.num_available == 1
    assert pool.allocate(1) != [tail]
    with pytest.raises(IllegalState):
        pool.drain_journal()
    pool.unpin(tail)
    assert pool.num_available == 1
    assert pool.filled[tail] == 0
    with pytest.raises(IllegalState):
        pool.unpin(tail)
    with pytest.raises(IllegalState):
        pool.pin(tail)


def test_a_cached_block_can_be_pinned_and_is_the_youngest_afterwards():
    pool = BlockPool(2, 2)
    first, second = full_block(pool, b"a"), full_block(pool, b"b")
    pool.release([first, second])
    pool.pin(first)
    assert pool.num_available == 1
    pool.unpin(first)
    assert list(pool.queue) == [second, first]


def test_the_best_fit_is_the_shortest_hole_that_is_long_enough():
    pool = BlockPool(10, 1)
    pool.allocate(10)
    pool.release([0, 1, 2, 3, 5, 6, 8])
    assert pool.longest_hole() == 4
    assert pool.allocate_run(2, "best") == [5, 6]
    assert pool.allocate_run(2, "best") == [0, 1]
    assert pool.allocate_run(3, "best") is None


def test_clearing_the_cache_forgets_all_and_leaves_held_blocks_to_their_holders():
    pool = BlockPool(3, 2)
    held, cached = full_block(pool, b"a"), full_block(pool, b"b")
    pool.release([cached])
    assert pool.clear_cache() == 2
    assert pool.cache.find(b"a") is None
    assert pool.block(held).state == "full"
    assert pool.block(cached).state == "free"
    assert pool.allocate(2) == [cached, 2]
