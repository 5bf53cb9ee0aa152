"""What recomputing and swapping cost on this machine, learned from the steps that were run."""

from __future__ import annotations

WEIGHT = 0.2  # of the newest measurement
LEAST_TOKENS = 16  # shorter steps read the weights rather than compute: their time per token says nothing of a prefill


class Rates:
    """Exponentially weighted seconds per token of a prefill and per block swapped one way; None until measured."""

    def __init__(self) -> None:
        self.token: float | None = None
        self.block: float | None = None

    def computed(self, tokens: int, seconds: float) -> None:
        if tokens >= LEAST_TOKENS:
            self.token = _blend(self.token, seconds / tokens)

    def swapped(self, blocks: int, seconds: float) -> None:
        if blocks:
            self.block = _blend(self.block, seconds / blocks)

    def recompute_seconds(self, tokens: int) -> float | None:
        return None if self.token is None else tokens * self.token

    def swap_seconds(self, blocks: int) -> float | None:
        """There and back."""
        return None if self.block is None else 2 * blocks * self.block


def _blend(before: float | None, new: float) -> float:
    return new if before is None else before + WEIGHT * (new - before)
