"""The physical KV blocks: who may take one, how many hold it, what is in it, and how it is found again.

A block with no reference waits in one queue: without a hash at the front, to be taken first, with a hash at the
back, so that the least recently used prefix is evicted first. Every change is journalled; the step record is made
from the journal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from engine.kv_events import KvJournal
from engine.prefix_cache import Contents, PrefixCache
from engine.protocol import Block, ReservedFit, block_state

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

    def is_counted(self) -> bool:
        """Whether as many blocks are marked as members as were counted."""
        return self._end - self._previous.count(-1) == self._length

    def is_linked(self) -> bool:
        """Whether following the links, which must agree both ways, comes to as many blocks as were counted."""
        following, previous, block = self._next, self._previous, self._end
        for _ in range(self._length + 1):
            after = following[block]
            if previous[after] != block:
                return False
            block = after
        return block == self._end

    def has_any(self, blocks: Iterable[int]) -> bool:
        return not {-1}.issuperset(map(self._previous.__getitem__, blocks))

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
    """References, filled slots and contents of `num_blocks` blocks of `block_size` slots.

    A block is available while no table holds it and no copy reads it (`pins`, dropped when the step is committed).
    `kv_journal` is told what can be found no more, where somebody wants to know.
    """

    def __init__(self, num_blocks: int, block_size: int, kv_journal: KvJournal | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.references = [0] * num_blocks  # block tables that hold it
        self.filled = [0] * num_blocks
        self.pins: dict[int, int] = {}
        self.queue = FreeQueue(num_blocks)
        self.cache = PrefixCache(remember=num_blocks)
        self.kv_journal = kv_journal
        self.logical = 0  # the sum of all references
        self.held_slots_filled = 0  # the sum of `filled` over blocks with references
        self._available = bytearray(b"\x01") * num_blocks  # the queue's members, for finding runs of them
        self._changed: set[int] = set()

    @property
    def num_available(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self.queue)

    def is_available(self, block: int) -> bool:
        """As `allocate_run` sees it."""
        return bool(self._available[block])

    def is_any_available(self, blocks: Iterable[int]) -> bool:
        return any(map(self._available.__getitem__, blocks))

    @property
    def num_findable(self) -> int:
        """Blocks that `allocate_run` sees as available."""
        return self._available.count(1)

    def allocate(self, count: int) -> list[int]:
        """Take `count` empty blocks, evicting cached ones when no others are left; all or none."""
        if count > self.num_available:
            raise IllegalState(f"{count} blocks were asked for and {self.num_available} are available")
        return [self._take(self.queue.first()) for _ in range(count)]

    def allocate_run(self, count: int, fit: ReservedFit = "first") -> list[int] | None:
        """Take `count` adjacent blocks, or None where no hole is long enough: from the first hole that is, or from
        the shortest such hole (Knuth, The Art of Computer Programming 1, 2.5)."""
        start = self._available.find(b"\x01" * count)
        if start < 0:
            return None
        if fit == "best":
            start = min((length, begin) for begin, length in self._holes() if length >= count)[1]
        run = list(range(start, start + count))
        for block in run:
            self._take(block)
        return run

    def acquire(self, block: int) -> None:
        """Hold a block for its contents: one that the prefix cache found, or one of a request that is forked."""
        if self.references[block] == 0:
            if block not in self.cache:
                raise IllegalState(f"block {block} is free: it has no contents to share")
            if block not in self.pins:
                self._dequeue(block)
            self.held_slots_filled += self.filled[block]
        self.references[block] += 1
        self.logical += 1
        self._changed.add(block)

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one reference to each block. Pass a table from its tail, so that a prefix's head lives longest."""
        for block in blocks:
            if self.references[block] == 0:
                raise IllegalState(f"block {block} is released and nobody holds it")
            self.references[block] -= 1
            self.logical -= 1
            self._changed.add(block)
            if self.references[block]:
                continue
            self.held_slots_filled -= self.filled[block]
            if block not in self.pins:
                self._enqueue(block)

    def pin(self, block: int) -> None:
        """Keep a block's contents until `unpin`, whoever gives it up: a copy in this step reads it."""
        if self.references[block] == 0 and block not in self.pins:
            if block not in self.cache:
                raise IllegalState(f"block {block} is free: it has no contents to copy")
            self._dequeue(block)
        self.pins[block] = self.pins.get(block, 0) + 1

    def unpin(self, block: int) -> None:
        if block not in self.pins:
            raise IllegalState(f"block {block} is not pinned")
        self.pins[block] -= 1
        if not self.pins[block]:
            del self.pins[block]
            if self.references[block] == 0:
                self._enqueue(block)

    def fill(self, block: int, filled: int) -> None:
        """Note that the first `filled` slots of a block now hold KV; only its one owner may write it.

        The journal leaves out what goes on being filled: that follows from who wrote how much.
        """
        before = self.filled[block]
        if self.references[block] != 1 or block in self.cache.contents:
            raise IllegalState(f"block {block} is written, and it is shared, published or free")
        if not before <= filled <= self.block_size:
            raise IllegalState(f"block {block} has {before} filled slots and cannot have {filled}")
        self.filled[block] = filled
        self.held_slots_filled += filled - before
        if before == 0 or filled == self.block_size:
            self._changed.add(block)

    def fill_on(self, blocks: Sequence[int]) -> None:
        """`fill` one more slot of each of these, which hold KV already and are not full afterwards."""
        references, filled = self.references, self.filled
        for block in blocks:
            if references[block] != 1:
                raise IllegalState(f"block {block} is written, and it is shared or free")
            filled[block] += 1
        self.held_slots_filled += len(blocks)

    def publish(self, block: int, contents: Contents) -> None:
        """Let a full block be found by the hash of every token up to its end."""
        if self.filled[block] != self.block_size or self.references[block] == 0:
            raise IllegalState(f"block {block} is published, and it is not full or not held")
        if block in self.cache.contents:
            raise IllegalState(f"block {block} is published twice")
        self.cache.add(block, contents)
        self._changed.add(block)

    def clear_cache(self) -> int:
        """Forget all contents; blocks that requests hold stay theirs. Returns how many blocks were forgotten."""
        forgotten = list(self.cache.contents)
        for block in forgotten:
            self.cache.forget(block)
            self._changed.add(block)
            if self.references[block] == 0 and block not in self.pins:
                self.filled[block] = 0
                self.queue.remove(block)
                self.queue.push_front(block)
        if self.kv_journal is not None:
            self.kv_journal.cleared()
        return len(forgotten)

    def short_hole_blocks(self, count: int) -> int:
        """Available blocks that lie in runs shorter than `count`: of no use to a reservation of that length."""
        return sum(length for _, length in self._holes() if length < count)

    def longest_hole(self) -> int:
        return max((length for _, length in self._holes()), default=0)

    def block(self, block: int) -> Block:
        references, filled, hashed = self.references[block], self.filled[block], block in self.cache.contents
        return Block(block, block_state(references, filled, hashed, self.block_size), references, filled, hashed)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def drain_journal(self) -> tuple[Block, ...]:
        """Every block that changed since the last call, as it now is, by id."""
        if self.pins:
            raise IllegalState("the journal is read while copies are under way")
        changed = tuple(map(self.block, sorted(self._changed)))
        self._changed.clear()
        return changed

    def _holes(self) -> Iterator[tuple[int, int]]:
        """Runs of available blocks: (first block, length)."""
        return ((match.start(), match.end() - match.start()) for match in _RUNS.finditer(self._available))

    def _take(self, block: int) -> int:
        if block in self.cache.contents:
            gone = self.cache.evict(block)
            if gone is not None and self.kv_journal is not None:
                self.kv_journal.removed(gone)
        self.queue.remove(block)
        self._available[block] = 0
        self.references[block] = 1
        self.logical += 1
        self.filled[block] = 0
        self._changed.add(block)
        return block

    def _dequeue(self, block: int) -> None:
        self.queue.remove(block)
        self._available[block] = 0

    def _enqueue(self, block: int) -> None:
        self._available[block] = 1
        if block in self.cache.contents:
            self.queue.push_back(block)
        else:
            self.filled[block] = 0
            self.queue.push_front(block)
