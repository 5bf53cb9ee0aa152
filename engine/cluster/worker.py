"""One engine of a cluster: started, kept alive and ended, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from engine.cluster.protocol import Role, WorkerPhase
from engine.cluster.tally import WorkerTally
from engine.config import EngineConfig
from engine.core_client import Aside, Core, CoreClient
from engine.garbage import give_back
from engine.messages import Pull
from engine.protocol import Record, Snapshot
from engine.server.service import Loaded, Service
from engine.server.settings import ServeSettings
from engine.supervisor import CannotStart, GaveUp, Supervisor, silence, started

__all__ = ["CannotStart", "Distant", "Worker", "WorkerSpec"]


class WorkerSpec(msgspec.Struct, frozen=True):
    """What is to be started: `config.name` is the name too."""

    name: str
    role: Role
    config: EngineConfig


@runtime_checkable
class Distant(Core, Protocol):
    """A core that may be on another host, whose name is `node`."""

    node: str

    async def fill(self, pull: Pull, source: Core) -> str:
        """Fill this core's blocks with the source's. Returns what went wrong; "" if nothing did. Nothing touches the
        blocks when it returns."""
        ...


class Listener(Protocol):
    """Who is told what becomes of a worker."""

    async def loaded(self, client: CoreClient) -> Loaded | None:
        """The engine with what its requests need besides; None if it died before. Raises GaveUp."""
        ...

    def serves(self, worker: Worker, client: CoreClient, loaded: Loaded) -> None:
        """It has an engine that is ready, for the first time or again. Raises GaveUp where it does not fit."""
        ...

    def has_died(self, worker: Worker, client: CoreClient) -> None: ...

    def take_aside(self, worker: Worker, client: CoreClient, aside: Aside) -> None: ...

    def take_record(self, worker: Worker, record: Record) -> None: ...

    @property
    def separate(self) -> bool:
        """Whether prompts are prefilled by others than those who decode; asked for with every step."""
        ...


class Worker:
    """A name, and one engine after the other that has it. Of all its cores the requests are the listener's."""

    def __init__(
        self, spec: WorkerSpec, settings: ServeSettings, start: Callable[[WorkerSpec], Core], listener: Listener
    ) -> None:
        self.spec = spec
        self.service = Service(settings, observer=self, engine=spec.name)
        self.tally = WorkerTally()
        self.phase: WorkerPhase = "starting"
        self.reason = ""  # why it is dead, or starts again
        self.node = socket.gethostname()
        self._recovery = settings.recovery
        self._start = start
        self._listener = listener

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def role(self) -> Role:
        return self.spec.role

    @property
    def restarts(self) -> int:
        return self.service.restarts

    @property
    def core(self) -> Core | None:
        """The newest one."""
        return None if self.service.supervisor is None else self.service.supervisor.core

    @property
    def client(self) -> CoreClient | None:
        """That of the newest core."""
        client = self.service.client
        return client if isinstance(client, CoreClient) else None

    async def run(self) -> None:
        """Keep it alive until `end`, or until this is cancelled. Raises GaveUp."""
        try:
            core = await started(lambda: self._begin(self.spec.config))
        except (OSError, CannotStart) as error:
            raise GaveUp(f"{self.name}: {error}", unusable=isinstance(error, CannotStart)) from error
        supervisor = Supervisor(self.spec.config, self._recovery, core, self._live, self._begin)
        self.service.supervisor = supervisor
        await supervisor.run()

    def _begin(self, config: EngineConfig) -> Core:
        return self._start(msgspec.structs.replace(self.spec, config=config))

    async def _live(self, core: Core) -> CoreClient:
        """Serve with it until it is dead. Raises GaveUp where no start can help."""
        service = self.service
        self.node = core.node if isinstance(core, Distant) else socket.gethostname()
        client = CoreClient(
            core,
            service.on_step,
            silence(self.spec.config),
            lambda aside: self._listener.take_aside(self, client, aside),
        )
        service.client = client
        tasks = [asyncio.create_task(client.run(service.on_ready)), asyncio.create_task(self._load(client))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            service.end_life()
        if client.death is not None and self.phase == "ready":
            self.phase = "starting"
        self.reason = str(client.death)
        self._listener.has_died(self, client)
        give_back()
        return client

    async def _load(self, client: CoreClient) -> None:
        loaded = await self._listener.loaded(client)
        if loaded is None or client.death is not None:
            return
        self.service.loaded = loaded
        if self.phase == "starting":
            self.phase, self.reason = "ready", ""
        self._listener.serves(self, client, loaded)

    def last_one(self) -> None:
        """Start no engine after this one."""
        if self.service.supervisor is not None:
            self.service.supervisor.end()

    def go_on(self) -> None:
        """It was to be the last one, and is not."""
        if self.service.supervisor is not None:
            self.service.supervisor.go_on()
        self.phase = "ready" if self.serves else "starting"

    @property
    def serves(self) -> bool:
        """Its engine has started, and lives."""
        return self.client is not None and self.client.ready

    @property
    def is_gone(self) -> bool:
        """Its engine has died; whether another follows is not said."""
        return self.client is not None and self.client.death is not None

    async def end(self, timeout: float = 3.0) -> None:
        """End its engine, and start none again. Seconds that it has to do so."""
        self.last_one()
        self.service.stopping = True
        if self.client is not None:
            await self.client.shutdown(timeout)

    def begin_again(self) -> None:
        self.tally.begin_again()

    def observe(self, record: Record) -> None:
        self.tally.take(record, self._listener.separate and self.role == "decode")
        self._listener.take_record(self, record)

    def resume(self, snapshot: Snapshot) -> None:
        self.tally.resume(snapshot)
