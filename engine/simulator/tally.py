"""What a simulation's records add up to."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from engine.protocol import Joined, Record
from engine.simulator.arrivals import Arrival
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
        self._looked_up = self._found = self._looked_up_blocks = self._found_blocks = 0
        self._copied = self._evicted = 0
        self._weight = self._held = self._filled = self._external = 0.0
        self._peak_held = self._peak_used = 0
        self._recompute = self._swap = self._lost = self._swapped = self._preempted = 0

    def arrived(self) -> None:
        self.waiting += 1
        self.max_waiting = max(self.max_waiting, self.waiting)

    def joined(self, arrival: Arrival, joined: Joined, begun: float) -> None:
        """A request got into the step that began at `begun`."""
        self.waiting -= 1
        if joined.resumed:
            return
        self.waits.append(begun - arrival.time)
        self._looked_up += joined.looked_up_tokens
        self._found += joined.cached_tokens
        self._looked_up_blocks += -(-joined.looked_up_tokens // self.block_size)
        self._found_blocks += (joined.cached_tokens - joined.copied_tokens) // self.block_size
        self._copied += joined.copied_tokens
        self._evicted += joined.evicted_tokens

    def ended(self, arrival: Arrival, generated: int, first_token: float, preemptions: int, now: float) -> None:
        """A request was served."""
        self.completed += 1
        self.cut_short += generated < arrival.traced.output_tokens
        self.prompt_tokens += arrival.traced.prompt_tokens
        self.output_tokens += generated
        self.first_tokens.append(first_token - arrival.time)
        self.ends.append(now - arrival.time)
        self._preempted += preemptions > 0
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
            token_rate=_ratio(self._found, self._looked_up),
            block_rate=_ratio(self._found_blocks, self._looked_up_blocks),
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
        return Queueing(_percentiles(self.waits), self.max_waiting, *map(_percentiles, (self.first_tokens, self.ends)))

    def throughput(self) -> Throughput:
        timed = self.last_end if self.busy else 0.0
        return Throughput(
            seconds=self.last_end,
            busy_seconds=self.busy,
            steps=self.steps,
            mean_rows=self.rows / max(1, self.steps),
            computed_tokens=self.computed_tokens,
            requests_per_second=_ratio(self.completed, timed),
            prompt_tokens_per_second=_ratio(self.prompt_tokens, timed),
            output_tokens_per_second=_ratio(self.output_tokens, timed),
        )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _percentiles(seconds: Iterable[float]) -> Percentiles:
    values = np.asarray(seconds)
    if not len(values):
        return Percentiles(0)
    p50, p90, p99 = map(float, np.percentile(values, (50, 90, 99)))
    return Percentiles(len(values), float(values.mean()), p50, p90, p99, float(values.max()))
