"""A process with a pool that others read: `python -m tests.engine.transfer.peer HOST [hidden]`. It tells its place as
a line of JSON, and lives until its input ends. Block b holds b + 1 everywhere. `hidden`: nobody of its user may look
into it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from engine.transfer.offer import Compatibility, Offer, PoolPlace
from engine.transfer.pool_memory import Pool, PoolMemory, pool_in

SHAPE = (48, 3, 2, 2, 4, 8)  # blocks, layers, keys and values, heads, tokens, dimensions
BLOCK_BYTES = 3 * 2 * 2 * 4 * 8 * 2
PR_SET_DUMPABLE = 4
ALIKE = Compatibility("same", "a model")


def make_pool(host: str, num_blocks: int = SHAPE[0]) -> tuple[PoolMemory, PoolPlace, Pool]:
    """A pool in this process, of 2 bytes an element, whose layers lie together as an engine's do."""
    block = SHAPE[3] * SHAPE[4] * SHAPE[5]
    layer = num_blocks * block
    memory = PoolMemory(num_blocks * BLOCK_BYTES)
    strides = (block, 2 * layer, layer, SHAPE[4] * SHAPE[5], SHAPE[5], 1)
    place = memory.place(host, (num_blocks, *SHAPE[1:]), strides, 2)
    return memory, place, pool_in(memory.buffer, place)


def numbered(pool: Pool) -> None:
    pool[:] = np.arange(1, len(pool) + 1, dtype=pool.dtype).reshape(-1, 1, 1, 1, 1, 1)


def offer_of(place: PoolPlace, blocks: Sequence[int], deadline: float = 1e12, **changes: Any) -> Offer:
    whole = Offer("lease-1", "prefill-0", ALIKE.digest, place, tuple(blocks), 4 * len(blocks), BLOCK_BYTES, deadline)
    return msgspec.structs.replace(whole, **changes)


def mapped(place: PoolPlace) -> int:
    """How often this process has mapped it."""
    with open("/proc/self/maps") as maps:
        return maps.read().count(place.name)


class Peer:
    """The process, from its parent."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.place = msgspec.json.decode(self.process.stdout.readline(), type=PoolPlace)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> None:
    memory, place, pool = make_pool(sys.argv[1])
    if "hidden" in sys.argv:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    numbered(pool)
    print(msgspec.json.encode(place).decode(), flush=True)
    sys.stdin.read()
    memory.close()


if __name__ == "__main__":
    main()
