"""A KV pool that other processes of its host can read: where it lies, and how blocks of it are read and written.

It is anonymous memory with a descriptor (a memfd). Whoever may look into the process opens it by /proc/PID/fd/N, and
when the last one that has mapped it is gone, so is the memory: nothing is left to clean up. There is no torch here:
processes that only move blocks import this in a moment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.transfer.connector import Unavailable
from engine.transfer.offer import PoolPlace

Pool = NDArray[Any]  # unsigned numbers of the elements' size: what they mean is nobody's concern here
MAX_RUN = 16  # blocks that are copied in one piece
MOST_MAPPED = 16  # pools of others that stay mapped at a time
FORGET_SECONDS = 5.0  # between two looks for pools of the dead, which keep their memory as long as they are mapped
TRIAL_SECONDS = 60.0  # that another process has to open a pool, on a machine that is busy

_MFD_NOEXEC_SEAL = 8  # Linux may be told to give no other memory; before 6.3 it does not know of it
# What the trial runs: it opens a path, and fails unless that is what it is to be.
_TRIAL = """import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
found = os.readlink(f"/proc/self/fd/{fd}")
sys.exit(None if found == sys.argv[2] else f"it is {found}")
"""
_DTYPES: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class PoolGone(Unavailable):
    """The engine whose pool it was has ended, or is another one by now."""


class CannotMap(Unavailable):
    """The pool is there, and this process may not or cannot read it."""


class OtherLayout(Unavailable):
    """Blocks of the two pools are not alike, or one that is named is in none."""


def own_host() -> str:
    """A name for those who can open each other's /proc/PID/fd, and have one monotonic clock: a machine since it was
    started, as seen from one namespace of process numbers (containers have their own) and one of clocks."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8])
    for namespace in ("pid", "time"):
        with contextlib.suppress(OSError):
            parts.append(os.readlink(f"/proc/self/ns/{namespace}").removeprefix(f"{namespace}:[").removesuffix("]"))
    return "-".join(parts)


def create_memory(name: str) -> int:
    """The descriptor of memory that has no size yet. Raises OSError where this process may have none."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)


class PoolMemory:
    """Zeroed memory for a pool. It takes pages as they are first used, as any other does, and has one size for good.

    Others find it as long as its `buffer`, or anything in it, lives. Raises OSError where there is none to be had.
    """

    def __init__(self, nbytes: int, *, huge_pages: bool = True) -> None:
        self.name = f"kv-{os.getpid()}-{secrets.token_hex(8)}"
        self._fd = create_memory(self.name)
        try:
            os.ftruncate(self._fd, nbytes)
            # Who has mapped it is not to meet SIGBUS because it has shrunk.
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.buffer = mmap.mmap(self._fd, nbytes)
        except BaseException:
            os.close(self._fd)
            raise
        self._close = weakref.finalize(self.buffer, os.close, self._fd)
        if huge_pages:
            with contextlib.suppress(OSError, AttributeError):  # a kernel without them
                self.buffer.madvise(mmap.MADV_HUGEPAGE)

    @property
    def path(self) -> str:
        """Where other processes find it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def place(self, host: str, shape: Sequence[int], strides: Sequence[int], itemsize: int) -> PoolPlace:
        """Where others of `host` find a pool [num_blocks, ...] that begins where this does; strides in elements."""
        return PoolPlace(host, self.path, self.name, len(self.buffer), tuple(shape), tuple(strides), itemsize)

    def close(self) -> None:
        """Nobody can map it any more; who has, keeps it."""
        self._close()


def pool_in(buffer: mmap.mmap, place: PoolPlace) -> Pool:
    """The pool of `place`, mapped as `buffer`. Raises OtherLayout if it does not lie in it."""
    dtype = _DTYPES.get(place.itemsize)
    reach = sum((count - 1) * stride for count, stride in zip(place.shape, place.strides, strict=False))
    lies_in = (
        dtype is not None
        and len(place.shape) == len(place.strides)
        and min(place.shape, default=0) > 0
        and min(place.strides) >= 0
        and (reach + 1) * place.itemsize <= len(buffer)
    )
    if not lies_in or dtype is None:
        raise OtherLayout(f"a pool {place.shape} of strides {place.strides} does not lie in {len(buffer):,} bytes")
    strides = [stride * place.itemsize for stride in place.strides]
    return np.ndarray(place.shape, dtype, buffer=buffer, strides=strides)


