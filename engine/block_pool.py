"""The physical KV blocks: who may take one, how many hold it, what is in it, and how it is found again.

A block with no reference waits in one queue: without a hash at the front, to be taken first, with a hash at the
back, so that the least recently used prefix is evicted first. Every change is journalled; the step record is made
from the journal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from engine.protocol import Block, block_state

_RUNS = re.compile(rb"\x01+")


class IllegalState(RuntimeError):
    """The engine was asked for something that must never happen."""


class FreeQueue:
    """A doubly linked list of block ids over two arrays: every operation, also from the middle, is O(1)."""

    def __init__(self, num_blocks: int) -> None:
        self._end = end = num_blocks  # the sentinel joins both ends
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [end, *range(num_blocks)]
        self._length: int = num_blocks

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        block = self._next[self._end]
        while block != self._end:
            yield block
            block = self._next[block]

    def first(self) -> int:
        if not self._length:
            raise IllegalState("no block is free")
        return self._next[self._end]

    def remove(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        if before < 0:
            raise IllegalState(f"block {block} is not in the free queue")
        self._next[before], self._previous[after] = after, before
        self._previous[block] = -1
        self._length -= 1

    def push_front(self, block: int) -> None:
        self._insert(block, self._end, self._next[self._end])

    def push_back(self, block: int) -> None:
        self._insert(block, self._previous[self._end], self._end)

    def _insert(self, block: int, before: int, after: int) -> None:
        if self._previous[block] >= 0:
            raise IllegalState(f"block {block} is in the free queue already")
        self._next[before], self._previous[after] = block, block
        self._previous[block], self._next[block] = before, after
        self._length += 1


class BlockPool:
    """References, filled slots and hashes of `num_blocks` blocks of `block_size` slots."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.references = [0] * num_blocks
        self.filled = [0] * num_blocks
        self.hashes: list[bytes | None] = [None] * num_blocks
        self.queue = FreeQueue(num_blocks)
        # Equal blocks may be computed twice; evicting one must not lose the other.
        self.by_hash: dict[bytes, dict[int, None]] = {}
        self._available = bytearray(b"\x01") * num_blocks  # the queue's members, for finding runs of them
        self._changed: set[int] = set()

    @property
    def num_available(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self.queue)

    def lookup(self, block_hash: bytes) -> int | None:
        """A block that holds these tokens after this prefix, if one does."""
        blocks = self.by_hash.get(block_hash)
        return next(iter(blocks)) if blocks else None

    def allocate(self, count: int) -> list[int]:
        """Take `count` empty blocks, evicting cached ones when no others are left; all or none."""
        if count > self.num_available:
            raise IllegalState(f"{count} blocks were asked for and {self.num_available} are available")
        blocks = []
        for _ in range(count):
            block = self.queue.first()
            self._take(block)
            blocks.append(block)
        return blocks

    def allocate_run(self, count: int) -> list[int] | None:
        """Take the first run of `count` adjacent blocks (first fit), or None where no hole is long enough."""
        start = self._available.find(b"\x01" * count)
        if start < 0:
            return None
        run = list(range(start, start + count))
        for block in run:
            self._take(block)
        return run

    def acquire(self, block: int) -> None:
        """Hold a block that the prefix cache found: one more reference."""
        if self.references[block] == 0:
            if self.hashes[block] is None:
                raise IllegalState(f"block {block} is free: it has no contents to share")
            self.queue.remove(block)
            self._available[block] = 0
        self.references[block] += 1
        self._changed.add(block)

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one reference to each block. Pass a table from its tail, so that a prefix's head lives longest."""
        for block in blocks:
            if self.references[block] == 0:
                raise IllegalState(f"block {block} is released and nobody holds it")
            self.references[block] -= 1
            self._changed.add(block)
            if self.references[block]:
                continue
            self._available[block] = 1
            if self.hashes[block] is None:
                self.filled[block] = 0
                self.queue.push_front(block)
            else:
                self.queue.push_back(block)

    def fill(self, block: int, filled: int) -> None:
        """Note that the first `filled` slots of a block now hold KV; only its one owner may write it."""
        if self.references[block] != 1 or self.hashes[block] is not None:
            raise IllegalState(f"block {block} is written, and it is shared, published or free")
        if not self.filled[block] <= filled <= self.block_size:
            raise IllegalState(f"block {block} has {self.filled[block]} filled slots and cannot have {filled}")
        self.filled[block] = filled
        self._changed.add(block)

    def publish(self, block: int, block_hash: bytes) -> None:
        """Let a full block be found by `block_hash`, the hash of every token up to its end."""
        if self.filled[block] != self.block_size or self.references[block] == 0:
            raise IllegalState(f"block {block} is published, and it is not full or not held")
        if self.hashes[block] is not None:
            raise IllegalState(f"block {block} is published twice")
        self.hashes[block] = block_hash
        self.by_hash.setdefault(block_hash, {})[block] = None
        self._changed.add(block)

    def short_hole_blocks(self, count: int) -> int:
        """Available blocks that lie in runs shorter than `count`: of no use to a reservation of that length."""
        runs = (match.end() - match.start() for match in _RUNS.finditer(self._available))
        return sum(length for length in runs if length < count)

    def block(self, block: int) -> Block:
        references, filled, hashed = (
            self.references[block],
            self.filled[block],
            self.hashes[block] is not None,
        )
        state = block_state(references, filled, hashed, self.block_size)
        return Block(block, state, references, filled, hashed)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def drain_journal(self) -> tuple[Block, ...]:
        """Every block that changed since the last call, as it now is, by id."""
        changed = tuple(self.block(block) for block in sorted(self._changed))
        self._changed.clear()
        return changed

    def _take(self, block: int) -> None:
        block_hash = self.hashes[block]
        if block_hash is not None:
            siblings = self.by_hash[block_hash]
            del siblings[block]
            if not siblings:
                del self.by_hash[block_hash]
            self.hashes[block] = None
        self.queue.remove(block)
        self._available[block] = 0
        self.references[block] = 1
        self.filled[block] = 0
        self._changed.add(block)
