"""When sessions arrive: the trace's own times, or a Poisson process, as seconds from the start."""

from __future__ import annotations

import random
from collections.abc import Sequence


def recorded(arrivals: Sequence[float]) -> list[float]:
    """The recorded arrivals, in seconds of the trace; the first one is moved to 0."""
    first = arrivals[0] if arrivals else 0.0
    return [arrival - first for arrival in arrivals]


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """Arrivals with exponential gaps of mean 1/`rate` seconds; the first one is at 0."""
    if not rate > 0:
        raise ValueError(f"rate must be above 0, got {rate}")
    rng = random.Random(f"{seed}/arrivals")
    times: list[float] = []
    now = 0.0
    for _ in range(count):
        times.append(now)
        now += rng.expovariate(rate)
    return times
