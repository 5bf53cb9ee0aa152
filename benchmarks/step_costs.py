"""From the step records of an engine at work to what its steps cost: the `StepCost` of a simulation. Pure.

A step's seconds are its own, as its record has them, and what passes between two steps in the mean: reading requests,
sending tokens and whatever else the machine does then. That is what is left of the time from one record to the next,
where the engine had something to do all that time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from engine.protocol import Record
from engine.simulator.runner import StepCost, StepWork

Floats = npt.NDArray[np.float64]
FIELDS = ("step", "token", "context", "row", "attention")
ROUNDS = 8
FEWEST = 50  # steps that costs are fitted to


def work_of(record: Record) -> StepWork:
    """What a step did, as a simulated one counts it."""
    computed = context = drawn = pairs = 0
    for row in record.rows:
        computed += row.tokens
        context += row.context
        drawn += row.sampled
        pairs += row.tokens * (row.context - row.tokens) + row.tokens * (row.tokens + 1) // 2
    return StepWork(computed, context, drawn, pairs)


def timed(records: Sequence[Record]) -> list[tuple[StepWork, float]]:
    """Each step with rows, and its seconds. Records in order. Raises ValueError if no step began where one ended."""
    steps = [(work_of(record), own_seconds(record)) for record in records if record.rows and not record.copies]
    between = [
        record.time - before.time - own_seconds(record)
        for before, record in pairwise(records)
        if record.rows and record.seq == before.seq + 1 and _goes_on(before)
    ]
    if not between:
        raise ValueError("no step began where one ended")
    passes = max(0.0, sum(between) / len(between))
    return [(work, seconds + passes) for work, seconds in steps]


def own_seconds(record: Record) -> float:
    return math.fsum(msgspec.structs.astuple(record.durations))


def _goes_on(record: Record) -> bool:
    """Whether the engine has something to do right after it: a request of this step stays."""
    gone = {left.request for left in record.left} | {offered.request for offered in record.offered}
    return bool({row.request for row in record.rows} - gone)


def fitted(steps: Sequence[tuple[StepWork, float]]) -> StepCost:
    """Least squares, the longer a step the more it may be off; no cost is below 0. A move costs what it ever does.

    How far it may be off follows from the costs, not from what the step took: steps that were held up are as much part
    of the mean as others, and all steps together cost what they took. Raises ValueError for too few steps.
    """
    if len(steps) < FEWEST:
        raise ValueError(f"costs are fitted to at least {FEWEST} steps, not {len(steps)}")
    seconds = np.array([taken for _, taken in steps])
    columns = np.array([(1, work.computed, work.context, work.drawn, work.pairs) for work, _ in steps], dtype=float)
    expected = np.full(len(steps), seconds.mean())
    for _ in range(ROUNDS):
        weights = 1 / np.sqrt(np.maximum(expected, 1e-6))
        found = _at_least_nothing(columns * weights[:, None], seconds * weights)
        expected = columns @ found
    return StepCost(**dict(zip(FIELDS, map(float, found), strict=True)))


def spread(cost: StepCost, steps: Iterable[tuple[StepWork, float]]) -> tuple[float, float]:
    """What the costs come to over all steps, over what these took, and the root mean square of what single steps are
    off, over the mean."""
    pairs = np.array([(cost.seconds(work), taken) for work, taken in steps])
    told, taken = pairs[:, 0], pairs[:, 1]
    return float(told.sum() / taken.sum()), float(np.sqrt(np.mean((told - taken) ** 2)) / taken.mean())


class ScatteredCost(StepCost, frozen=True):
    """Each step costs one of `ratios` of what it would: which one follows from its work and `seed` alone."""

    ratios: tuple[float, ...] = (1.0,)
    seed: int = 0

    def seconds(self, work: StepWork) -> float:
        return super().seconds(work) * self.ratios[hash((self.seed, *work)) % len(self.ratios)]


def scattered(cost: StepCost, steps: Iterable[tuple[StepWork, float]], seed: int) -> ScatteredCost:
    """Steps that are as much longer or shorter than `cost` says as those that it was fitted to."""
    ratios = tuple(taken / told for work, taken in steps if (told := cost.seconds(work)) > 0)
    return ScatteredCost(**msgspec.structs.asdict(cost), ratios=ratios, seed=seed)


def first_tokens(records: Sequence[Record]) -> list[float]:
    """Seconds from the arrival of each request at an engine to the end of the step that drew its first token there,
    of those that no other engine had before, in the order of these steps."""
    came: dict[str, float] = {}
    found = []
    for record in records:
        came |= {one.request: one.time for one in record.arrived if not one.generated_tokens}
        drawn = {row.request for row in record.rows if row.sampled}
        found += [record.time - came.pop(request) for request in drawn & came.keys()]
    return found


def _at_least_nothing(columns: Floats, values: Floats) -> Floats:
    """Least squares without negative answers (Lawson and Hanson, 1974), for a handful of columns."""
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    scaled = columns / scale
    count = scaled.shape[1]
    answer, free = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(10 * count):
        slope = scaled.T @ (values - scaled @ answer)
        if free.all() or slope[~free].max() <= 1e-9 * np.abs(values).sum():
            break
        free[np.flatnonzero(~free)[slope[~free].argmax()]] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(scaled[:, free], values, rcond=None)[0]
            if trial[free].min() > 0:
                break
            sinks = free & (trial <= 0)
            step = np.min(answer[sinks] / (answer[sinks] - trial[sinks]))
            answer = answer + step * (trial - answer)
            free &= answer > 1e-12
            answer[~free] = 0.0
            if not free.any():
                break
        answer = trial if free.any() else answer
    found: Floats = answer / scale
    return found
