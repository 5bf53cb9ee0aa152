"""Drive the real engine core over a trace: no model, no waiting, only the clock is made up."""

from __future__ import annotations

import importlib.metadata
import resource
import sys
import time
from collections.abc import Callable, Sequence

from engine.block_pool import IllegalState
from engine.core import EngineCore
from engine.protocol import EngineInfo, Record
from engine.request import RequestTooLarge
from engine.sampling_params import SamplingParams
from engine.simulator.arrivals import Arrival, Arrivals
from engine.simulator.ideal import Ideal, ideal_hits
from engine.simulator.prediction import Pools, Prediction, Settings, SimulationCost
from engine.simulator.runner import CountingRunner, SimulatedClock
from engine.simulator.tally import Served, Tally
from engine.simulator.tokens import TracedTokens, block_names
from engine.trace_lengths import TracedRequest
from engine.transfer.connector import KVConnector
from engine.transfer.offer import LEASE_SECONDS


class Simulator:
    """One trace on one engine. `run` it once; `prediction` may be asked at any time, also of half a run.

    Raises ControlError (a ValueError) if the settings cannot hold.
    """

    def __init__(self, trace: Sequence[TracedRequest], settings: Settings) -> None:
        self.settings = settings
        self.arrivals = Arrivals(trace, settings.requests, settings.speed, settings.crowd)
        self.clock = SimulatedClock()
        self._begun = time.perf_counter()
        self.ideal = ideal_hits(trace, settings.block_size, settings.requests, settings.fresh)
        num_blocks = settings.num_blocks or unlimited_blocks(self.ideal, settings)
        self.core = make_core(settings, num_blocks, self.clock)
        self.tally = Tally(num_blocks, settings.block_size)
        self._live: dict[str, Served] = {}

    @property
    def now(self) -> float:
        """Simulated seconds."""
        return self.clock.now

    @property
    def done(self) -> int:
        """Requests that need nothing more."""
        return self.tally.completed + self.tally.refused + self.arrivals.unsent

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Step until every request is served, or `stopped` says so between two steps."""
        core, clock, arrivals = self.core, self.clock, self.arrivals
        while not stopped():
            for arrival in arrivals.due(clock.now):
                self._add(arrival)
            if core.has_work:
                self._step()
            elif arrivals.next_time is None:
                return
            else:
                clock.now = max(clock.now, arrivals.next_time)

    def prediction(self) -> Prediction:
        tally = self.tally
        return Prediction(
            settings=self.settings,
            requests=tally.requests(self.arrivals.total, self.arrivals.unsent),
            hits=tally.hits(self.ideal),
            waste=tally.waste(),
            preemptions=tally.preemptions(),
            queue=tally.queue(),
            throughput=tally.throughput(),
            simulation=SimulationCost(
                complete=self.done == self.arrivals.total,
                wall_seconds=time.perf_counter() - self._begun,
                peak_memory_bytes=peak_memory(),
            ),
        )

    def _add(self, arrival: Arrival) -> None:
        asked = Asked(arrival, self.settings)
        try:
            self.core.add(arrival.id, asked.tokens(), asked.sampling, block_hashes=asked.names)
        except RequestTooLarge:
            self.tally.refused += 1
            self.arrivals.failed(arrival)
            return
        served = self._live[arrival.id] = Served(arrival)
        served.request = self.core.scheduler.requests[arrival.id]
        self.tally.arrived()

    def _step(self) -> None:
        begun = self.clock.now
        outputs, record = self.core.step()
        if record is None:
            raise IllegalState("requests are there and a step has no news of them")
        now = self.clock.now
        for joined in record.joined:
            self.tally.joined(self._live[joined.request].arrival, joined, begun)
        self.tally.step(record, now - begun)
        for output in outputs:
            if output.token_id is not None:
                self.tally.token(self._live[output.request], now)
        self._end(record, now)

    def _end(self, record: Record, now: float) -> None:
        # A member of a static batch that has finished is served, although it keeps its row.
        for left in (*record.held, *record.left):
            served = self._live.pop(left.request)
            if left.reason not in ("stop", "length") or not served.tokens:
                raise IllegalState(f"request {left.request} of a simulation ended by {left.reason}")
            self.tally.ended(served, now)
            self.arrivals.ended(served.arrival, now)


class Asked:
    """What an engine is asked for, of an arrival."""

    def __init__(self, arrival: Arrival, settings: Settings) -> None:
        traced = arrival.traced
        self.arrival = arrival
        self.sampling = SamplingParams(max_tokens=traced.output_tokens, temperature=0.0, ignore_eos=True)
        self._round = arrival.round if settings.fresh else 0
        length = traced.prompt_tokens + traced.output_tokens
        self.names = block_names(traced, self._round, settings.block_size, length)

    def tokens(self) -> TracedTokens:
        """The prompt, for one engine: it appends to it."""
        return TracedTokens(self.arrival.traced, self._round)


def make_core(
    settings: Settings,
    num_blocks: int,
    clock: SimulatedClock,
    pools: Pools | None = None,
    connector: KVConnector | None = None,
) -> EngineCore:
    """An engine that only counts. One of several tells what its cache has. Raises ControlError."""
    info = EngineInfo(
        model="none",
        dtype="none",
        device="simulated",
        block_size=settings.block_size,
        num_blocks=num_blocks,
        kv_bytes_per_token=settings.kv_bytes_per_token,
        max_model_len=settings.max_model_len,
        version=importlib.metadata.version("paged-top"),
        num_host_blocks=settings.num_host_blocks,
    )
    return EngineCore(
        CountingRunner(settings.cost, clock, settings.block_size),
        info,
        settings.control,
        check_invariants=settings.check_invariants,
        clock=clock,
        partial_hits=settings.partial_hits,
        kv_events=pools is not None,
        connector=connector,
        lease_seconds=LEASE_SECONDS if pools is None else pools.lease_seconds,
    )


def unlimited_blocks(ideal: Ideal, settings: Settings) -> int:
    """Blocks that no run can fill: what is kept, a block that each wholly cached prompt computes again, and what
    those that run hold besides."""
    longest = -(-settings.max_model_len // settings.block_size)
    return ideal.distinct_blocks + settings.requests + settings.control.max_num_seqs * (longest + 1)


def peak_memory() -> int:
    """The process's largest resident size so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
