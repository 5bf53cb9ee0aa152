"""The tree of prefix blocks that a server has in its cache now, folded from its KV events. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from servers.kv_events import BlockHash, Message


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks that follow each other without a branch, from `first` on: one line of the tree.

    `depth` is how many runs are above it, `before` how many tokens. `below` are the blocks that go on from it. `known`
    is False where what comes before it was never seen.
    """

    first: BlockHash
    last: BlockHash
    blocks: int
    tokens: int
    depth: int
    before: int
    below: int
    children: int
    known: bool
    opening: tuple[int, ...]  # its first token ids; empty where they are left out
    lora: str | None = None
    medium: str | None = None
    stored: float = 0.0  # Unix time of its last block


@dataclass(frozen=True, slots=True)
class Churn:
    """Counts since the watching began. `again`: stored blocks that had been removed before."""

    stored: int = 0
    removed: int = 0
    again: int = 0
    cleared: int = 0  # times that everything was
    missed: int = 0  # messages
    unknown_parents: int = 0
    unknown_removals: int = 0


class KvTree:
    """Fold messages in the order in which they came; `runs` and `resident` are of what is there now."""

    def __init__(self) -> None:
        raise NotImplementedError

    def take(self, message: Message) -> None:
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether everything was heard from the publisher's beginning on; else there may be more than is seen."""
        raise NotImplementedError

    @property
    def resident(self) -> int:
        raise NotImplementedError

    @property
    def churn(self) -> Churn:
        raise NotImplementedError

    def runs(self) -> Iterator[Run]:
        """Depth first, the largest subtree first."""
        raise NotImplementedError
