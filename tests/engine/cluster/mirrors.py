"""A cluster's dispatcher over engines whose device is a mirror: real cores, loops and clients, without processes.

What an engine tells is delivered when a test says so, and what it had told may be lost with it. Every answer is held
against what one engine alone must generate.
"""

from __future__ import annotations

import queue
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from engine.cluster.dispatcher import Dispatcher
from engine.cluster.protocol import ClusterControl, Role, TransferDone
from engine.cluster.router import Router
from engine.core import seeded
from engine.core_client import Aside, CoreClient
from engine.kv_events import event_hash
from engine.messages import Add, FromCore, KvNews, Output, Taken, ToCore
from engine.protocol import Control, FinishReason, Record, decode_item
from engine.sampling_params import SamplingParams, SchedulingParams
from engine.transfer.offer import Offer
from tests.engine.handing import MirrorConnector
from tests.engine.loops import loop_of
from tests.engine.mirror import Clock, MirrorRunner, expected_beams, expected_output, mirror_core

BLOCK_SIZE, MAX_MODEL_LEN, LEASE_SECONDS = 4, 64, 30.0


class _Core:
    shares_clock = False

    def ending(self) -> str:
        return "it was killed"


class MirrorClient(CoreClient):
    """The real one, with queues for a socket."""

    def __init__(self, on_step: Callable[[int, bytes], None], on_aside: Callable[[Aside], None]) -> None:
        super().__init__(_Core(), on_step, on_aside=on_aside)  # type: ignore[arg-type]
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outbox: deque[FromCore] = deque()

    def _send(self, message: ToCore) -> None:
        if self.death is not None:
            raise self.death
        self.inbox.put(message)

    def send(self, message: FromCore) -> None:
        """As the loop's `Sender` has it."""
        self.outbox.append(message)

    def deliver(self, most: int = 1 << 30) -> None:
        for _ in range(min(most, len(self.outbox))):
            self._dispatch(self.outbox.popleft())


class Connector(MirrorConnector):
    """Tells the worker's name, which its engines share."""

    def export(self, request: str, blocks: Sequence[int], tokens: int, deadline: float) -> Offer:
        offer = super().export(request, blocks, tokens, deadline)
        return msgspec.structs.replace(offer, engine=self.name.partition("/")[0])


class MirrorWorker:
    """One engine after the other under one name."""

    def __init__(self, name: str, role: Role, cluster: MirrorCluster, num_blocks: int) -> None:
        self.name, self.role, self.num_blocks = name, role, num_blocks
        self._cluster = cluster
        self._started = 0
        self.is_open = False
        self.start()

    def start(self) -> None:
        cluster = self._cluster
        self._started += 1
        self.connector = None
        self.path = f"{self.name}/{self._started}"  # each engine has a memory of its own
        if self.role != "replica":
            self.connector = Connector(self.path, cluster.peers, cluster.clock, BLOCK_SIZE)
        self.core = mirror_core(
            self.num_blocks,
            BLOCK_SIZE,
            MAX_MODEL_LEN,
            Control(max_num_batched_tokens=24),
            kv_events=True,
            connector=self.connector,
            lease_seconds=LEASE_SECONDS,
            clock=cluster.clock,
        )
        if self.connector is not None:
            assert isinstance(self.core.runner, MirrorRunner)
            self.connector.runner = self.core.runner
        self.client = MirrorClient(self._take_step, self._take_aside)
        self.client.info = self.core.info
        self.loop = loop_of(self.core, self.client.inbox, self.client)  # type: ignore[arg-type]
        self.loop._tells_kv = True

    def step(self) -> None:
        """Take what has come, and do a step."""
        self.loop._idle = False
        self.loop._drain()
        self.loop._step()

    def die(self, told: int) -> None:
        """After `told` of the messages that are on their way."""
        self.client.deliver(told)
        self.client.outbox.clear()
        if self.connector is not None:
            del self._cluster.peers[self.path]
        self.client._fail()

    def _take_step(self, seq: int, data: bytes) -> None:
        record = decode_item(data)
        assert isinstance(record, Record)
        for receiving in record.receiving:
            self._cluster.dispatcher.moving(receiving)
        self._cluster.expired += sum(one.side == "sent" and bool(one.error) for one in record.transferred)

    def _take_aside(self, aside: Aside) -> None:
        match aside:
            case KvNews():
                self._cluster.router.take(self.name, aside)
            case Taken():
                self._cluster.dispatcher.taken(aside)
            case Output():
                self._cluster.dispatcher.left_over(self.name, aside)
            case _:
                raise AssertionError(f"nobody told of {aside}")


class Asked:
    """One answer as its client has it."""

    def __init__(self, add: Add, place: int) -> None:
        self.add, self.place = add, place
        self.tokens: list[int] = []
        self.finished: FinishReason | None = None
        self.error = ""
        self.left: FinishReason | None = None  # its client wants no more, for this reason
        self.cached: list[int] = []  # as each output told it
        self.scores = 0

    def take(self, output: Output) -> None:
        assert self.left is None, "told to nobody"
        assert self.finished is None, "told after its end"
        if output.prompt_logprobs:
            assert output.prompt_start <= max(1, self.scores)
            self.scores = max(self.scores, output.prompt_start + len(output.prompt_logprobs))
        if output.token_id is not None:
            self.tokens.append(output.token_id)
            self.cached.append(output.cached_tokens)
        if output.finished is not None:
            assert output.finished != "handed_over"
            self.finished, self.error = output.finished, output.error or ""
            if self.add.sampling.beam is not None and output.finished in ("stop", "length"):
                assert output.beams == expected_beams(self.add.prompt, self.add.sampling, MAX_MODEL_LEN)
        assert output.offer is None

    def check(self) -> None:
        assert self.left is not None or self.finished is not None, "it never ended"
        if self.add.sampling.beam is not None:
            return
        expected, reason = expected_output(self.add.prompt, seeded(self.add.sampling, self.place), MAX_MODEL_LEN)
        assert self.tokens == expected[: len(self.tokens)]
        if self.finished in ("stop", "length"):
            assert (self.tokens, self.finished) == (expected, reason)
        if self.finished == "error":
            assert self.error
        assert len(set(self.cached)) <= 1, "what was cached is told of one engine"


