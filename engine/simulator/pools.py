"""Several engines behind the real router, in one loop of events: each is the real core on a clock of its own.

Whatever is next, by the simulated time, happens next: an arrival, something that the front or a link has to do, or the
step of an engine, whose outcome the front hears when the step has ended. What the front does and what it sends take no
time; what is handed over takes what the links say. Requests go as `engine.cluster.dispatcher` sends them, where nobody
dies and nobody gives up.
"""

from __future__ import annotations

import heapq
import time
from array import array
from collections.abc import Callable, Sequence

from engine.block_pool import IllegalState
from engine.cluster.loads import Work
from engine.cluster.protocol import Role, RouterState
from engine.cluster.router import Choice, Router
from engine.cluster.sizes import FIELDS, wanted
from engine.kv_events import event_hash
from engine.messages import Output, Taken
from engine.request import RequestTooLarge
from engine.simulator.arrivals import Arrival, Arrivals
from engine.simulator.ideal import ideal_hits
from engine.simulator.links import Links
from engine.simulator.prediction import (
    Goodput,
    Pools,
    PoolsPrediction,
    RoleUse,
    Settings,
    SimulationCost,
    TransfersMade,
)
from engine.simulator.simulate import Asked, peak_memory, unlimited_blocks
from engine.simulator.tally import Served, Tally, percentiles, ratio
from engine.simulator.worker import SimulatedWorker, Stepped
from engine.trace_lengths import TracedRequest
from engine.transfer.offer import Offer

_FRONT, _STEP = 0, 1  # of what is due at one time the first goes first


