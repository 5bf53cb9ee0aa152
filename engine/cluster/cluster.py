"""A cluster: workers that come, serve and go, behind one client. What is wanted may change at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.cluster.protocol import ClusterControl, RouterState, TransferDone, TransferState
from engine.cluster.worker import Worker, WorkerSpec
from engine.config import EngineConfig
from engine.core_client import Core
from engine.server.cluster_metrics import ClusterMetrics
from engine.server.settings import ServeSettings
from engine.supervisor import Death


class Cluster:
    """`config` is that of each worker, but for its name and what follows from the role. Outline: filled in next.

    `start` begins a worker's engine; it may wait, and is called in threads. It may raise CannotStart.
    """

    def __init__(
        self,
        config: EngineConfig,
        settings: ServeSettings,
        start: Callable[[WorkerSpec], Core],
        control: ClusterControl,
    ) -> None:
        self.config = config
        self.settings = settings
        self.control = control
        self.workers: tuple[Worker, ...] = ()  # in the order of their starts
        self.recent: Sequence[TransferDone] = ()  # the newest last
        self.metrics = ClusterMetrics()  # `ended` takes each TransferDone
        self.number = 0  # grows with every change of workers, control or transfers

    @property
    def restarts(self) -> int:
        """How often engines were started again."""
        return sum(worker.restarts for worker in self.workers)

    @property
    def last_death(self) -> Death | None:
        deaths = [worker.service.last_death for worker in self.workers]
        return max((death for death in deaths if death is not None), key=lambda death: death.unix, default=None)

    @property
    def missing(self) -> str | None:
        """Why no request can be served now; None if one can."""
        raise NotImplementedError

    async def change(self, control: ClusterControl) -> None:
        """Hold this from now on; returns when it is under way. Raises ClusterControlError, which names the field."""
        raise NotImplementedError

    def transfers(self) -> tuple[TransferState, ...]:
        raise NotImplementedError

    def router_state(self) -> RouterState:
        raise NotImplementedError

    def load(self, name: str) -> float:
        """Outstanding tokens of a worker, as the router has it; 0 of one that it does not know yet."""
        raise NotImplementedError
