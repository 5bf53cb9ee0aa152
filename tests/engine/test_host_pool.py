import pytest

from engine.block_pool import IllegalState
from engine.host_pool import HostPool


def test_blocks_are_given_until_none_is_left_and_come_back():
    pool = HostPool(2)
    blocks = [pool.allocate(), pool.allocate()]
    assert blocks == [0, 1]
    assert (pool.num_free, pool.num_used) == (0, 2)
    with pytest.raises(IllegalState, match="no host block"):
        pool.allocate()
    pool.release([0])
    assert (pool.num_free, pool.num_used) == (1, 1)
    assert pool.allocate() == 0


def test_a_shared_block_is_free_when_its_last_holder_gives_it_up():
    pool = HostPool(1)
    block = pool.allocate()
    pool.share(block)
    pool.release([block])
    assert pool.num_free == 0
    pool.release([block])
    assert pool.num_free == 1


def test_what_nobody_holds_is_neither_shared_nor_released():
    # Trap 7: giving up twice.
    pool = HostPool(1)
    with pytest.raises(IllegalState, match="nobody holds"):
        pool.release([0])
    with pytest.raises(IllegalState, match="no contents"):
        pool.share(0)
    block = pool.allocate()
    with pytest.raises(IllegalState, match="nobody holds"):
        pool.release([block, block])
    assert pool.num_free == 1


def test_without_swap_space_nothing_is_to_be_had():
    pool = HostPool(0)
    assert (pool.num_free, pool.num_used) == (0, 0)
    with pytest.raises(IllegalState):
        pool.allocate()
