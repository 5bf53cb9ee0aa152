"""Which workers have which blocks in their prefix caches, by the names that their engines tell (`KvNews`).

Workers are numbered by whoever asks (slots), and a set of them is an integer with a bit for each: to follow a prompt
over a thousand workers is one look-up and one `and` a block. Blocks that one worker has share one integer, and so do
blocks that follow each other and are at the same workers: that is less memory, and one need not look at each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from engine.block_hash import extend_hashes, root_hash
from engine.kv_events import event_hash


def prompt_names(tokens: Sequence[int], block_size: int, salt: str | None = None) -> tuple[int, ...]:
    """The names of a prompt's full blocks, in order; `salt` is its request's `cache_salt`."""
    return tuple(map(event_hash, extend_hashes([], tokens, block_size, root_hash(salt))))


class Level(NamedTuple):
    """These workers have the first `blocks` blocks of a prompt, and maybe more."""

    blocks: int
    workers: int


class BlockIndex:
    """As exact as what it is told. Names are 64 bits of a strong hash: two blocks of one worker may share one, however
    unlikely, and so what is told twice or was never there is no error.

    Beside what workers have is what they are expected to have, because a prompt is on its way there.
    """

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}  # by name, those that have it or are expected to; never 0
        self._bits: list[int] = []  # one object for each slot, shared by all blocks that it alone has
        self._told: list[set[int]] = []  # by slot
        self._expected: list[set[int]] = []  # by slot; some may be told by now

    def __len__(self) -> int:
        """Names that somebody has, or is expected to have."""
        return len(self._workers)

    def names(self, slot: int) -> Collection[int]:
        """What this worker has."""
        return self._told[slot] if slot < len(self._bits) else ()

    def expected(self, slot: int) -> Collection[int]:
        """What is on its way there."""
        return self._expected[slot] if slot < len(self._bits) else ()

    def store(self, slot: int, names: Sequence[int]) -> None:
        self._grow(slot)
        self._set(slot, names)
        self._told[slot].update(names)

    def remove(self, slot: int, names: Sequence[int]) -> None:
        if slot < len(self._bits):
            self._give_up(slot, names, self._told[slot], self._expected[slot])

    def forget(self, slot: int) -> None:
        """This worker has nothing any more; what is on its way there still is."""
        if slot < len(self._bits):
            self.remove(slot, tuple(self._told[slot]))
            self._told[slot] = set()  # a set that is emptied keeps its memory

    def expect(self, slot: int, names: Iterable[int]) -> list[int]:
        """A prompt of these blocks is on its way there. Returns those that are expected because of it alone, which
        whoever sent it has to `expect_no_more`."""
        self._grow(slot)
        told, expected = self._told[slot], self._expected[slot]
        new = [name for name in names if name not in told and name not in expected]
        self._set(slot, new)
        expected.update(new)
        return new

    def expect_no_more(self, slot: int, names: Sequence[int]) -> None:
        """What `expect` returned: from now on only what is told counts."""
        self._give_up(slot, names, self._expected[slot], self._told[slot])

    def levels(self, names: Sequence[int], among: int) -> list[Level]:
        """How far the caches of `among` follow a prompt, with what they are expected to have: workers by the blocks of
        it, from the least to the most, each level's within the one before."""
        get = self._workers.get
        levels: list[Level] = []
        depth, left, last = 0, among, -1
        for name in names:
            workers = get(name, 0)
            if workers is not last:  # else the block before has the same, most often
                last, both = workers, left & workers
                if both != left:
                    levels.append(Level(depth, left))
                    if not both:
                        return levels
                    left = both
                    if not left & (left - 1):  # one is left, and its own sets are faster to ask
                        slot = left.bit_length() - 1
                        depth = _follow(names, depth + 1, self._told[slot], self._expected[slot])
                        break
            depth += 1
        levels.append(Level(depth, left))
        return levels

    def depth(self, names: Sequence[int], slot: int) -> int:
        """How many first blocks of a prompt this worker has."""
        return _follow(names, 0, self.names(slot))

    def _grow(self, slot: int) -> None:
        while slot >= len(self._bits):
            self._bits.append(1 << len(self._bits))
            self._told.append(set())
            self._expected.append(set())

    def _set(self, slot: int, names: Iterable[int]) -> None:
        workers, bit = self._workers, self._bits[slot]
        last, result = 0, bit
        for name in names:
            others = workers.get(name, 0)
            if others is not last:
                last, result = others, others | bit
            workers[name] = result

    def _give_up(self, slot: int, names: Iterable[int], one: set[int], other: set[int]) -> None:
        """Take names out of one of its sets; what the other has too stays."""
        workers, bit = self._workers, self._bits[slot]
        last, result = bit, 0
        for name in names:
            if name not in one:
                continue
            one.remove(name)
            if name in other:
                continue
            others = workers[name]
            if others is not last:
                last, result = others, others ^ bit
            if result:
                workers[name] = result
            else:
                del workers[name]


def _follow(names: Sequence[int], depth: int, told: Collection[int], expected: Collection[int] = ()) -> int:
    """How many first blocks are in one of these, of which `depth` are known to be."""
    for place in range(depth, len(names)):
        name = names[place]
        if name not in told and name not in expected:
            return place
    return len(names)
