"""A sample of keys in bounded memory: of each key the same is decided wherever it comes, so what is kept is whole.

SHARDS (Waldspurger, Park, Garthwaite, Ahmad, FAST 2015) samples references this way: a key is taken if its hash is
below a limit, and when too many are kept, the limit is lowered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from loadgen.inspection.prompts import Integers, Keys


class Sampling:
    """Which keys, evenly spread over 64 bits, are taken: all of them, then half, then a quarter."""

    def __init__(self) -> None:
        self._halvings = 0

    @property
    def weight(self) -> int:
        """How many keys each one that is taken stands for; 1: every one is taken."""
        return 1 << self._halvings

    @property
    def limit(self) -> int:
        """Keys below it are taken."""
        return 1 << (64 - self._halvings)

    def halve(self) -> None:
        self._halvings += 1

    def taken(self, keys: Keys) -> Integers:
        """The indices of the keys that are."""
        if not self._halvings:
            return np.arange(len(keys))
        return np.flatnonzero(keys < np.uint64(self.limit))


class Estimate:
    """A sum over things that were sampled by their keys, and how far off it may be.

    Each thing counts as often as the keys it stands for (Horvitz and Thompson 1952). What came while every key was
    taken is exact.
    """

    def __init__(self) -> None:
        self.total = 0
        self._variance = 0

    def add(self, values: Integers, weight: int) -> None:
        """The values of the things that were taken, at this weight."""
        self.total += int(values.sum()) * weight
        if weight > 1:
            self._variance += int(values @ values) * weight * (weight - 1)

    @property
    def standard_error(self) -> float:
        """0 for an exact sum."""
        return math.sqrt(self._variance)


class Distinct:
    """Counts different keys: exactly up to `capacity` of them, beyond that by a sample."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sampling = Sampling()
        self._seen: set[int] = set()
        self.count = Estimate()

    def add(self, keys: Keys) -> None:
        """Keys that may have come before."""
        before = len(self._seen)
        self._seen.update(keys[self._sampling.taken(keys)].tolist())
        new = len(self._seen) - before
        self.count.add(np.ones(new, dtype=np.int64), self._sampling.weight)
        while len(self._seen) > self._capacity:
            self._sampling.halve()
            limit = self._sampling.limit
            self._seen = {key for key in self._seen if key < limit}


def name_keys(names: Iterable[str]) -> Keys:
    """Keys for names, evenly spread and the same in every process."""
    return np.array([int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) for name in names], dtype=np.uint64)
