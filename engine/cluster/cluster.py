"""A cluster: workers that come, serve and go, behind one client. What is wanted may change at any time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from engine import log
from engine.cluster import sizes
from engine.cluster.client import ClusterClient
from engine.cluster.dispatcher import Dispatcher
from engine.cluster.filling import filled
from engine.cluster.protocol import ClusterControl, Role, RouterState, TransferDone, TransferState
from engine.cluster.router import Router
from engine.cluster.sizes import ClusterControlError
from engine.cluster.worker import Distant, Worker, WorkerSpec
from engine.config import EngineConfig
from engine.core_client import Aside, CallFailedError, CallRefusedError, Core, CoreClient, EngineDiedError
from engine.loading.resolve import resolve_model
from engine.messages import KvNews, Output, Pull, Taken
from engine.protocol import EngineInfo, Record
from engine.server.cluster_metrics import ClusterMetrics
from engine.server.service import Loaded, Service
from engine.server.settings import ServeSettings
from engine.supervisor import Death, GaveUp
from engine.tokenizer import Tokenizer, TokenizerError
from engine.transfer.needs import unmet

LOOK_SECONDS = 0.1  # between two looks at who has waited too long, and at who has nothing to do any more
_log = logging.getLogger(__name__)


class Likeness(NamedTuple):
    """Of an engine: what others must have too, in words, and if that is not enough, a hash of it."""

    name: str
    must: str
    digest: str = ""


class Cluster:
    """`config` is that of each worker, but for its name and what follows from the role: faults for one of them are
    `NAME:FAULT`. `cores` are shared by all workers (None: each is told by `config.threads`), and so is `memory`, in
    bytes (None: their KV is elsewhere). `own` has fields of the config in which a role's workers differ.

    `start` begins a worker's engine; it may wait, and is called in threads. It may raise CannotStart.
    """

    def __init__(
        self,
        config: EngineConfig,
        settings: ServeSettings,
        start: Callable[[WorkerSpec], Core],
        control: ClusterControl,
        cores: int | None = None,
        memory: int | None = None,
        own: Callable[[Role], Mapping[str, Any]] = lambda role: {},
    ) -> None:
        sizes.check(control)
        self.config = config
        self.settings = settings
        self.control = control
        self.metrics = ClusterMetrics()
        self.number = 0  # grows with every change of workers, control or transfers
        self.separate = False  # prompts are prefilled by others than those who decode: asked for with every step
        self._cores = cores
        self._memory = memory
        self._own = own
        self._start = start
        self._workers: dict[str, Worker] = {}  # in the order of their starts
        self._tasks: dict[Worker, asyncio.Task[None]] = {}  # that keep them alive
        self._drains: dict[Worker, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._router = Router(config.block_size, control.routing, separate=control.separate)
        self.dispatcher = Dispatcher(self._workers, self._router, control, self._note_change, self._note_transfer)
        self.client = ClusterClient(self)
        self.service = Service(settings)  # of the whole
        self.service.cluster = self
        self.service.client = self.client
        self._tokenizer: asyncio.Task[Tokenizer] | None = None
        self._like: dict[Literal["engine", "memory"], Likeness] = {}  # of the first that had one
        self._complete = asyncio.Event()  # all that were wanted at the start have served
        self._fate: asyncio.Future[None] | None = None  # fails when the cluster cannot be kept alive
        self._ending = False
        self._past_restarts = 0  # of workers that are gone
        self._last_error: GaveUp | None = None  # of the last worker that could not be kept alive

    # What is known

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    @property
    def restarts(self) -> int:
        """How often engines were started again."""
        return self._past_restarts + sum(worker.restarts for worker in self._workers.values())

    @property
    def last_death(self) -> Death | None:
        deaths = [worker.service.last_death for worker in self._workers.values()]
        return max((death for death in deaths if death is not None), key=lambda death: death.unix, default=None)

    @property
    def missing(self) -> str | None:
        """Why no request can be served now; None if one can."""
        if self.client.info is None:
            return f"the engines are loading {self.settings.names[0]}"
        workers = self._workers.values()
        roles = sizes.FIELDS if self._complete.is_set() else sizes.SERVING  # at the start all come about together
        if any(one.role in roles and one.phase == "ready" and one.serves for one in workers):
            return None
        told = [f"{one.name}: {one.reason}" for one in workers if one.reason]
        return "; ".join(["no engine can serve now", *told])

    @property
    def recent(self) -> Sequence[TransferDone]:
        """Transfers that ended, the newest last."""
        return tuple(self.dispatcher.leases.recent)

    def transfers(self) -> tuple[TransferState, ...]:
        return tuple(self.dispatcher.leases.told(self.dispatcher.now))

    @property
    def hands_over(self) -> bool:
        """Whether there are to be engines that do."""
        return any(sizes.wanted(self.control, role) for role in sizes.HANDING)

    def load(self, name: str) -> float:
        """Outstanding tokens of a worker, as the router has it."""
        return self._router.load(name)

    def routed(self, name: str) -> int:
        """Requests sent to a worker."""
        return self._router.routed(name)

    def router_state(self) -> RouterState:
        router, dispatcher = self._router, self.dispatcher
        return RouterState(
            router.decisions,
            router.decision_seconds,
            router.by_prefix,
            router.bounded,
            dispatcher.local,
            dispatcher.leases.handed_over,
            dispatcher.recovered,
            router.indexed_blocks,
            router.imbalance,
        )

    # Its life

    async def run(self) -> None:
        """Keep the workers alive until this is cancelled. Raises GaveUp when one fails at the first start, or none
        that can serve is left."""
        self._fate = asyncio.get_running_loop().create_future()
        looking = asyncio.create_task(self._look())
        self._reconcile()
        try:
            await self._fate
        finally:
            looking.cancel()

    async def until_complete(self) -> None:
        """Wait until as many workers serve as are wanted."""
        await self._complete.wait()

    def end(self) -> None:
        """Start nothing from now on."""
        self._ending = True
        for worker in self._workers.values():
            worker.last_one()

    def close_streams(self) -> None:
        """Come to the end of what is told to readers of the workers' steps."""
        for worker in self._workers.values():
            worker.service.stopping = True
            worker.service.hub.close()

    def kill(self) -> None:
        """End all engines at once: those that hang or are stopped would not notice that this process ends."""
        for worker in self._workers.values():
            if worker.core is not None:
                worker.core.kill()

    async def shutdown(self, timeout: float) -> None:
        """End all engines."""
        self.end()
        for task in self._drains.values():
            task.cancel()
        await asyncio.gather(*(self._leave(worker, timeout) for worker in self.workers))
        for other in tuple(self._others):
            other.cancel()

    async def change(self, control: ClusterControl) -> None:
        """Hold this from now on; returns when it is under way. Raises ClusterControlError, which names the field."""
        sizes.check(control)
        async with self.client.patching:  # what engines are to be like is not changed meanwhile
            self._change(control)

    def _change(self, control: ClusterControl) -> None:
        for role in sizes.HANDING:
            grows = sizes.wanted(control, role) > sizes.wanted(self.control, role)
            if grows and (need := unmet(self.client.control, self._device(role))) is not None:
                wrong = f"must be 0 where {need.setting} is {need.got}: KV is handed over only where it is {need.must}"
                raise ClusterControlError(f"{role}: {wrong}")
        each = self.config.kv_memory + self.config.swap_space
        if self._memory is not None and (told := sizes.too_much(control, each, self._memory)):
            raise ClusterControlError(f"{sizes.largest(control)}: {told}")
        if control != self.control:
            log.say(f"the cluster is to have {sizes.told(control)}", name="scale")
        self.control = self.dispatcher.control = control
        self._router.routing, self._router.separate = control.routing, control.separate
        self.start_again([worker.name for worker in self.workers if worker.phase == "dead"])

    def start_again(self, names: Iterable[str]) -> None:
        """Others in the places of these that are dead, if they are still wanted."""
        for name in names:
            worker = self._workers.get(name)
            if worker is not None and worker.phase == "dead":
                self._forget(worker)
        self._note_workers()
        self._reconcile()

    def _device(self, role: Role) -> str:
        """Of engines of that role. What `auto` comes to is known of those that there are, of this role or any."""
        device = str(self._own(role).get("device", self.config.device))
        if device != "auto":
            return device
        found = [(one.role, one.service.loaded.info.device) for one in self.workers if one.service.loaded is not None]
        known = {device for of, device in found if of == role} or {device for _, device in found}
        return "cuda" if known and all(device.startswith("cuda") for device in known) else device

    def _reconcile(self) -> None:
        """Have as many workers as are wanted, as far as it can be done now. To be called whenever something changes."""
        if self._ending:
            return
        plan = sizes.plan(self.control, self.workers)
        revived = [name for name in plan.revive if self._revive(self._workers[name])]
        for name in plan.drain:
            self._begin_drain(self._workers[name])
        for name, role in plan.start:
            worker = Worker(self.spec(name, role), self.settings, self._start, self)
            self._workers[name] = worker
            self._router.add_worker(name, role)
            self._tasks[worker] = asyncio.create_task(self._tend(worker))
        if plan.revive or plan.drain or plan.start:
            self._note_workers()
        if all(worker.phase == "ready" for worker in self._workers.values()):
            self._complete.set()
        if revived:  # whoever stayed because these were to go may go now
            self._reconcile()

    def spec(self, name: str, role: Role) -> WorkerSpec:
        """What a new worker is to be."""
        faults = [fault.rpartition(":") for fault in self.config.faults]
        config = msgspec.structs.replace(
            self.config,
            name=name,
            control=self.client.begins(name),
            transfer="none" if role == "replica" else self.config.transfer,
            tell_kv=True,
            faults=tuple(fault for whose, _, fault in faults if whose in ("", name)),
            **self._own(role),
        )
        if self._cores is not None:
            threads = max(1, self._cores // sizes.total(self.control))
            config = msgspec.structs.replace(config, threads=threads)
        return WorkerSpec(name, role, config)

    async def _tend(self, worker: Worker) -> None:
        """Keep a worker alive, and see that something comes of it where that cannot be done."""
        try:
            await worker.run()
        except GaveUp as error:
            await worker.end()
            self._given_up(worker, error)
        except Exception as error:  # of ours: what it had must not hang
            log.event(_log, logging.ERROR, "worker_failed", f"{worker.name} failed", error=error)
            await worker.end()
            self._given_up(worker, GaveUp(f"{worker.name} failed: {type(error).__name__}: {error}", unusable=False))

    def _given_up(self, worker: Worker, error: GaveUp) -> None:
        if self._ending or worker.phase == "draining":
            return
        worker.phase, worker.reason = "dead", str(error)
        while worker.reason.startswith(named := f"{worker.name}: "):
            worker.reason = worker.reason.removeprefix(named)
        self._router.close(worker.name)
        self._note_workers()
        self._last_error = error
        if not self._complete.is_set() or not self._may_serve:
            self._end_with(error)
            return
        told = f"{worker.name}: {worker.reason}; it stays dead until the cluster is changed"
        log.say(told, level=logging.ERROR, name="gave_up")

    @property
    def _may_serve(self) -> bool:
        """Whether somebody can serve, now or when they have started."""
        return any(one.phase != "dead" for one in self._workers.values())

    def _end_with(self, error: GaveUp) -> None:
        """The cluster cannot be kept alive."""
        self.client.death = EngineDiedError(str(error), unusable=error.unusable)
        self.dispatcher.give_up_waiting(str(error))
        if self._fate is not None and not self._fate.done():
            self._fate.set_exception(error)

    # Going

    def _begin_drain(self, worker: Worker) -> None:
        is_ready = worker.phase == "ready"
        worker.phase = "draining"
        worker.last_one()
        self._router.close(worker.name)
        self._drains[worker] = asyncio.create_task(self._drain(worker, is_ready))

    async def _drain(self, worker: Worker, is_ready: bool) -> None:
        """Let a worker end what it has, move what takes too long, and end it."""
        if is_ready:
            seconds = self.settings.recovery.drain_timeout
            if not await self._until_free(worker, seconds):
                if worker.client is not None:
                    self.dispatcher.move_away(worker.client, f"{worker.name} was drained for {seconds:g} s")
                # What is not read by then is computed again, by whoever was to read it.
                await self._until_free(worker, self.config.transfer_seconds)
        del self._drains[worker]
        await self._leave(worker)
        log.say(f"{worker.name} has gone", name="gone", worker=worker.name)
        self._note_workers()
        self._reconcile()
        if self._last_error is not None and not self._may_serve and not self._ending:
            self._end_with(self._last_error)  # whoever was to serve instead has died meanwhile

    async def _until_free(self, worker: Worker, seconds: float) -> bool:
        """Whether it has nothing to do any more within that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.dispatcher.has(worker.name, worker.client) and not worker.is_gone:
                    await asyncio.sleep(LOOK_SECONDS)
            return True
        return False

    def _revive(self, worker: Worker) -> bool:
        """It was to go, and is wanted again. False if it has gone too far: when it is gone, another one is started."""
        if worker not in self._drains or worker.is_gone:
            return False
        self._drains.pop(worker).cancel()
        worker.go_on()
        if worker.phase == "ready":
            self._router.open(worker.name)
            self.dispatcher.serves()
        return True

    async def _leave(self, worker: Worker, timeout: float = 3.0) -> None:
        """End a worker, and forget it."""
        await worker.end(timeout)
        task = self._tasks.pop(worker, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, GaveUp):
                await task
        self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        if self._workers.get(worker.name) is not worker:
            return
        if worker.client is not None:
            self.dispatcher.lost(worker.client, worker.name, f"{worker.name} has ended")
        self._past_restarts += worker.restarts
        del self._workers[worker.name]
        self._tasks.pop(worker, None)
        self._router.remove_worker(worker.name)

    # What workers tell

    async def loaded(self, client: CoreClient) -> Loaded | None:
        located = await client.until_located()
        if located is None:
            return None
        if self._tokenizer is None:
            self._tokenizer = asyncio.create_task(asyncio.to_thread(self._load_tokenizer, Path(located.folder)))
        try:
            tokenizer = await asyncio.shield(self._tokenizer)
        except TokenizerError as error:
            raise GaveUp(str(error), unusable=True) from error
        info = await client.until_ready()
        if info is None:
            return None
        local = Path(self.config.model).expanduser()
        return Loaded(info, tokenizer, located.vocab_size, str(local.resolve()) if local.exists() else None)

    def _load_tokenizer(self, folder: Path) -> Tokenizer:
        """Of a model that another host may have: then there is one here too, or it is made."""
        return Tokenizer(folder if folder.exists() else resolve_model(self.config.model, self.config.seed).folder)

    def serves(self, worker: Worker, client: CoreClient, loaded: Loaded) -> None:
        self._check_like(worker, client, loaded.info)
        before = self.client.info
        info = loaded.info if before is None else _smaller(before, loaded.info)
        if info is not before:
            self.client.info = info
            self.service.loaded = loaded._replace(info=info)
        if worker.phase == "ready":
            self._router.open(worker.name)
            if worker.restarts:
                log.say(f"{worker.name} serves again", name="ready", restarts=worker.restarts)
            elif self._complete.is_set():
                log.say(f"{worker.name} serves", name="ready", worker=worker.name)
        self._spawn(self._adopt(worker, client))
        self._note_workers()
        self.dispatcher.serves()
        self._reconcile()

    def has_died(self, worker: Worker, client: CoreClient) -> None:
        self.dispatcher.lost(client, worker.name, f"{worker.name}: {client.death}")
        if self._ending and (missing := self.missing) is not None:
            self.dispatcher.give_up_waiting(missing)  # nobody will come any more
        self._note_workers()
        self._reconcile()

    def take_aside(self, worker: Worker, client: CoreClient, aside: Aside) -> None:
        match aside:
            case KvNews():
                self._router.take(worker.name, aside)
            case Taken():
                self.dispatcher.taken(aside)
            case Output():
                self.dispatcher.left_over(worker.name, aside)
            case Pull():
                self._spawn(self._fill(worker, client, aside))

    def take_record(self, worker: Worker, record: Record) -> None:
        for receiving in record.receiving:
            self.dispatcher.moving(receiving)

    def _check_like(self, worker: Worker, client: CoreClient, info: EngineInfo) -> None:
        """Raises GaveUp if what one engine computes is nothing to another."""
        own = Likeness(worker.name, f"{info.model}, {info.dtype}, {info.quantize} weights, blocks of {info.block_size}")
        first = self._like.setdefault("engine", own)
        if first.must == own.must and (there := client.compatibility) is not None:
            own = Likeness(worker.name, there.told, there.digest)
            first = self._like.setdefault("memory", own)
        if (first.must, first.digest) != (own.must, own.digest):
            raise GaveUp(
                f"{own.name} cannot serve beside {first.name}: it has {own.must}, and the other {first.must}",
                unusable=True,
            )

    async def _fill(self, worker: Worker, client: CoreClient, pull: Pull) -> None:
        """Have blocks of another host brought to a worker."""
        source = self._workers.get(pull.offer.engine)
        if source is None or source.core is None:
            error = f"there is no worker {pull.offer.engine} any more"
        elif not isinstance(worker.core, Distant):
            error = f"{worker.name} can only read what is on its own host"
        else:
            what = f"the blocks of {source.name} for {worker.name}"
            overdue = partial(self.dispatcher.overdue, client, pull.offer.lease)
            error = await filled(worker.core.fill(pull, source.core), self.config.transfer_seconds, what, overdue)
        with contextlib.suppress(EngineDiedError):
            client.pulled(pull.request, pull.offer.lease, error)

    async def _adopt(self, worker: Worker, client: CoreClient) -> None:
        with contextlib.suppress(EngineDiedError, CallRefusedError, CallFailedError):
            await self.client.adopt(worker.name, client)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.dispatcher.review()
            except Exception as error:  # of ours: without this look, requests would wait for ever
                log.event(_log, logging.ERROR, "look_failed", "a look at what waits failed", error=error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    def _note_workers(self) -> None:
        """To be called whenever workers, their phases or the control have changed."""
        ready = {worker.role for worker in self._workers.values() if worker.phase == "ready"}
        self.separate = self.control.separate and {"prefill", "decode"} <= ready
        self._note_change()

    def _note_change(self) -> None:
        self.number += 1

    def _note_transfer(self, done: TransferDone) -> None:
        self.metrics.ended(done)


def _smaller(one: EngineInfo, other: EngineInfo) -> EngineInfo:
    """An engine that takes what both do: the first, if it is so."""
    if other.num_blocks >= one.num_blocks and other.max_model_len >= one.max_model_len:
        return one
    return msgspec.structs.replace(
        one,
        num_blocks=min(one.num_blocks, other.num_blocks),
        max_model_len=min(one.max_model_len, other.max_model_len),
    )
