"""A runner that computes nothing: it counts a step's tokens and moves the simulated clock by what they would cost."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.plan import PlannedRow, Sampled, StepPlan, StepResult

_TOKEN = Sampled(0)  # which one it is matters to nobody: a traced request knows its answer


class StepCost(msgspec.Struct, frozen=True):
    """The seconds of a step: step + token * computed tokens + context * context tokens + move * moved tokens.

    A row's context tokens are those whose KV it reads, once a step: the arithmetic of attention over a long prefill
    is not in it. Moved tokens are the slots of blocks that are copied, or swapped out or in.

    The defaults are SmolLM2-135M in bf16 on two Zen 4 cores (shared/reference/engine-traps.md, CPU): the line through
    its 14 ms at 1 token and 361 ms at 512; 23,040 bytes of KV per context token at the 19.2 GB/s with which 14 ms
    stream the weights; a move reads and writes them.
    """

    step: float = 0.0133
    token: float = 0.00068
    context: float = 1.2e-6
    move: float = 2.4e-6


NO_COST = StepCost(0.0, 0.0, 0.0, 0.0)


class SimulatedClock:
    """Seconds since the trace began; moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class CountingRunner:
    """Draws a token for every row that wants one, and takes as long as `cost` says, on `clock`."""

    def __init__(self, cost: StepCost, clock: SimulatedClock, block_size: int) -> None:
        self._cost = cost
        self._clock = clock
        self._block_size = block_size

    def move(self, plan: StepPlan) -> float:
        transfer = self._cost.move * plan.num_moves * self._block_size
        self._clock.now += transfer
        return transfer

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        cost = self._cost
        computed = context = 0
        sampled: dict[str, Sampled] = {}
        for row in rows:
            request, count = row.request, row.count
            computed += count
            context += row.start + count
            if row.samples:
                sampled[request.id] = _TOKEN
                for sibling in row.siblings:
                    sampled[sibling.id] = _TOKEN
        forward = cost.step + cost.token * computed + cost.context * context
        self._clock.now += forward
        return StepResult(sampled, 0.0, forward, 0.0)
