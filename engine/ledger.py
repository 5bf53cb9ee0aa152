"""The books of the pool: totals by state, waste and sharing, kept from the journal and never by a second count."""

from __future__ import annotations

from collections.abc import Iterable

from engine.protocol import Block, BlockState, PoolTotals, SharingLedger, WasteLedger


class Ledger:
    """Folds changed blocks into totals; cost is that of the changes, not of the pool."""

    def __init__(self, num_blocks: int, block_size: int, kv_bytes_per_token: int) -> None:
        self.block_size = block_size
        self.block_bytes = block_size * kv_bytes_per_token
        self._known: dict[int, Block] = {}  # every block that is not free
        self._totals: dict[BlockState, int] = {
            "free": num_blocks,
            "cached": 0,
            "reserved": 0,
            "filling": 0,
            "full": 0,
            "shared": 0,
        }
        self._logical = self._physical = self._filled = 0
        self._tokens = [0, 0, 0, 0]

    def apply(self, changes: Iterable[Block]) -> None:
        for block in changes:
            before = self._known.pop(block.block, None)
            self._count(before, -1)
            self._count(block, +1)
            if block.state != "free":
                self._known[block.block] = block

    def look_up(self, tokens: int, found: int, resumed: bool) -> None:
        """Count one admission's look-up; those after a preemption apart, or recomputing would pass for hits."""
        first = 2 if resumed else 0
        self._tokens[first] += tokens
        self._tokens[first + 1] += found

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(self._known[block] for block in sorted(self._known))

    @property
    def pool(self) -> PoolTotals:
        return PoolTotals(**self._totals)

    def waste(self, short_hole_blocks: int) -> WasteLedger:
        held = self._physical * self.block_size
        return WasteLedger(held, self._filled, held - self._filled, short_hole_blocks * self.block_size)

    @property
    def sharing(self) -> SharingLedger:
        saved = self._logical - self._physical
        return SharingLedger(self._logical, self._physical, saved, saved * self.block_bytes, *self._tokens)

    def _count(self, block: Block | None, sign: int) -> None:
        if block is None:
            self._totals["free"] += sign
            return
        self._totals[block.state] += sign
        self._logical += sign * block.references
        if block.references:
            self._physical += sign
            self._filled += sign * block.filled
