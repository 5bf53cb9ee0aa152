"""A step before and after the device: what the scheduler decided, and what the runner found.

The plan is complete before the device works; the runner decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from engine.protocol import RowKind
from engine.sampling_params import SamplingParams


class PlannedRow(msgspec.Struct, frozen=True):
    """One request's part of a step.

    `history` (prompt, then generated tokens) and `block_table` are the request's own lists, not copies:
    read-only, and valid until the step is committed. The step feeds `history[start : start + count]`.
    A `held` row feeds its last computed token again and writes no slot.
    """

    request_id: str
    kind: RowKind
    history: Sequence[int]
    prompt_length: int
    start: int
    count: int
    block_table: Sequence[int]
    samples: bool
    sampling: SamplingParams

    def slots(self, block_size: int) -> list[int]:
        """The slot each fed token writes (-1: none)."""
        if self.kind == "held":
            return [-1] * self.count
        positions = range(self.start, self.start + self.count)
        return [self.block_table[p // block_size] * block_size + p % block_size for p in positions]


class StepPlan(msgspec.Struct, frozen=True):
    """Every row of one step; prefills and decodes in the order they were scheduled."""

    rows: tuple[PlannedRow, ...]

    @property
    def num_tokens(self) -> int:
        return sum(row.count for row in self.rows)


class Sampled(msgspec.Struct, frozen=True):
    """One sampled token; `top` holds (token id, log-probability) of the best alternatives, best first."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class StepResult(msgspec.Struct, frozen=True):
    """What the runner computed, and its own durations in seconds.

    Each row with `samples` is either in `sampled` or, with the reason, in `failed`: one bad row does not cost the rest.
    """

    sampled: dict[str, Sampled]
    prepare: float
    forward: float
    sample: float
    failed: dict[str, str] = {}


class Runner(Protocol):
    """Whatever computes a plan: the model on a device, or a stand-in that only counts."""

    def run(self, plan: StepPlan) -> StepResult: ...
