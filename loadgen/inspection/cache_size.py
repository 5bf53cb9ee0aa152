"""How much of the ideal a cache of limited size would find: one that forgets what was least recently used first.

A block is found by a cache that holds more blocks than came to the top since it came last, so one pass tells the hits
of every size (Mattson and others, IBM Systems Journal 9(2), 1970). Beyond `CAPACITY` blocks it looks at a sample, as
SHARDS does, with a correction like that paper's: hits that the sample lacks, or has too many, are of the blocks that
come most often. A request touches its last block first, so that a beginning outlives what goes on from it.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import msgspec
import numpy as np

from loadgen.inspection.prompts import Prompts
from loadgen.inspection.sampling import Sampling

CAPACITY = 8192
_SIZES = 64  # powers of two


class CachePoint(msgspec.Struct, frozen=True):
    """A cache of `blocks` finds this share of all prompts' blocks."""

    blocks: int
    found: float


class CacheCurve:
    """Takes prompts in the order of the trace."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._sampling = Sampling()
        self._last: dict[int, int] = {}  # when each key came last
        self._times: list[int] = []  # these, ascending
        self._now = 0
        self._references = 0
        self._found = np.zeros(_SIZES, dtype=np.int64)  # by the least power of two of blocks that is enough

    def take(self, prompts: Prompts) -> None:
        """Every block of each prompt is looked up and then kept."""
        self._references += len(prompts.keys)
        taken = self._sampling.taken(prompts.keys)
        keys = prompts.keys[taken].tolist()
        bounds = np.searchsorted(taken, prompts.offsets).tolist()
        for begin, end in pairwise(bounds):
            if begin < end:
                self._take(keys[begin:end])

    def _take(self, keys: list[int]) -> None:
        limit, weight = self._sampling.limit, self._sampling.weight
        keys = [key for key in keys if key < limit]
        last, times = self._last, self._times
        for key in keys:
            if key not in last:
                break
            above = len(times) - 1 - bisect_left(times, last[key])
            self._found[(above * weight).bit_length()] += weight
        for key in reversed(keys):
            if key in last:
                del times[bisect_left(times, last[key])]
            last[key] = self._now
            times.append(self._now)
            self._now += 1
        while len(self._last) > self._capacity:
            self._sampling.halve()
            self._keep_below(self._sampling.limit)

    def _keep_below(self, limit: int) -> None:
        self._last = {key: time for key, time in self._last.items() if key < limit}
        self._times = sorted(self._last.values())

    def points(self, found: int) -> tuple[CachePoint, ...]:
        """From the smallest cache that finds anything to the smallest that finds the `found` blocks that come again."""
        if not self._found.any():
            return ()
        first, last = np.flatnonzero(self._found)[[0, -1]]
        counts = self._found.copy()
        counts[first] += found - counts.sum()
        shares = np.clip(np.cumsum(counts) / self._references, 0.0, 1.0)
        return tuple(CachePoint(1 << power, shares[power].item()) for power in range(first, last + 1))