class Trip(Served):
    """A request's way through the engines."""

    __slots__ = ("asked", "names", "received", "work", "worker")

    def __init__(self, asked: Asked, block_size: int) -> None:
        super().__init__(asked.arrival)
        self.asked = asked
        self.names = tuple(map(event_hash, asked.names[: asked.arrival.traced.prompt_tokens // block_size]))
        self.received = False  # another engine computed its prompt
        self.worker: SimulatedWorker
        self.work: Work


class PoolSimulator:
    """One trace on several engines. `run` it once; `prediction` may be asked at any time, also of half a run.

    Raises ControlError (a ValueError) if the settings cannot hold.
    """

    def __init__(self, trace: Sequence[TracedRequest], settings: Settings, pools: Pools) -> None:
        self.settings = settings
        self.pools = pools
        self.arrivals = Arrivals(trace, settings.requests, settings.speed, settings.crowd)
        self.now = 0.0
        self._begun = time.perf_counter()
        self.ideal = ideal_hits(trace, settings.block_size, settings.requests, settings.fresh)
        num_blocks = settings.num_blocks or unlimited_blocks(self.ideal, settings)
        self.tally = Tally(num_blocks, settings.block_size)
        control = pools.control
        self.router = Router(settings.block_size, control.routing, separate=control.separate)
        self._events: list[tuple[float, int, int, Callable[[float], None]]] = []
        self._scheduled = 0
        links = Links(pools.link, pools.link_latency, self._at)
        self.workers: dict[str, SimulatedWorker] = {}
        for role in FIELDS:
            for number in range(wanted(control, role)):
                name = f"{role}-{number}"
                self.workers[name] = SimulatedWorker(name, role, settings, num_blocks, pools, links, self._wake)
                self.router.add_worker(name, role)
                self.router.open(name)
        replicas = frozenset(name for name, worker in self.workers.items() if worker.role == "replica")
        self._recompute = replicas if control.decode else frozenset()
        self._live: dict[str, Trip] = {}
        self._sources: dict[str, SimulatedWorker] = {}  # by lease
        self._local = self._handed_over = self._failed = self._expired = self._met = 0
        self._blocks = self._nbytes = 0
        self._waited, self._moved = array("d"), array("d")

    @property
    def done(self) -> int:
        """Requests that need nothing more."""
        return self.tally.completed + self.tally.refused + self.arrivals.unsent

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Go on until every request is served, or `stopped` says so in between."""
        events, arrivals = self._events, self.arrivals
        while not stopped():
            arrival_time = arrivals.next_time
            if events and (arrival_time is None or events[0][0] < arrival_time):
                self.now, _, _, happen = heapq.heappop(events)
                happen(self.now)
            elif arrival_time is not None:
                self.now = arrival_time
                for arrival in arrivals.due(arrival_time):
                    self._arrive(arrival)
            elif self._live:
                raise IllegalState(f"{len(self._live)} requests of a simulation wait for nothing")
            else:
                return

    def prediction(self) -> PoolsPrediction:
        tally, slo = self.tally, self.pools.slo
        throughput = tally.throughput()
        good = None
        if slo is not None:
            timed = throughput.seconds if throughput.requests_per_second is not None else 0.0
            good = Goodput(slo, self._met, ratio(self._met, tally.completed), ratio(self._met, timed))
        return PoolsPrediction(
            settings=self.settings,
            requests=tally.requests(self.arrivals.total, self.arrivals.unsent),
            hits=tally.hits(self.ideal),
            waste=tally.waste(),
            preemptions=tally.preemptions(),
            queue=tally.queue(),
            throughput=throughput,
            simulation=SimulationCost(
                complete=self.done == self.arrivals.total,
                wall_seconds=time.perf_counter() - self._begun,
                peak_memory_bytes=peak_memory(),
            ),
            pools=self.pools,
            roles={role: self._use(role) for role in FIELDS if wanted(self.pools.control, role)},
            transfers=TransfersMade(
                done=len(self._moved),
                failed=self._failed,
                expired=self._expired,
                blocks=self._blocks,
                nbytes=self._nbytes,
                waited=percentiles(self._waited),
                moved=percentiles(self._moved),
            ),
            router=RouterState(
                decisions=self.router.decisions,
                decision_seconds=self.router.decision_seconds,
                by_prefix=self.router.by_prefix,
                bounded=self.router.bounded,
                local=self._local,
                handed_over=self._handed_over,
                indexed_blocks=self.router.indexed_blocks,
                imbalance=self.router.imbalance,
            ),
            goodput=good,
        )

    # Time

    def _at(self, time: float, happen: Callable[[float], None], kind: int = _FRONT) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (time, kind, self._scheduled, happen))

    def _wake(self, worker: SimulatedWorker, now: float) -> None:
        """Something is there for it to do, perhaps; if it steps already it will see that."""
        if worker.asleep:
            worker.asleep = False
            worker.clock.now = max(worker.clock.now, now)
            self._at(worker.clock.now, lambda _: self._step(worker), _STEP)

    def _step(self, worker: SimulatedWorker) -> None:
        stepped = worker.step()
        now = worker.clock.now
        if (record := stepped.record) is not None:
            for joined in record.joined:
                trip = self._live[joined.request]
                self.tally.joined(trip.arrival, joined, stepped.begun, first=not trip.received)
            self.tally.step(record, now - stepped.begun)
            self._expired += sum(done.side == "sent" and bool(done.error) for done in record.transferred)
        if stepped.outputs or stepped.news is not None or stepped.taken:
            self._at(now, lambda time: self._hear(worker, stepped, time))
        if not worker.asleep:
            self._at(now, lambda _: self._step(worker), _STEP)

    # Requests

    def _arrive(self, arrival: Arrival) -> None:
        trip = Trip(Asked(arrival, self.settings), self.settings.block_size)
        choice, is_prefill = self._choose(trip)
        worker = self.workers[choice.worker]
        self._wake(worker, self.now)
        try:
            worker.core.add(
                arrival.id,
                trip.asked.tokens(),
                trip.asked.sampling,
                block_hashes=trip.asked.names,
                hand_over=is_prefill,
            )
        except RequestTooLarge:
            self.tally.refused += 1
            self.arrivals.failed(arrival)
            return
        self._sent(trip, choice, rows=0 if is_prefill else 1)
        self._live[arrival.id] = trip
        self.tally.arrived()

    def _choose(self, trip: Trip) -> tuple[Choice, bool]:
        """Where it goes, and whether it is handed over from there."""
        router, control, length = self.router, self.pools.control, trip.arrival.traced.prompt_tokens
        whole = _found(router.choose("whole", length, trip.names))
        if not control.separate or self.workers[whole.worker].role != "decode":
            return whole, False
        if length - whole.cached_tokens <= control.local_prefill:
            self._local += 1
            return whole, False
        prefill = router.choose("prefill", length, trip.names)
        return (whole, False) if prefill is None else (prefill, True)

    def _sent(self, trip: Trip, choice: Choice, rows: int, computed: bool = False) -> None:
        worker, length = self.workers[choice.worker], trip.arrival.traced.prompt_tokens
        trip.work = self.router.begin(worker.name, length, choice.cached_tokens, trip.names, rows, computed=computed)
        trip.worker = worker
        trip.request = worker.core.scheduler.requests[trip.arrival.id]

    def _hear(self, worker: SimulatedWorker, stepped: Stepped, now: float) -> None:
        """What a step that has ended now told the front."""
        if stepped.news is not None:
            self.router.take(worker.name, stepped.news)
        for output in stepped.outputs:
            self._hear_of(output, now)
        for told in stepped.taken:
            self._take(told, now)

    def _hear_of(self, output: Output, now: float) -> None:
        trip = self._live[output.request]
        if output.token_id is not None:
            trip.work.computed()
            self.tally.token(trip, now)
        if output.finished is None:
            return
        trip.work.end()
        if output.finished == "handed_over" and output.offer is not None:
            self._go_on(trip, output.offer, now)
            return
        if output.finished not in ("stop", "length"):
            raise IllegalState(f"request {output.request} of a simulation ended by {output.finished}: {output.error}")
        del self._live[output.request]
        self.tally.ended(trip, now)
        if (slo := self.pools.slo) is not None:
            came = trip.arrival.time
            self._met += slo.met(trip.first_token - came, trip.longest_gap, now - came)
        self.arrivals.ended(trip.arrival, now)

    def _go_on(self, trip: Trip, offer: Offer, now: float) -> None:
        """Its prompt is computed: another engine takes it over."""
        self._handed_over += 1
        source, asked, length = trip.worker, trip.asked, trip.arrival.traced.prompt_tokens
        self._sources[offer.lease] = source
        self._at(offer.deadline, lambda time: self._wake(source, time) if offer.lease in self._sources else None)
        choice = _found(self.router.choose("decode", length, trip.names, avoid=self._recompute))
        target = self.workers[choice.worker]
        trip.preemptions_before = trip.preemptions
        trip.received = True
        self._wake(target, now)
        target.core.add(
            trip.arrival.id, asked.tokens(), asked.sampling, block_hashes=asked.names, offer=offer, generated=((0,),)
        )
        self._sent(trip, choice, rows=1, computed=True)
        self.tally.arrived()

    def _take(self, told: Taken, now: float) -> None:
        """An engine reads an offer no more."""
        source = self._sources.pop(told.lease)
        self._wake(source, now)
        source.core.release((told.lease,))
        if told.error:
            self._failed += 1
            return
        self._blocks += told.blocks
        self._nbytes += told.nbytes
        self._waited.append(told.waited)
        self._moved.append(told.moved)

    def _use(self, role: Role) -> RoleUse:
        workers = [worker for worker in self.workers.values() if worker.role == role]
        busy, seconds = [worker.busy for worker in workers], self.tally.last_end
        return RoleUse(
            engines=len(workers),
            steps=sum(worker.steps for worker in workers),
            computed_tokens=sum(worker.computed_tokens for worker in workers),
            busy_seconds=sum(busy),
            busy_share=ratio(sum(busy), len(workers) * seconds),
            most_busy_share=ratio(max(busy), seconds),
        )


def _found(choice: Choice | None) -> Choice:
    if choice is None:
        raise IllegalState("no engine of a simulation takes requests")
    return choice