class MirrorCluster:
    def __init__(self, roles: dict[Role, int], control: ClusterControl, num_blocks: int = 48) -> None:
        self.clock = Clock()
        self.peers: dict[str, MirrorConnector] = {}
        self.workers: dict[str, MirrorWorker] = {}
        self.router = Router(BLOCK_SIZE, control.routing, separate=control.separate)
        self._later: list[Callable[[], None]] = []
        self.done: list[TransferDone] = []
        self.dispatcher = Dispatcher(
            self.workers,
            self.router,
            control,
            ended=self.done.append,
            clock=lambda: self.clock.now,
            soon=self._later.append,
        )
        for role, count in roles.items():
            for number in range(count):
                name = f"{role}-{number}"
                self.workers[name] = MirrorWorker(name, role, self, num_blocks)
                self.router.add_worker(name, role)
                self._open(name)
        self.asked: dict[str, Asked] = {}
        self.expired = 0  # leases

    def add(
        self, prompt: list[int], sampling: SamplingParams, n: int = 1, scheduling: SchedulingParams | None = None
    ) -> str:
        name = f"r{len(self.asked)}"
        siblings = tuple(f"{name}.{i}" for i in range(1, n))
        add = Add(name, tuple(prompt), sampling, scheduling or SchedulingParams(), siblings)
        told = (name,) if sampling.beam else (name, *siblings)
        asked = {one: Asked(add, place) for place, one in enumerate(told)}
        self.asked |= asked
        self.dispatcher.add(add, lambda output: asked[output.request].take(output), f"answer-{name}")
        return name

    def leave(self, requests: list[str], reason: FinishReason = "abort") -> None:
        """Their clients want no more."""
        self.dispatcher.abort(requests, reason)
        for request in requests:
            if self.asked[request].finished is None and self.asked[request].left is None:
                self.asked[request].left = reason

    def step(self, name: str) -> None:
        worker = self.workers[name]
        if worker.client.death is None:
            worker.step()

    def tick(self) -> None:
        for connector in tuple(self.peers.values()):
            connector.tick()

    def deliver(self, name: str, most: int = 1 << 30) -> None:
        worker = self.workers[name]
        if worker.client.death is None:
            worker.client.deliver(most)
        self._catch_up()

    def kill(self, name: str, told: int = 0) -> None:
        worker = self.workers[name]
        if worker.client.death is None:
            worker.die(told)
            self._catch_up()
            self.dispatcher.lost(worker.client, name, f"{name}: it was killed")

    def restart(self, name: str) -> None:
        worker = self.workers[name]
        if worker.client.death is not None:
            worker.start()
            self._open(name)
            self.dispatcher.serves()

    def drain(self, name: str) -> None:
        """Too long: what it still has goes on elsewhere. Then it is as it was."""
        worker = self.workers[name]
        if worker.client.death is None:
            self.router.close(name)
            self.dispatcher.move_away(worker.client, f"{name} was drained")
            self._open(name)

    def _open(self, name: str) -> None:
        self.router.open(name)

    def _catch_up(self) -> None:
        while self._later:
            self._later.pop(0)()

    def run(self, most: int = 3000) -> None:
        """Until all has ended, and nothing is kept: for want of a word no lease may have to expire."""
        for name in self.workers:
            self.restart(name)
            self._open(name)
        self.dispatcher.serves()
        self._round()
        expired, is_hurried = self.expired, False
        for _ in range(most):
            self._round()
            self.dispatcher.review()
            if self.dispatcher.num_waiting:
                is_hurried = True
                self.clock.now += 1.0
            assert is_hurried or self.expired == expired, "a lease expired that was to be released"
            if not self.dispatcher.live and not any(worker.core.has_work for worker in self.workers.values()):
                break
        self.settle()

    def _round(self) -> None:
        self.tick()
        for name in self.workers:
            self.step(name)
            self.deliver(name)

    def settle(self) -> None:
        for request, asked in self.asked.items():
            try:
                asked.check()
            except AssertionError as error:
                raise AssertionError(f"{request}: {error}") from error
        ends = Counter(asked.finished or asked.left for asked in self.asked.values())
        assert +self.dispatcher.ended == ends
        assert self.dispatcher.begun == ends.total()
        assert not self.dispatcher.live
        assert not self.dispatcher.num_waiting
        assert not len(self.dispatcher.leases), "an offer is kept for ever"
        assert not self.dispatcher._placed
        assert not self.dispatcher._at
        for name, worker in self.workers.items():
            core = worker.core
            assert not core.has_work, f"{name} has {core.scheduler.requests}"
            assert core.pool.num_available == core.info.num_blocks, f"{name} has lost a block"
            assert self.router.load(name) == 0.0
            assert self.router.cached(name) == set(map(event_hash, core.pool.cache.by_hash))
            if worker.connector is not None:
                assert not worker.connector.leases
                assert not worker.connector.jobs
        caches = (worker.core.pool.cache.by_hash for worker in self.workers.values())
        assert self.router.indexed_blocks == len(set().union(*caches)), "what is on no way any more is expected"
