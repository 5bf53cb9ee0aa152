"""Follow every engine of a cluster during a run, each by its own step stream, and the cluster's word of itself."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from engine.cluster.protocol import ClusterState, WorkerState
from engine.protocol import Counters, Queue, SharingLedger, Snapshot, WasteLedger
from loadgen.cluster_calls import read_cluster
from loadgen.cluster_figures import WorkerRun, cluster_figures
from loadgen.engine_watch import EngineError, EngineWatch, read_snapshot

EVERY = 1.0  # seconds between looks at the cluster
MOST_STREAMS = 32  # step streams that one client follows: beyond, workers' own totals must do


@dataclass(slots=True)
class ClusterWatch:
    """From a first state on, through workers that come, restart and go, until `finish`."""

    http: aiohttp.ClientSession
    url: str
    first: ClusterState
    last: ClusterState = field(init=False)
    _before: dict[str, WorkerState] = field(init=False)
    _after: dict[str, WorkerState] = field(init=False)  # the newest word of each, also of those that are gone
    _streams: dict[str, EngineWatch] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.last = self.first
        self._before = {worker.name: worker for worker in self.first.workers}
        self._after = dict(self._before)

    @classmethod
    async def begin(cls, http: aiohttp.ClientSession, url: str, first: ClusterState) -> ClusterWatch:
        """Follow a cluster. Raises `EngineError` if a worker that is ready cannot be followed."""
        watch = cls(http, url, first)
        try:
            ready = [worker for worker in first.workers if worker.phase == "ready"]
            if len(first.workers) <= MOST_STREAMS:
                await asyncio.gather(*(watch._follow(worker, new=False) for worker in ready))
        except BaseException:
            await watch.close()
            raise
        watch._task = asyncio.create_task(watch._look())
        return watch

    async def _follow(self, worker: WorkerState, *, new: bool) -> None:
        """Read a worker's stream, from its engine's beginning if it came to be ready while this watched."""
        url = f"{self.url}{worker.path}"
        snapshot = await read_snapshot(self.http, url)
        if snapshot is not None:
            self._streams[worker.name] = EngineWatch(self.http, url, _empty(snapshot) if new else snapshot)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            with contextlib.suppress(EngineError):  # what is wrong for good is told at the end
                await self._take(await read_cluster(self.http, self.url))

    async def _take(self, state: ClusterState | None) -> None:
        """Raises `EngineError`."""
        if state is None:
            raise EngineError(f"{self.url} is no cluster any more")
        self.last = state
        for worker in state.workers:
            self._after[worker.name] = worker
            known = worker.name in self._streams or worker.phase != "ready"
            if not known and len(self._streams) < MOST_STREAMS and len(self.first.workers) <= MOST_STREAMS:
                with contextlib.suppress(EngineError):  # it may be gone again
                    before = self._before.get(worker.name)
                    await self._follow(worker, new=before is None or before.phase in ("starting", "dead"))

    async def finish(self) -> dict[str, Any]:
        """Read all streams up to their engines' present state, stop, and give the figures. Raises `EngineError`."""
        await self._stop_looking()
        try:
            await self._take(await read_cluster(self.http, self.url))
            names = list(self._streams)
            figures = await asyncio.gather(*(self._finish(name, self._streams[name]) for name in names))
        finally:
            await self.close()
        told = dict(zip(names, figures, strict=True))
        runs = [
            WorkerRun(
                self._before.get(name),
                worker,
                told.get(name),
                () if (stream := self._streams.get(name)) is None else tuple(stream.lives()),
            )
            for name, worker in self._after.items()
        ]
        return cluster_figures(self.first, self.last, runs)

    async def _finish(self, name: str, stream: EngineWatch) -> dict[str, Any]:
        """A worker's figures: up to the last record that came, if it is gone. Raises `EngineError`."""
        try:
            return await stream.finish()
        except EngineError:
            now = await read_cluster(self.http, self.url)
            if now is not None and any(worker.name == name and worker.phase == "ready" for worker in now.workers):
                raise  # it is there: half of its figures would pass for all
            return stream.so_far()

    async def _stop_looking(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Stop reading."""
        await self._stop_looking()
        await asyncio.gather(*(stream.close() for stream in self._streams.values()))


def _empty(snapshot: Snapshot) -> Snapshot:
    """The engine as it was before its first record: all that it has done since is of the run."""
    return msgspec.structs.replace(
        snapshot,
        seq=0,
        time=snapshot.engine.started,
        requests=(),
        blocks=(),
        waste=WasteLedger(),
        sharing=SharingLedger(),
        queue=Queue(),
        counters=Counters(),
        host_blocks=0,
    )
