"""How much of a trace's prompts a prefix cache would find that never forgets anything.

Exact until `EXACT_PIECES` different pieces of prompts are known, and after that by a sample (see `sampling`). What is
found is what comes again, so it is estimated as all less what comes for the first time: each piece does so once, and
none weighs more for being in many prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from loadgen.inspection.columns import ColumnReader, batches
from loadgen.inspection.prompts import Integers, Prompts
from loadgen.inspection.sampling import Estimate, Sampling
from loadgen.traces.model import Header, Session

EXACT_PIECES = 1_000_000


class HitRate(msgspec.Struct, frozen=True):
    """Of the `input_tokens` of all prompts, those that an engine with blocks of `block_size` tokens would find.

    It finds full blocks, and computes at least one token of each prompt. `standard_error` is that of `found_tokens`; 0:
    they are exact.
    """

    block_size: int
    found_tokens: int
    input_tokens: int
    standard_error: float = 0.0

    @property
    def rate(self) -> float:
        """0 without any input."""
        return self.found_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def rate_error(self) -> float:
        """The standard error of the rate."""
        return self.standard_error / self.input_tokens if self.input_tokens else 0.0


class KnownPieces:
    """Keys of the pieces that came, whole ones, and short ones with the tokens of their longest."""

    def __init__(self) -> None:
        self._whole: set[int] = set()
        self._short: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._whole) + len(self._short)

    def look_up(self, keys: list[int], short: int) -> tuple[int, int]:
        """How many first pieces of a prompt are known, and how many tokens of the one after them. Then all are.

        `short` is the tokens of the last piece, if it is the beginning of a longer one; else 0.
        """
        whole = self._whole
        end = len(keys) - (short > 0)
        at, beyond = 0, end
        while at < beyond:  # what is known of a prompt is its beginning: look in the middle first
            middle = (at + beyond) // 2
            if keys[middle] in whole:
                at = middle + 1
            else:
                beyond = middle
        part = 0
        if at < end:  # nothing is known that goes on from there
            part = self._short.pop(keys[at], 0)
            whole.update(keys[at:end])
        if short:
            known = short if keys[end] in whole else self._short.get(keys[end], 0)
            if known >= short:
                return at + 1, 0
            self._short[keys[end]] = short
            part = part or known
        return at, part

    def keep_below(self, limit: int) -> None:
        """Forget the other keys."""
        self._whole = {key for key in self._whole if key < limit}
        self._short = {key: tokens for key, tokens in self._short.items() if key < limit}


class IdealHits:
    """Takes prompts in the order of the trace; `rates` tells the hits of an infinite cache at each block size."""

    def __init__(self, block_sizes: Iterable[int], capacity: int = EXACT_PIECES) -> None:
        """Raises `ValueError` for a block size below 1."""
        self._missed = {size: Estimate() for size in block_sizes}
        if min(self._missed, default=0) < 1:
            raise ValueError(f"block sizes must be at least 1, got {list(self._missed)}")
        self._reachable = dict.fromkeys(self._missed, 0)  # tokens of full blocks that may be found
        self._capacity = capacity
        self._sampling = Sampling()
        self._known = KnownPieces()
        self._input_tokens = 0
        self.pieces = 0
        self.new_pieces = Estimate()
        self.new_tokens = Estimate()  # that the cache holds, of prompts alone

    def rates(self) -> tuple[HitRate, ...]:
        """For each block size."""
        return tuple(
            HitRate(size, max(0, self._reachable[size] - missed.total), self._input_tokens, missed.standard_error)
            for size, missed in self._missed.items()
        )

    def take(self, prompts: Prompts) -> None:
        """Look up each prompt, and keep it for the next ones."""
        self._input_tokens += int(prompts.tokens.sum())
        self.pieces += len(prompts.keys)
        most = prompts.tokens - 1  # one token is computed
        reach = np.minimum(np.where(prompts.counts > 0, prompts.tokens, prompts.known), most)
        new, found = self._look_up(prompts)
        starts, ends = prompts.starts(new) + found, prompts.ends[new]
        most = prompts.per_piece(most)[new]
        weight = self._sampling.weight
        self.new_pieces.add(np.ones(len(new), dtype=np.int64), weight)
        self.new_tokens.add(ends - starts, weight)
        for size, missed in self._missed.items():
            self._reachable[size] += int((reach // size).sum()) * size
            missed.add((np.minimum(ends, most) // size - np.minimum(starts, most) // size) * size, weight)
        while len(self._known) > self._capacity:
            self._sampling.halve()
            self._known.keep_below(self._sampling.limit)

    def _look_up(self, prompts: Prompts) -> tuple[Integers, Integers]:
        """The indices of the sampled pieces that were not known, and how many first tokens of each were."""
        taken = self._sampling.taken(prompts.keys)
        if not len(taken):
            return taken, taken
        keys = prompts.keys[taken].tolist()
        bounds = np.searchsorted(taken, prompts.offsets)
        last = prompts.offsets[1:] - 1
        short = np.where(
            prompts.short & (bounds[1:] > bounds[:-1]) & (taken[bounds[1:] - 1] == last),
            prompts.ends[last] - prompts.starts(last),
            0,
        )
        new_from: list[int] = []
        found = np.zeros(len(taken), dtype=np.int64)
        marks = bounds.tolist()
        for begin, end, tokens in zip(marks, marks[1:], short.tolist(), strict=False):
            known, part = self._known.look_up(keys[begin:end], tokens)
            new_from.append(begin + known)
            if part:
                found[begin + known] = part
        places = np.flatnonzero(np.arange(len(taken)) >= np.repeat(new_from, np.diff(bounds)))
        return taken[places], found[places]


def ideal_hits(sessions: Iterable[Session], header: Header, block_sizes: Sequence[int]) -> tuple[HitRate, ...]:
    """The hits of an infinite cache, were the requests served one after the other, for each block size."""
    hits, reader = IdealHits(block_sizes), ColumnReader(header)
    for batch in batches(sessions):
        columns = reader.read(batch)
        hits.take(columns.blocks)
        hits.take(columns.texts)
    return hits.rates()
