"""What an engine that has prefilled a request tells the one that goes on with it: which blocks, where, and how long."""

from __future__ import annotations

import msgspec

# That an offer holds, if it is not said to. Whoever takes it may have a queue before that, and what is not taken in
# time is computed twice; blocks that nobody will take are released by whoever knows so, long before.
LEASE_SECONDS = 300.0


class PoolPlace(msgspec.Struct, frozen=True):
    """Where an engine's KV pool can be read by others of its host, and how the blocks lie in it.

    Element [b, ...] of block b is at `strides` (in elements of `itemsize` bytes) from the mapping's beginning.
    """

    host: str  # whoever has the same one can open `path`, and has the same monotonic clock
    path: str  # of the mapping; it goes with its process
    name: str  # of the memory at `path`: another process may come to have the number of one that died
    nbytes: int
    shape: tuple[int, ...]  # [num_blocks, layers, 2, num_kv_heads, block_size, head_dim]
    strides: tuple[int, ...]
    itemsize: int


class Offer(msgspec.Struct, frozen=True):
    """The KV of a request's first `tokens` tokens, in `blocks` of an engine that keeps them until it is told to
    `release` the lease, or its clock is past `deadline`: from then on they may hold anything."""

    lease: str  # one of its kind, over all engines and their restarts
    engine: str  # whose it is
    compatibility: str  # `Compatibility.digest`: who has another cannot read them
    place: PoolPlace
    blocks: tuple[int, ...]  # in the order of the tokens
    tokens: int
    block_bytes: int
    deadline: float  # seconds on the monotonic clock of the host it was made on


class Compatibility(msgspec.Struct, frozen=True):
    """What two engines must have in common so that one can go on with the other's KV."""

    digest: str
    told: str  # for a person: "smollm2-135m, bfloat16, blocks of 16, ..."
