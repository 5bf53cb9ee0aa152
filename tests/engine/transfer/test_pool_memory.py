"""Pools in memory that other processes map: who finds whose, and which bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
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
    CannotMap,
    MappedPools,
    OtherLayout,
    PoolGone,
    PoolMemory,
    check_alike,
    check_others_map,
    check_there,
    map_pool,
    own_host,
    pool_in,
    read_blocks,
    runs,
    write_blocks,
)
from tests.engine.transfer.peer import SHAPE, Peer, make_pool, mapped, numbered


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
    check_there(peer.place)
    peer.kill()
    with pytest.raises(PoolGone):
        check_there(peer.place)
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
    with pytest.raises(PoolGone):
        check_there(dead)
    memory.close()
    with open(os.devnull) as other:  # takes the descriptor's number
        os.dup2(other.fileno(), number := int(place.path.rsplit("/", 1)[1]))
        with pytest.raises(PoolGone, match="another one has its number"):
            map_pool(place)
        if number != other.fileno():
            os.close(number)


def test_a_pipe_that_has_the_number_is_not_waited_for() -> None:
    """Nobody writes into it: whoever opens it to read waits for ever."""
    memory, place, _ = make_pool("here")
    reading, writing = os.pipe()
    os.close(writing)
    place = msgspec.structs.replace(place, path=f"/proc/{os.getpid()}/fd/{reading}")
    errors: list[Exception] = []

    def look() -> None:
        try:
            map_pool(place)
        except PoolGone as error:
            errors.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(30)
    assert [type(error) for error in errors] == [PoolGone]
    os.close(reading)
    memory.close()


def test_pools_stay_mapped_from_call_to_call_until_their_process_ends(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.transfer.pool_memory.FORGET_SECONDS", 0.01)
    monkeypatch.setattr("engine.transfer.pool_memory._mapped", MappedPools())  # the other one's thread sleeps
    for block in range(5):
        data = read_blocks(peer.place, [block])
        assert mapped(peer.place) == (1 if block == 0 else 2)
        write_blocks(peer.place, [block], data + 1)  # the same memory, and seen at once
        assert int(read_blocks(peer.place, [block]).max()) == block + 2
        assert mapped(peer.place) == 2, "for reading, and for writing"
    peer.kill()
    deadline = time.monotonic() + 60
    while mapped(peer.place):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_so_many_pools_stay_mapped_and_no_more() -> None:
    pools, made = MappedPools(most=2), [make_pool("here") for _ in range(3)]
    first, second, third = (place for _, place, _ in made)
    for place in (first, second, first, third):
        pools.pool(place)
    others = {id(place): mapped(place) - 1 for _, place, _ in made}  # whoever made it has mapped it too
    assert [others[id(place)] for place in (first, second, third)] == [1, 0, 1]
    pools.close()
    assert [mapped(place) for place in (first, second, third)] == [1, 1, 1]
    for memory, _, _ in made:
        memory.close()


MANY = """
import os, threading
from engine.transfer.pool_memory import MappedPools
from tests.engine.transfer.peer import make_pool

def left():
    with open("/proc/self/maps") as maps:
        return len(os.listdir("/proc/self/fd")), maps.read().count("memfd:kv-"), threading.active_count()

pools = MappedPools()
memory, place, _ = make_pool("here")
pools.pool(place)
print(*left())
for _ in range(300):
    other, there, _ = make_pool("here")
    pools.pool(there)
    other.close()  # as its end does: nobody finds it any more
del other, _
pools.pool(place)
print(*left())
"""


def test_nothing_is_left_of_many_that_came_and_went() -> None:
    """In a process of its own: here other tests' threads, files and maps come and go."""
    run = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True)
    before, after = run.stdout.splitlines()
    assert after == before


STRANGER = """
import ctypes, os, sys
import msgspec
from engine.transfer.offer import PoolPlace
from engine.transfer.pool_memory import MappedPools, Unavailable, check_there
from tests.engine.transfer.peer import make_pool
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
place = msgspec.json.decode(sys.argv[1], type=PoolPlace)
for look in (check_there, MappedPools().pool):
    try:
        look(place)
    except Unavailable as error:
        print(type(error).__name__, error)
"""


def test_one_whose_memory_may_not_be_seen_is_not_taken_for_dead(peer: Peer) -> None:
    """A process of another user, or one that nobody of its own user may look into."""
    place = peer.place
    if os.geteuid():
        place = Peer(own_host(), "hidden").place
    found = subprocess.run(
        [sys.executable, "-c", STRANGER, msgspec.json.encode(place)], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == [f"CannotMap cannot open {place.path}: Permission denied"] * 2


TRIAL = """
from engine.transfer.pool_memory import CannotMap, check_others_map, map_pool
from tests.engine.transfer.peer import make_pool
memory, place, _ = make_pool("here")
try:
    check_others_map(place)
except CannotMap as error:
    print(error)
"""


def test_processes_that_cannot_find_each_other_are_told_so_at_once() -> None:
    memory, place, _ = make_pool("here")
    check_others_map(place)
    with pytest.raises(CannotMap, match=f"other processes cannot open {place.path}: it is /memfd:{place.name}"):
        check_others_map(msgspec.structs.replace(place, name="another"))
    memory.close()
    with pytest.raises(CannotMap, match="No such file or directory"):
        check_others_map(place)


def test_a_proc_of_other_processes_is_noticed() -> None:
    """As in a container that has its own numbers of processes and its host's /proc."""
    apart = subprocess.run(
        ["unshare", "--fork", "--pid", sys.executable, "-c", TRIAL], capture_output=True, text=True, check=False
    )
    if apart.returncode and "unshare" in apart.stderr:
        pytest.skip("no namespaces may be made here")
    assert apart.stdout.startswith("other processes cannot open /proc/"), apart.stderr


def test_processes_with_other_clocks_or_numbers_are_on_other_hosts() -> None:
    """A deadline means nothing to one whose clock began at another time."""
    code = "from engine.transfer.pool_memory import own_host; print(own_host())"

    def host(*command: str) -> str:
        run = subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if run.returncode and "unshare" in run.stderr:
            pytest.skip("no namespaces may be made here")
        return run.stdout.strip()

    assert host() == own_host()
    assert len({own_host(), host("unshare", "--time"), host("unshare", "--fork", "--pid")}) == 3


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
