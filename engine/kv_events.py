"""What changes in the prefix cache, step by step, in the words that vLLM publishes: routers and viewers made for it
fold them into the blocks that can be found.

Each event is a map with a `type`. A hash is told once however many equal blocks have it, and is gone with the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MEDIUM = "GPU"  # vLLM's word for where a model computes, on a CPU too


class BlockStored(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Full blocks that can be found now, each the parent of the next; that of the first is None where a prompt begins.

    `token_ids` are of all of them. `extra_keys` has an entry a block: what keeps equal tokens apart (`cache_salt`), at
    the block where a prompt begins. Where nothing does, it is left out.
    """

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: tuple[tuple[str, ...] | None, ...] | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    block_hashes: tuple[int, ...]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvBatch(msgspec.Struct, frozen=True, array_like=True):
    """What one step changed; `time` is Unix time."""

    time: float
    events: tuple[KvEvent, ...]
    data_parallel_rank: int = 0


def event_hash(block_hash: bytes) -> int:
    """A block's name in events: 64 bits of its hash as a number, which is what vLLM publishes unless it is told
    otherwise, and the kind that every reader takes. In hexadecimal it begins as in `/engine/blocks/{block}`."""
    return int.from_bytes(block_hash[:8], "big")


class KvJournal:
    """Events in the order in which things happened since the last `drain`. Blocks that follow each other are one."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[KvEvent] = []
        # What the next event may still join, of one kind at most.
        self._stored: list[int] = []
        self._parent: int | None = None
        self._tokens: list[int] = []
        self._salt: str | None = None
        self._removed: list[int] = []

    def stored(self, block_hash: bytes, parent: bytes | None, tokens: Sequence[int], salt: str | None = None) -> None:
        """A hash that no block had can be found now. `salt`: a name for what keeps its prompt from equal ones; it is
        told where that begins, for a block without a parent."""
        before = None if parent is None else event_hash(parent)
        if not self._stored or before != self._stored[-1]:
            self._close()
            self._parent, self._salt = before, salt if parent is None else None
        self._stored.append(event_hash(block_hash))
        self._tokens.extend(tokens)

    def removed(self, block_hash: bytes) -> None:
        """The last block with this hash is gone."""
        if self._stored:
            self._close()
        self._removed.append(event_hash(block_hash))

    def cleared(self) -> None:
        self._close()
        self._events.append(AllBlocksCleared())

    def drain(self) -> tuple[KvEvent, ...]:
        self._close()
        if not self._events:
            return ()
        events, self._events = tuple(self._events), []
        return events

    def _close(self) -> None:
        if self._stored:
            salts = None if self._salt is None else ((self._salt,), *[None] * (len(self._stored) - 1))
            self._events.append(
                BlockStored(
                    tuple(self._stored),
                    self._parent,
                    tuple(self._tokens),
                    self._block_size,
                    None,
                    MEDIUM,
                    None,
                    salts,
                )
            )
            self._stored, self._tokens = [], []
        if self._removed:
            self._events.append(BlockRemoved(tuple(self._removed), MEDIUM))
            self._removed = []
