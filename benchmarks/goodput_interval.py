"""`python -m benchmarks.goodput_interval`: how often the interval that `loadgen sweep` tells of goodput is right.

A queue is simulated again and again: eight slots, Poisson arrivals, answers of 0.24 to 0.88 s, and a limit on all of
it. What is true is the mean of all runs. Intervals of 95 % hold it less often near saturation, where one long queue is
most of a run: that is why there are few batches.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import Counter
from collections.abc import Sequence

from loadgen.experiments import sweep

SLOTS, LIMIT = 8, 0.9  # requests that are answered at once, seconds from arrival to end
CAPACITY = SLOTS / 0.56  # requests/s
LOADS = (0.6, 0.75, 0.85, 0.9, 0.95, 1.0)  # of the capacity
BATCHES = (4, 5, 10)


def simulate(requests: int, load: float, seed: int) -> tuple[float, Counter[int]]:
    """A run's goodput, and its requests within the limit by the slot of time in which they were sent."""
    chance = random.Random(seed)
    free, arrival, ended = [0.0] * SLOTS, 0.0, 0.0
    met: Counter[int] = Counter()
    for _ in range(requests):
        ends = max(arrival, free[0]) + 0.1 + 0.02 * (chance.randint(8, 40) - 1)
        free[0] = ends
        free.sort()
        ended = max(ended, ends)
        met[int(arrival / sweep.SLOT)] += ends - arrival <= LIMIT
        arrival += chance.expovariate(load * CAPACITY)
    return met.total() / ended, met


def held(runs: Sequence[tuple[float, Counter[int]]], batches: int) -> float:
    """The share of runs whose interval holds the mean of all."""
    sweep.BATCHES = batches
    true = statistics.fmean(value for value, _ in runs)
    intervals = (sweep.batch_interval(value, met, 0, max(met)) for value, met in runs)
    return sum(low <= true <= high for low, high in intervals) / len(runs)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goodput_interval", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500, help="of each load (default: 500)")
    parser.add_argument("--requests", type=int, nargs="+", default=[150, 600], help="of a run (default: 150 600)")
    options = parser.parse_args(argv)
    if options.runs < 2 or min(options.requests) < 50:
        parser.error("expected at least 2 --runs and 50 --requests")
    print(f"| load | requests |{''.join(f' {batches} batches |' for batches in BATCHES)}")
    print(f"| ---: | ---: |{' ---: |' * len(BATCHES)}")
    for requests in options.requests:
        for load in LOADS:
            runs = [simulate(requests, load, seed) for seed in range(options.runs)]
            cells = "".join(f" {held(runs, batches):.0%} |" for batches in BATCHES)
            print(f"| {load:g} | {requests} |{cells}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
