"""KV cache events as vLLM and SGLang publish them, decoded from any of their three encodings. Pure.

They name blocks by hashes of their contents: not physical blocks, and not who holds them.
"""

from __future__ import annotations

from dataclasses import dataclass

BlockHash = int | bytes


class BadEvents(ValueError):
    """A payload that is none of the known encodings; the message says what came."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Full blocks that can be found now, each the next one's parent; `parent` is of the first, None: a root.

    `token_ids` are of all blocks together, empty where a recording leaves them out.
    """

    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora: str | None = None
    medium: str | None = None
    group: int | None = None  # of layers that share block tables, in hybrid models


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step changed; `time` is the publisher's Unix time, `rank` its data-parallel rank."""

    time: float
    events: tuple[KvEvent, ...]
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """One message of a publisher, by its sequence number."""

    sequence: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Missed:
    """Messages `first` to `last` never came, and could not be had again."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """The publisher counts from the beginning again: what it had stored is gone."""


Message = Heard | Missed | Restarted


def decode(payload: bytes) -> Batch:
    """The batch in a message's last frame. Raises BadEvents."""
    raise NotImplementedError
