"""With what prompts begin: how many of them share the most common first blocks.

The counts of frequent items are Misra and Gries' (1982) with batches: when there are too many, the rare ones go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np

from loadgen.inspection.prompts import Prompts

DEPTHS = tuple(2**power for power in range(15))  # pieces
KEPT = 1000
RARE = 1000  # a beginning of fewer than one in so many is not followed further


class Opening(msgspec.Struct, frozen=True):
    """At least so many `prompts` begin with the same `tokens`."""

    tokens: int
    prompts: int


class _Frequent:
    """Counts of (key, tokens), of which those that were rare have been forgotten."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()

    def add(self, beginnings: Iterable[tuple[int, int]]) -> None:
        self.counts.update(beginnings)
        if len(self.counts) > 8 * KEPT:
            self.counts = Counter(dict(self.counts.most_common(KEPT)))


class Openings:
    """Takes prompts; those that go on from an earlier turn of their session are not counted."""

    def __init__(self) -> None:
        self.prompts = 0
        self._frequent = [_Frequent() for _ in DEPTHS]

    def add(self, prompts: Prompts) -> None:
        """Look at the first pieces."""
        left = np.flatnonzero((prompts.bases == 0) & (prompts.counts > 0))
        self.prompts += len(left)
        for depth, frequent in zip(DEPTHS, self._frequent, strict=True):
            left = left[prompts.counts[left] >= depth]
            if not len(left):
                return
            places = prompts.offsets[left] + depth - 1
            beginnings = list(zip(prompts.keys[places].tolist(), prompts.ends[places].tolist(), strict=True))
            frequent.add(beginnings)
            # What few have in common, fewer have in common with more after it.
            least = self.prompts // RARE
            left = left[[frequent.counts[beginning] >= least for beginning in beginnings]]

    def openings(self) -> tuple[Opening, ...]:
        """The most common beginning at each depth that more than one prompt has."""
        found = []
        for frequent in self._frequent:
            (_, tokens), most = max(frequent.counts.items(), key=lambda item: item[1], default=((0, 0), 0))
            if most > 1:
                found.append(Opening(tokens, most))
        return tuple(found)
