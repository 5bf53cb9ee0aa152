"""Pools in memory that other processes map: who finds whose, and which bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.loading.resolve import resolve_model
from engine.model import allocate_kv
from engine.transfer.pool_memory import (
    MAX_RUN,
    MappedPools,
    OtherLayout,
    PoolGone,
    PoolMemory,
    check_alike,
    is_there,
    map_pool,
    own_host,
    pool_in,
    read_blocks,
    runs,
    write_blocks,
)
from tests.engine.transfer.peer import SHAPE, Peer, make_pool, numbered


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer(own_host())
    yield peer
    peer.kill()


def test_a_pool_is_read_and_written_from_another_process(peer: Peer) -> None:
    assert peer.place.host == own_host()
    found = read_blocks(peer.place, [5, 6, 40, 2])
    assert found.shape == (4, *SHAPE[1:])
    assert found.flags.c_contiguous
    assert [set(block.flat) for block in found] == [{6}, {7}, {41}, {3}]
    write_blocks(peer.place, [7, 0], found[2:])
    assert [int(block.max()) for block in read_blocks(peer.place, [6, 7, 8, 0])] == [7, 41, 9, 3]


def test_a_pool_goes_with_its_process_but_for_who_has_mapped_it(peer: Peer) -> None:
    pools = MappedPools()
    pool = pools.pool(peer.place)
    assert pools.pool(peer.place) is pool
    assert is_there(peer.place)
    peer.kill()
    assert not is_there(peer.place)
    assert int(pool[47].min()) == 48
    with pytest.raises(PoolGone, match="is gone"):
        pools.pool(peer.place)
    assert len(pools) == 0
    for call in (lambda: read_blocks(peer.place, [0]), lambda: write_blocks(peer.place, [0], pool[:1])):
        with pytest.raises(PoolGone, match=f"the process that had {peer.place.path} is gone"):
            call()


def test_the_dead_are_forgotten_when_others_are_asked_for(peer: Peer) -> None:
    other = Peer(own_host())
    pools = MappedPools()
    for place in (peer.place, other.place):
        pools.pool(place)
    other.kill()
    assert len(pools) == 2
    pools.pool(peer.place)
    assert len(pools) == 1


def test_another_process_with_the_number_of_one_that_died_is_not_taken_for_it() -> None:
    memory, place, _ = make_pool("here")
    dead = msgspec.structs.replace(place, name="kv-1-0000")  # the same path, and other memory
    for look in (map_pool, MappedPools().pool):
        with pytest.raises(PoolGone, match="another one has its number"):
            look(dead)
    assert not is_there(dead)
    memory.close()
    with open(os.devnull) as other:  # takes the descriptor's number
        os.dup2(other.fileno(), number := int(place.path.rsplit("/", 1)[1]))
        with pytest.raises(PoolGone, match="another one has its number"):
            map_pool(place)
        if number != other.fileno():
            os.close(number)


def test_a_pool_cannot_shrink_under_who_reads_it() -> None:
    memory, place, _ = make_pool("here")
    fd = os.open(place.path, os.O_RDWR)
    for nbytes in (place.nbytes - 4096, place.nbytes + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, nbytes)
    os.close(fd)
    memory.close()


def test_a_place_that_lies_is_found_out() -> None:
    memory, place, _ = make_pool("here")
    replace = msgspec.structs.replace
    for wrong in (
        replace(place, shape=(SHAPE[0] + 1, *SHAPE[1:])),
        replace(place, strides=place.strides[1:]),
        replace(place, strides=(-1, *place.strides[1:])),
        replace(place, itemsize=3),
        replace(place, itemsize=4),
        replace(place, nbytes=place.nbytes + 1),
        replace(place, shape=()),
    ):
        with pytest.raises(OtherLayout):
            map_pool(wrong)
    for blocks in ([SHAPE[0]], [-1]):
        with pytest.raises(OtherLayout, match=r"blocks must lie in 0\.\.47"):
            read_blocks(place, blocks)
        with pytest.raises(OtherLayout, match=r"blocks must lie in 0\.\.47"):
            write_blocks(place, blocks, np.zeros((1, *SHAPE[1:]), np.uint16))
    for data in (np.zeros((2, *SHAPE[1:]), np.uint16), np.zeros((1, *SHAPE[1:]), np.uint32)):
        with pytest.raises(OtherLayout, match="are wanted"):
            write_blocks(place, [0], data)
    memory.close()


def test_pools_are_alike_whatever_their_size() -> None:
    (memory, large, _), (other, small, _) = make_pool("here"), make_pool("here", 5)
    check_alike(large, small)
    with pytest.raises(OtherLayout, match="3x2x2x4x8 of 2 bytes there and 3x2x2x4x9 of 2 bytes here"):
        check_alike(large, msgspec.structs.replace(small, shape=(5, *SHAPE[1:5], 9)))
    with pytest.raises(OtherLayout, match="of 4 bytes here"):
        check_alike(large, msgspec.structs.replace(small, itemsize=4))
    memory.close()
    other.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torch_sees_an_engines_pool_in_it_as_in_memory_of_its_own(dtype: torch.dtype) -> None:
    config = resolve_model("tiny").config
    cpu = torch.device("cpu")
    own = allocate_kv(config, 6, 16, dtype, cpu)
    memory = PoolMemory(own.numel() * own.element_size())
    shared = allocate_kv(config, 6, 16, dtype, cpu, memory.buffer)
    assert (shared.shape, shared.stride(), shared.dtype) == (own.shape, own.stride(), own.dtype)
    assert not shared.any()
    place = memory.place("here", shared.shape, shared.stride(), shared.element_size())
    pool = pool_in(memory.buffer, place)
    numbers = torch.arange(config.head_dim, dtype=dtype)
    shared[4, 1, 0, 1, 15] = numbers
    assert pool[4, 1, 0, 1, 15].tobytes() == numbers.view(torch.uint8).numpy().tobytes()
    pool[2] = pool[4]
    assert torch.equal(shared[2], shared[4])
    assert int(pool.astype(bool).sum()) == 2 * (config.head_dim - 1)
    memory.close()


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=80), st.integers(0, 70))
def test_runs_are_the_pairs(pairs: list[tuple[int, int]], straight: int) -> None:
    pairs = [*pairs, *((i, i + 9) for i in range(straight))]
    found = list(runs(pairs))
    assert [(s + i, t + i) for s, t, count in found for i in range(count)] == pairs
    assert all(0 < count <= MAX_RUN for _, _, count in found)
    assert len(found) <= len(pairs) - straight + -(-straight // MAX_RUN) + 1


def test_blocks_are_moved_without_torch() -> None:
    """An actor that only moves blocks starts in a moment."""
    code = "import engine.transfer.pool_memory, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_numbered_pools_are_what_the_other_tests_take_them_for() -> None:
    memory, _, pool = make_pool("here")
    numbered(pool)
    assert [set(block.flat) for block in pool] == [{i + 1} for i in range(SHAPE[0])]
    memory.close()