def map_pool(place: PoolPlace, *, write: bool = False) -> Pool:
    """Another process's pool. It stays mapped as long as the array, or a part of it, lives.

    Raises PoolGone, CannotMap or OtherLayout.
    """
    check_there(place)  # opening whatever has its number by now may wait for ever, as with a pipe
    try:
        access = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        fd = os.open(place.path, access)
    except OSError as error:
        raise _unopened(place, error) from error
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != _link(place):  # it has changed since
            raise _replaced(place)
        if os.fstat(fd).st_size != place.nbytes:
            raise OtherLayout(f"{place.path} has {os.fstat(fd).st_size:,} bytes, not {place.nbytes:,}")
        buffer = mmap.mmap(fd, place.nbytes, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
    except OSError as error:
        raise CannotMap(f"cannot map the {place.nbytes:,} bytes of {place.path}: {error.strerror}") from error
    finally:
        os.close(fd)
    return pool_in(buffer, place)


def check_there(place: PoolPlace) -> None:
    """Raise PoolGone unless the process that has this pool lives, CannotMap if this process may not see that."""
    try:
        found = os.readlink(place.path)
    except OSError as error:
        raise _unopened(place, error) from error
    if found != _link(place):
        raise _replaced(place)


def check_others_map(place: PoolPlace) -> None:
    """Raise CannotMap unless another process of this user can open this one's pool: they may be kept from each other,
    or /proc may be that of other processes, and it is better told at the start than at each transfer."""
    command = [sys.executable, "-I", "-S", "-c", _TRIAL, place.path, _link(place)]
    try:
        trial = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotMap(f"whether other processes can open {place.path} cannot be tried: {error}") from error
    if trial.returncode:
        told = trial.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise CannotMap(f"other processes cannot open {place.path}: {told or f'exit code {trial.returncode}'}")


def _link(place: PoolPlace) -> str:
    """What its path leads to, as Linux tells it."""
    return f"/memfd:{place.name} (deleted)"


def _unopened(place: PoolPlace, error: OSError) -> Unavailable:
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        return PoolGone(f"the process that had {place.path} is gone")
    return CannotMap(f"cannot open {place.path}: {error.strerror}")


def _replaced(place: PoolPlace) -> PoolGone:
    return PoolGone(f"the process that had {place.path} is gone, and another one has its number")


class MappedPools:
    """Pools of other processes, each mapped once: those that were asked for last, at most so many. Those of processes
    that end are let go of in a moment. Any thread may use it."""

    def __init__(self, most: int = MOST_MAPPED) -> None:
        self._most = most
        self._pools: dict[tuple[PoolPlace, bool], Pool] = {}  # in the order in which they were asked for
        self._lock = threading.Lock()
        self._looks = False  # a thread looks for the dead

    def __len__(self) -> int:
        return len(self._pools)

    def pool(self, place: PoolPlace, *, write: bool = False) -> Pool:
        """See `map_pool`."""
        with self._lock:
            self._forget_dead()
            check_there(place)
            found = self._pools.pop((place, write), None)
            if found is None:
                found = map_pool(place, write=write)
            self._pools[place, write] = found
            while len(self._pools) > self._most:
                del self._pools[next(iter(self._pools))]
            if not self._looks:
                threading.Thread(target=self._look, name="kv-mapped", daemon=True).start()
                self._looks = True
        return found

    def close(self) -> None:
        """Let go of all."""
        with self._lock:
            self._pools.clear()

    def _look(self) -> None:
        while True:
            time.sleep(FORGET_SECONDS)
            with self._lock:
                self._forget_dead()
                if not self._pools:
                    self._looks = False
                    return

    def _forget_dead(self) -> None:
        for key in tuple(self._pools):
            try:
                check_there(key[0])
            except PoolGone:
                del self._pools[key]
            except CannotMap:  # it lives, and what is mapped is good
                pass


_mapped = MappedPools()


def runs(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Pairs of (source, target) as (first source, first target, how many follow one another), each at most MAX_RUN."""
    begin = 0
    for i in range(1, len(pairs) + 1):
        follows = i < len(pairs) and pairs[i] == (pairs[i - 1][0] + 1, pairs[i - 1][1] + 1)
        if not follows or i - begin == MAX_RUN:
            yield (*pairs[begin], i - begin)
            begin = i


def check_alike(source: PoolPlace, target: PoolPlace) -> None:
    """Raise OtherLayout unless a block of one can be copied to the other as it is."""
    if source.shape[1:] != target.shape[1:] or source.itemsize != target.itemsize:
        raise OtherLayout(
            f"the pools' blocks must be alike, and are {_told(source)} there and {_told(target)} here "
            "(layers, 2, heads, tokens, dimensions)"
        )


def check_blocks(place: PoolPlace, blocks: Sequence[int]) -> None:
    """Raise OtherLayout for one that the pool does not have."""
    if blocks and not (min(blocks) >= 0 and max(blocks) < place.shape[0]):
        raise OtherLayout(f"blocks must lie in 0..{place.shape[0] - 1}, got {min(blocks)} to {max(blocks)}")


def read_blocks(place: PoolPlace, blocks: Sequence[int]) -> Pool:
    """A copy of these blocks of another process's pool: [len(blocks), layers, 2, ...], each block in one piece. The
    pool stays mapped for the next call, as with `MappedPools`.

    Whoever reads an offer must look at the clock after that: past the deadline they may be anybody's. Raises PoolGone,
    CannotMap or OtherLayout.
    """
    check_blocks(place, blocks)
    pool = _mapped.pool(place)
    read = np.empty((len(blocks), *place.shape[1:]), pool.dtype)
    for source, target, count in runs([(block, i) for i, block in enumerate(blocks)]):
        read[target : target + count] = pool[source : source + count]
    return read


def write_blocks(place: PoolPlace, blocks: Sequence[int], data: Pool) -> None:
    """Fill blocks of another process's pool with what `read_blocks` gave. Raises as it does."""
    check_blocks(place, blocks)
    wanted = (len(blocks), *place.shape[1:])
    if data.shape != wanted or data.itemsize != place.itemsize:
        raise OtherLayout(f"blocks {wanted} of {place.itemsize} bytes are wanted, got {data.shape} of {data.itemsize}")
    pool = _mapped.pool(place, write=True)
    data = data.view(pool.dtype)
    for source, target, count in runs([(i, block) for i, block in enumerate(blocks)]):
        pool[target : target + count] = data[source : source + count]


def _told(place: PoolPlace) -> str:
    return f"{'x'.join(map(str, place.shape[1:]))} of {place.itemsize} bytes"
