"""The books of the pool: totals by state, waste and sharing, kept from the journal and never by a second count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.block_pool import BlockPool
from engine.protocol import Block, BlockState, Joined, PoolTotals, SharingLedger, WasteLedger


class Ledger:
    """Folds changed blocks into totals; cost is that of the changes, not of the pool."""

    def __init__(self, pool: BlockPool, kv_bytes_per_token: int) -> None:
        self._pool = pool
        self._block_bytes = pool.block_size * kv_bytes_per_token
        self._states: dict[int, BlockState] = {}  # of every block that is not free
        self._totals: dict[BlockState, int] = dict.fromkeys(PoolTotals.__struct_fields__, 0)  # type: ignore[arg-type]
        self._totals["free"] = pool.num_blocks
        self._tokens: Counter[str] = Counter()  # by the names of SharingLedger

    def apply(self, changes: Iterable[Block]) -> None:
        states, totals = self._states, self._totals
        for block in changes:
            totals[states.pop(block.block, "free")] -= 1
            totals[block.state] += 1
            if block.state != "free":
                states[block.block] = block.state

    def join(self, joined: Iterable[Joined]) -> None:
        """Count what was looked up and found; after a preemption apart, or recomputing would pass for hits."""
        tokens = self._tokens
        for one in joined:
            first = "resumed_" if one.resumed else ""
            tokens[f"{first}looked_up_tokens"] += one.looked_up_tokens
            tokens[f"{first}found_tokens"] += one.cached_tokens
            if not one.resumed:
                tokens["decoded_tokens"] += one.decoded_tokens
                tokens["copied_tokens"] += one.copied_tokens
                tokens["evicted_tokens"] += one.evicted_tokens
                tokens["forked_tokens"] += one.shared_tokens

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(map(self._pool.block, sorted(self._states)))

    @property
    def pool(self) -> PoolTotals:
        return PoolTotals(**self._totals)

    def waste(self, short_hole_blocks: int) -> WasteLedger:
        size, filled = self._pool.block_size, self._pool.held_slots_filled
        held = self._physical * size
        return WasteLedger(held, filled, held - filled, short_hole_blocks * size)

    @property
    def sharing(self) -> SharingLedger:
        logical, physical = self._pool.logical, self._physical
        saved = logical - physical
        return SharingLedger(logical, physical, saved, saved * self._block_bytes, **self._tokens)

    @property
    def _physical(self) -> int:
        """Blocks in tables: between steps nothing is pinned, and what is not available is held."""
        return self._pool.num_blocks - self._pool.num_available
