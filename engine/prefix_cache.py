"""What the blocks hold, so that it can be found again: whole blocks by their hash, parts of blocks by their beginning.

Blocks in here are full and do not change. Who may hold or evict one is the pool's matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

Key = TypeVar("Key")

PARTIAL_LOOKS = 16  # of the blocks with a common beginning, how many are compared: a look-up stays O(1)


class Contents(NamedTuple):
    """A published block: its hash, the hash of the block before it, its tokens, and whether any was generated."""

    hash: bytes
    parent: bytes
    tokens: Sequence[int]  # empty where parts of blocks are not looked for
    decoded: bool


class PrefixCache:
    """Hash to blocks, and (hash before a block, its first token) to blocks.

    `remember` is how many evicted hashes are kept, to tell a miss by eviction from a prefix never seen.
    """

    def __init__(self, remember: int) -> None:
        # Equal blocks may be computed twice; evicting one must not lose the other.
        self.by_hash: dict[bytes, dict[int, None]] = {}
        self.contents: dict[int, Contents] = {}
        self._beginnings: dict[tuple[bytes, int], dict[int, None]] = {}
        self._evicted: OrderedDict[bytes, None] = OrderedDict()  # oldest first; a dict finds its first key slowly
        self._remember = remember

    def __contains__(self, block: int) -> bool:
        return block in self.contents

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def num_beginnings(self) -> int:
        """Blocks that can be found by their beginning: all, or none where parts of blocks are not looked for."""
        return sum(map(len, self._beginnings.values()))

    def find(self, block_hash: bytes) -> int | None:
        """The newest block that holds these tokens after this prefix, if one does."""
        blocks = self.by_hash.get(block_hash)
        return next(reversed(blocks)) if blocks else None

    def find_beginning(self, parent: bytes, tokens: Sequence[int]) -> tuple[int, int] | None:
        """The block after `parent` that shares the most first tokens with `tokens`, and how many; None if none does."""
        if not len(tokens):
            return None
        best, longest = -1, 0
        for block in islice(reversed(self._beginnings.get((parent, tokens[0]), {})), PARTIAL_LOOKS):
            common = common_length(self.contents[block].tokens, tokens)
            if common > longest:
                best, longest = block, common
        return (best, longest) if longest else None

    def beginning_with(self, block: int) -> Collection[int]:
        """The blocks that are found by the beginning of this one."""
        contents = self.contents[block]
        return self._beginnings[contents.parent, contents.tokens[0]] if contents.tokens else (block,)

    def was_evicted(self, block_hash: bytes) -> bool:
        return block_hash in self._evicted

    def add(self, block: int, contents: Contents) -> None:
        self.contents[block] = contents
        _index(self.by_hash, contents.hash, block)
        if contents.tokens:
            _index(self._beginnings, (contents.parent, contents.tokens[0]), block)
        if self._evicted:
            self._evicted.pop(contents.hash, None)

    def evict(self, block: int) -> bytes | None:
        """Forget a block whose memory is wanted, and remember that it was here.

        Returns its hash, or None while an equal block still has it.
        """
        block_hash = self.forget(block).hash
        if block_hash in self.by_hash:
            return None
        self._evicted[block_hash] = None
        if len(self._evicted) > self._remember:
            self._evicted.popitem(last=False)
        return block_hash

    def forget(self, block: int) -> Contents:
        contents = self.contents.pop(block)
        _discard(self.by_hash, contents.hash, block)
        if contents.tokens:
            _discard(self._beginnings, (contents.parent, contents.tokens[0]), block)
        return contents


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences have in common from their beginning."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _index(index: dict[Key, dict[int, None]], key: Key, block: int) -> None:
    blocks = index.get(key)
    if blocks is None:
        index[key] = {block: None}
    else:
        blocks[block] = None


def _discard(index: dict[Key, dict[int, None]], key: Key, block: int) -> None:
    blocks = index[key]
    del blocks[block]
    if not blocks:
        del index[key]
