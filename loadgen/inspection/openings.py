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
        anew = (prompts.bases == 0) & (prompts.counts > 0)
        self.prompts += int(np.count_nonzero(anew))
        for depth, frequent in zip(DEPTHS, self._frequent, strict=True):
            places = prompts.offsets[:-1][anew & (prompts.counts >= depth)] + depth - 1
            if not len(places):
                return
            frequent.add(zip(prompts.keys[places].tolist(), prompts.ends[places].tolist(), strict=True))

    def openings(self) -> tuple[Opening, ...]:
        """The most common beginning at each depth that more than one prompt has."""
        found = []
        for frequent in self._frequent:
            (_, tokens), most = max(frequent.counts.items(), key=lambda item: item[1], default=((0, 0), 0))
            if most > 1:
                found.append(Opening(tokens, most))
        return tuple(found)
