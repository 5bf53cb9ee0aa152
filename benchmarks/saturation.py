"""How soon `--until saturation` sees that a simulated queue falls behind: `python -m benchmarks.saturation`.

A stable queue must not be taken for a growing one in half an hour, in which it is looked at 1,800 times. Everything is
simulated, so that the figures are the rule's and not a machine's.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

from loadgen.arrivals import Gamma
from loadgen.saturation import KEPT, Sample, find_saturation

LOADS = (0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)  # of what the server can do


@dataclass(frozen=True, slots=True)
class Server:
    """`slots` requests are answered at once, in order of arrival; an answer takes `answer` seconds in the mean."""

    slots: int
    answer: float
    burstiness: float = 1.0  # of its arrivals

    @property
    def name(self) -> str:
        bursts = "" if self.burstiness == 1 else f", burstiness {self.burstiness:g}"
        return f"{self.slots} slots, answers of {self.answer:g} s{bursts}"


SERVERS = (Server(16, 5.0), Server(16, 5.0, burstiness=0.25), Server(64, 60.0), Server(8, 1.0))


def samples(server: Server, load: float, seed: int, seconds: int) -> Iterator[Sample]:
    """A sample each second. Answers are lognormal (sigma 0.7) and show a first token after 0.1 s."""
    chance = random.Random(seed)
    free = [0.0] * server.slots
    events: list[tuple[float, int, float]] = []  # moment, how many more are unanswered, TTFT of one that ended
    for due in Gamma(load * server.slots / server.answer, server.burstiness, seed).times(repeat(None)):
        if due > seconds:
            break
        begins = max(due, heapq.heappop(free))
        ends = begins + server.answer * math.exp(chance.gauss(0, 0.7) - 0.7**2 / 2)
        heapq.heappush(free, ends)
        events += [(due, 1, 0.0), (ends, -1, begins + 0.1 - due)]
    events.sort()
    unanswered = count = done = 0
    total = 0.0
    for second in range(seconds + 1):
        while done < len(events) and events[done][0] <= second:
            _, more, ttft = events[done]
            unanswered, total, done = unanswered + more, total + ttft, done + 1
            count += more < 0
        yield Sample(float(second), unanswered, total, count)


def found_at(server: Server, load: float, seed: int, seconds: int) -> float | None:
    """The second in which the rule ends a run; None if it does not."""
    kept = deque[Sample](maxlen=KEPT)
    for sample in samples(server, load, seed, seconds):
        kept.append(sample)
        if find_saturation(kept) is not None:
            return sample.elapsed
    return None


def main() -> None:
    """Print a table for each server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of each load (default: 20)")
    parser.add_argument("--seconds", type=int, default=1800, help="of each run (default: 1800)")
    options = parser.parse_args()
    for server in SERVERS:
        print(f"\n{server.name}\n\n| load | runs ended | in the median at |\n| ---: | ---: | ---: |")
        for load in LOADS:
            moments = [found_at(server, load, seed, options.seconds) for seed in range(options.runs)]
            ended = [moment for moment in moments if moment is not None]
            median = f"{statistics.median(ended):.0f} s" if ended else ""
            print(f"| {load:g} | {len(ended)} of {len(moments)} | {median} |", flush=True)


if __name__ == "__main__":
    main()
