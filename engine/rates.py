"""What recomputing and swapping cost on this machine, learned from the steps that were run."""

from __future__ import annotations

WEIGHT = 0.2  # of the newest measurement
LEAST_TOKENS = 16  # shorter steps read the weights rather than compute: their time per token says nothing of a prefill


class Rates:
    """Exponentially weighted seconds per token of a prefill, per block swapped one way and per block copied on the
    device; None until measured."""

    def __init__(self) -> None:
        self.token: float | None = None
        self.block: float | None = None
        self.copy: float | None = None

    def computed(self, tokens: int, seconds: float) -> None:
        if tokens >= LEAST_TOKENS:
            self.token = _blend(self.token, seconds / tokens)

    def swapped(self, blocks: int, seconds: float) -> None:
        if blocks:
            self.block = _blend(self.block, seconds / blocks)

    def copied(self, blocks: int, seconds: float) -> None:
        if blocks:
            self.copy = _blend(self.copy, seconds / blocks)

    def copy_pays(self, tokens: int) -> bool:
        """Whether to copy a block for its first `tokens` tokens is cheaper than to compute them; yes until measured."""
        return self.copy is None or self.token is None or self.copy <= tokens * self.token

    def recompute_seconds(self, tokens: int) -> float | None:
        return None if self.token is None else tokens * self.token

    def swap_seconds(self, moves: int) -> float | None:
        """Of blocks moved one way."""
        return None if self.block is None else moves * self.block


def _blend(before: float | None, new: float) -> float:
    return new if before is None else before + WEIGHT * (new - before)
