"""What the rounds say: ratios are taken within a round, so that a machine whose speed drifts hits both sides alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from benchmarks.messages import Run

Rounds = list[dict[str, Run]]  # of one work: what each participant did in that round


class Spread(msgspec.Struct, frozen=True):
    """Median, least and most of some rounds' values."""

    median: float
    least: float
    most: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None where there are no values."""
        if not values:
            return None
        return cls(statistics.median(values), min(values), max(values), len(values))


def spread(rounds: Rounds, name: str, value: Callable[[Run], float | None]) -> Spread | None:
    """Of one participant's value, over the rounds that have it."""
    found = [value(done[name]) for done in rounds if name in done]
    return Spread.of([one for one in found if one is not None])


def ratio(rounds: Rounds, above: str, below: str, value: Callable[[Run], float | None]) -> Spread | None:
    """Of the ratios of two participants' values, one for each round that has both."""
    found = []
    for done in rounds:
        if above in done and below in done:
            a, b = value(done[above]), value(done[below])
            if a is not None and b:
                found.append(a / b)
    return Spread.of(found)


def seconds(run: Run) -> float:
    return run.seconds


def rate(run: Run) -> float:
    return run.output_rate


def token_seconds(run: Run) -> float | None:
    return run.token_seconds


def computed_share(run: Run) -> float | None:
    """Prefill tokens computed, for each distinct one."""
    if run.prefill_tokens is None or not run.distinct_tokens:
        return None
    return run.prefill_tokens / run.distinct_tokens
