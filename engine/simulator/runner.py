"""A runner that computes nothing: it counts a step's tokens and moves the simulated clock by what they would cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from engine.plan import PlannedRow, Sampled, StepPlan, StepResult

_TOKEN = Sampled(0)  # which one it is matters to nobody: a traced request knows its answer


class StepWork(NamedTuple):
    """What a step does: tokens computed, tokens of context that its rows read (once each), tokens drawn, and pairs of
    a computed token and one that it attends to."""

    computed: int
    context: int
    drawn: int
    pairs: int


class Cost(Protocol):
    """What steps cost, in seconds; `move` is for each slot that is copied or swapped."""

    @property
    def move(self) -> float: ...

    def seconds(self, work: StepWork) -> float: ...


class StepCost(msgspec.Struct, frozen=True):
    """The seconds of a step: step + token * computed tokens + context * context tokens + move * moved tokens, and
    row * drawn tokens + attention * pairs of a computed token and one that it attends to.

    A row's context tokens are those whose KV it reads, once a step: the arithmetic of attention over a long prefill
    is in `attention`. Moved tokens are the slots of blocks that are copied, or swapped out or in.

    The defaults are SmolLM2-135M in bf16 on two Zen 4 cores (shared/reference/engine-traps.md, CPU): the line through
    its 14 ms at 1 token and 361 ms at 512; 23,040 bytes of KV per context token at the 19.2 GB/s with which 14 ms
    stream the weights; a move reads and writes them. `row` and `attention` were not told apart there.
    """

    step: float = 0.0133
    token: float = 0.00068
    context: float = 1.2e-6
    move: float = 2.4e-6
    row: float = 0.0
    attention: float = 0.0

    def seconds(self, work: StepWork) -> float:
        """Without moves."""
        linear = self.step + self.token * work.computed + self.context * work.context
        return linear + self.row * work.drawn + self.attention * work.pairs


NO_COST = StepCost(0.0, 0.0, 0.0, 0.0)


class SimulatedClock:
    """Seconds since the trace began; moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class CountingRunner:
    """Draws a token for every row that wants one, and takes as long as `cost` says, on `clock`."""

    def __init__(self, cost: Cost, clock: SimulatedClock, block_size: int) -> None:
        self._cost = cost
        self._clock = clock
        self._block_size = block_size

    def move(self, plan: StepPlan) -> float:
        transfer = self._cost.move * plan.num_moves * self._block_size
        self._clock.now += transfer
        return transfer

    def compute(self, rows: Sequence[PlannedRow]) -> StepResult:
        computed = context = pairs = 0
        sampled: dict[str, Sampled] = {}
        for row in rows:
            request, start, count = row.request, row.start, row.count
            computed += count
            context += start + count
            pairs += count * start + count * (count + 1) // 2
            if row.samples:
                sampled[request.id] = _TOKEN
                for sibling in row.siblings:
                    sampled[sibling.id] = _TOKEN
        forward = self._cost.seconds(StepWork(computed, context, len(sampled), pairs))
        self._clock.now += forward
        return StepResult(sampled, 0.0, forward, 0.0)
