"""What a simulation's records add up to."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from engine.protocol import Joined, Record
from engine.request import Request
from engine.simulator.arrivals import Arrival
from engine.simulator.gaps import Gaps
from engine.simulator.ideal import Ideal
from engine.simulator.prediction import (
    Hits,
    Percentiles,
    Preemptions,
    Queueing,
    Requests,
    Throughput,
    Waste,
)


class Served:
    """A request that is being served: `request` is the engine's own, of the one that has it now."""

    __slots__ = ("arrival", "first_token", "last_token", "longest_gap", "preemptions_before", "request", "tokens")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.request: Request
        self.preemptions_before = 0  # at an engine that has handed it over
        self.tokens = 0  # of its answer
        self.first_token = self.last_token = 0.0
        self.longest_gap = 0.0

    @property
    def preemptions(self) -> int:
        return self.preemptions_before + self.request.preemptions


class Tally:
    """Adds records up; memory grows by three numbers a request."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.waits, self.first_tokens, self.ends = array("d"), array("d"), array("d")
        self.completed = self.cut_short = self.refused = 0
        self.prompt_tokens = self.output_tokens = 0
        self.waiting = self.max_waiting = 0
        self.steps = self.rows = self.computed_tokens = 0
        self.busy = self.last_end = 0.0
        self._gaps = Gaps()
        self._looked_up = self._found = self._looked_up_blocks = self._found_blocks = 0
        self._copied = self._evicted = 0
        self._weight = self._held = self._filled = self._external = 0.0
        self._peak_held = self._peak_used = 0
        self._recompute = self._swap = self._lost = self._swapped = self._preempted = 0

    def arrived(self) -> None:
        self.waiting += 1
        self.max_waiting = max(self.max_waiting, self.waiting)

    def joined(self, arrival: Arrival, joined: Joined, begun: float, first: bool = True) -> None:
        """A request got into the step that began at `begun`; not `first`: at another engine after its first one."""
        self.waiting -= 1
        if joined.resumed or not first:
            return
        self.waits.append(begun - arrival.time)
        self._looked_up += joined.looked_up_tokens
        self._found += joined.cached_tokens
        self._looked_up_blocks += -(-joined.looked_up_tokens // self.block_size)
        self._found_blocks += (joined.cached_tokens - joined.copied_tokens) // self.block_size
        self._copied += joined.copied_tokens
        self._evicted += joined.evicted_tokens

    def token(self, served: Served, now: float) -> None:
        """It has a token more."""
        if served.tokens:
            gap = now - served.last_token
            self._gaps.add(gap)
            served.longest_gap = max(served.longest_gap, gap)
        else:
            served.first_token = now
        served.tokens += 1
        served.last_token = now

    def ended(self, served: Served, now: float) -> None:
        """A request was served."""
        arrival = served.arrival
        self.completed += 1
        self.cut_short += served.tokens < arrival.traced.output_tokens
        self.prompt_tokens += arrival.traced.prompt_tokens
        self.output_tokens += served.tokens
        self.first_tokens.append(served.first_token - arrival.time)
        self.ends.append(now - arrival.time)
        self._preempted += served.preemptions > 0
        self.last_end = now

    def step(self, record: Record, seconds: float) -> None:
        """Count a record; of its requests only the preempted ones."""
        for preempted in record.preempted:
            self.waiting += 1
            self._swap += preempted.by == "swap"
            self._recompute += preempted.by == "recompute"
            self._lost += preempted.lost_tokens
            self._swapped += preempted.swapped_blocks
        if not record.rows:
            return
        self.steps += 1
        self.rows += len(record.rows)
        self.computed_tokens += sum([row.tokens for row in record.rows])
        self.busy += seconds
        weight = seconds or 1.0
        waste, pool = record.waste, record.pool
        self._weight += weight
        self._held += weight * waste.held
        self._filled += weight * waste.filled
        self._external += weight * waste.external
        used = self.num_blocks - pool.free
        self._peak_used = max(self._peak_used, used)
        self._peak_held = max(self._peak_held, used - pool.cached)

    def requests(self, total: int, unsent: int) -> Requests:
        return Requests(
            total, self.completed, self.cut_short, self.refused, unsent, self.prompt_tokens, self.output_tokens
        )

    def hits(self, ideal: Ideal) -> Hits:
        return Hits(
            looked_up_tokens=self._looked_up,
            found_tokens=self._found,
            looked_up_blocks=self._looked_up_blocks,
            found_blocks=self._found_blocks,
            copied_tokens=self._copied,
            evicted_tokens=self._evicted,
            token_rate=ratio(self._found, self._looked_up),
            block_rate=ratio(self._found_blocks, self._looked_up_blocks),
            ideal=ideal,
            ideal_repeated_rate=ideal.repeated_rate,
            ideal_reusable_rate=ideal.reusable_rate,
        )

    def waste(self) -> Waste:
        weight = self._weight or 1.0
        return Waste(
            mean_held=self._held / weight,
            mean_filled=self._filled / weight,
            internal_share=(self._held - self._filled) / (self._held or 1.0),
            external_share=self._external / (weight * self.num_blocks * self.block_size),
            peak_held_blocks=self._peak_held,
            peak_used_blocks=self._peak_used,
        )

    def preemptions(self) -> Preemptions:
        return Preemptions(self._recompute, self._swap, self._lost, self._swapped, self._preempted)

    def queue(self) -> Queueing:
        waits, first_tokens, ends = map(percentiles, (self.waits, self.first_tokens, self.ends))
        return Queueing(waits, self.max_waiting, first_tokens, ends, self._gaps.told())

    def throughput(self) -> Throughput:
        timed = self.last_end if self.busy else 0.0
        return Throughput(
            seconds=self.last_end,
            busy_seconds=self.busy,
            steps=self.steps,
            mean_rows=self.rows / max(1, self.steps),
            computed_tokens=self.computed_tokens,
            requests_per_second=ratio(self.completed, timed),
            prompt_tokens_per_second=ratio(self.prompt_tokens, timed),
            output_tokens_per_second=ratio(self.output_tokens, timed),
        )


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def percentiles(seconds: Iterable[float]) -> Percentiles:
    values = np.asarray(seconds)
    if not len(values):
        return Percentiles(0)
    p50, p90, p99 = map(float, np.percentile(values, (50, 90, 99)))
    return Percentiles(len(values), float(values.mean()), p50, p90, p99, float(values.max()))
