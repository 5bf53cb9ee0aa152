"""Which workers have which blocks in their prefix caches, by the names that their engines tell (`KvNews`).

Workers are numbered by whoever asks (slots), and a set of them is an integer with a bit for each: to follow a prompt
over a thousand workers is one look-up and one `and` a block. A block that one worker has costs no set of its own.
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
    unlikely, and so what is told twice or was never there is no error."""

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}  # by name; never 0
        self._bits: list[int] = []  # one object for each slot, shared by all blocks that it alone has
        self._names: list[set[int]] = []  # by slot

    def __len__(self) -> int:
        """Names that somebody has."""
        return len(self._workers)

    def names(self, slot: int) -> Collection[int]:
        """What this worker has."""
        return self._names[slot] if slot < len(self._names) else ()

    def has(self, slot: int, name: int) -> bool:
        return bool(self._workers.get(name, 0) >> slot & 1)

    def store(self, slot: int, names: Iterable[int]) -> None:
        while slot >= len(self._bits):
            self._bits.append(1 << len(self._bits))
            self._names.append(set())
        workers, bit = self._workers, self._bits[slot]
        for name in names:
            others = workers.get(name)
            workers[name] = bit if others is None else others | bit
        self._names[slot].update(names)

    def remove(self, slot: int, names: Iterable[int]) -> None:
        if slot >= len(self._bits):
            return
        workers, bit, own = self._workers, self._bits[slot], self._names[slot]
        for name in names:
            if name not in own:
                continue
            own.remove(name)
            others = workers[name] ^ bit
            if others:
                workers[name] = others
            else:
                del workers[name]

    def forget(self, slot: int) -> None:
        """This worker has nothing any more."""
        if slot < len(self._names):
            self.remove(slot, tuple(self._names[slot]))
            self._names[slot] = set()  # a set that is emptied keeps its memory

    def levels(self, names: Sequence[int], among: int, more: BlockIndex | None = None) -> list[Level]:
        """How far the caches of `among` follow a prompt: workers by the blocks they have of it, from the least to the
        most, each level's within the one before. `more` is looked up beside."""
        told = self._workers.get
        expected = more._workers.get if more is not None and more._workers else None
        levels: list[Level] = []
        depth, left = 0, among
        for name in names:
            workers = told(name, 0)
            if expected is not None:
                workers |= expected(name, 0)
            both = left & workers
            if both != left:
                levels.append(Level(depth, left))
                if not both:
                    return levels
                left = both
                if not left & (left - 1):  # one is left, and its own set is faster to ask
                    slot = left.bit_length() - 1
                    others = () if more is None else more.names(slot)
                    depth = self._follow(names, depth + 1, slot, others)
                    break
            depth += 1
        levels.append(Level(depth, left))
        return levels

    def depth(self, names: Sequence[int], slot: int) -> int:
        """How many first blocks of a prompt this worker has."""
        return self._follow(names, 0, slot, ())

    def _follow(self, names: Sequence[int], depth: int, slot: int, more: Collection[int]) -> int:
        """How many first blocks it has, or `more` does, of which it is known to have `depth`."""
        own = self.names(slot)
        if not more:
            for place in range(depth, len(names)):
                if names[place] not in own:
                    return place
            return len(names)
        for place in range(depth, len(names)):
            if names[place] not in own and names[place] not in more:
                return place
        return len(names)
