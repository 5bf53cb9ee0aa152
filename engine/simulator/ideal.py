"""What a trace's prompts have in common, whatever the engine: the hits of a cache that never forgets anything."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.simulator.tokens import block_names, prompt_name
from engine.trace_lengths import TracedRequest


class Ideal(msgspec.Struct, frozen=True):
    """Hits in blocks, were the requests served one after the other and nothing ever evicted.

    `blocks` are all blocks of all prompts, a shorter last one included. `repeated_blocks` are those of them that an
    earlier prompt (or its answer) had at the same place after the same beginning. `reusable_blocks` are what is left
    of these by the engine's rule: full blocks only, and at least one token of each prompt is computed.
    `distinct_blocks` are full and differ from each other: what a pool that keeps everything must hold.
    """

    blocks: int = 0
    repeated_blocks: int = 0
    reusable_blocks: int = 0
    distinct_blocks: int = 0

    @property
    def repeated_rate(self) -> float:
        return self.repeated_blocks / self.blocks

    @property
    def reusable_rate(self) -> float:
        return self.reusable_blocks / self.blocks

    def plus(self, other: Ideal, times: int = 1) -> Ideal:
        own, more = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Ideal(*(one + times * another for one, another in zip(own, more, strict=True)))


def ideal_hits(trace: Sequence[TracedRequest], block_size: int, requests: int, fresh: bool) -> Ideal:
    """Count the first `requests` requests of a trace that is repeated, each time new text (`fresh`) or the same."""
    rounds, rest = divmod(requests, len(trace))
    seen: set[bytes] = set()
    total = Ideal()
    if rounds:
        total = _count(trace, block_size, seen)
        again = total if fresh or rounds == 1 else _count(trace, block_size, seen)
        total = total.plus(again, rounds - 1)
    if fresh:
        seen.clear()
    return total.plus(_count(trace[:rest], block_size, seen))


def _count(trace: Sequence[TracedRequest], block_size: int, seen: set[bytes]) -> Ideal:
    blocks = repeated = reusable = distinct = 0
    for traced in trace:
        full, rest = divmod(traced.prompt_tokens, block_size)
        # All but the answer's last token have KV.
        computed = traced.prompt_tokens + traced.output_tokens - 1
        names = block_names(traced, 0, block_size, computed)
        hits = 0
        for name in names[:full]:
            if name not in seen:
                break
            hits += 1
        blocks += full
        repeated += hits
        reusable += min(hits, (traced.prompt_tokens - 1) // block_size)
        before = len(seen)
        seen.update(names)
        distinct += len(seen) - before
        if rest:
            name = prompt_name(traced, 0)
            blocks += 1
            repeated += name in seen
            seen.add(name)
    return Ideal(blocks, repeated, reusable, distinct)
