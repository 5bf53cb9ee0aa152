"""The name of a full block: a hash of its tokens chained to everything before them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from struct import Struct

DIGEST_BYTES = 16
ROOT = blake2b(b"paged-top block chain 1", digest_size=DIGEST_BYTES).digest()


def root_hash(salt: str | None) -> bytes:
    """Where a chain begins. Chains of different salts have no block in common, whatever their tokens."""
    if salt is None:
        return ROOT
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, key=ROOT).digest()


def chain_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hash one block's tokens after `parent`, the hash of the block before it (a root for the first).

    A strong hash, so that two prefixes that differ never share a block. What must keep equal tokens apart
    (a salt, an adapter) belongs into the root, not beside the tokens.
    """
    return blake2b(parent + _packer(len(tokens)).pack(*tokens), digest_size=DIGEST_BYTES).digest()


@cache
def _packer(count: int) -> Struct:
    return Struct(f"<{count}q")


def extend_hashes(hashes: list[bytes], tokens: Sequence[int], block_size: int, root: bytes = ROOT) -> list[bytes]:
    """Append to `hashes` those of the full blocks of `tokens` it does not have yet; returns it."""
    full = len(tokens) // block_size
    if len(hashes) < full:
        parent = hashes[-1] if hashes else root
        for start in range(len(hashes) * block_size, full * block_size, block_size):
            parent = chain_hash(parent, tokens[start : start + block_size])
            hashes.append(parent)
    return hashes
