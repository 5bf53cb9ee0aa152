"""A cluster of real `tiny` engines in this process's event loop, and what is asked of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from engine.cluster.cluster import Cluster
from engine.cluster.protocol import ClusterControl
from engine.cluster.worker import Worker, WorkerSpec
from engine.config import EngineConfig
from engine.core_client import Core
from engine.messages import Add, Output
from engine.protocol import Control, FinishReason, Snapshot, decode_snapshot
from engine.sampling_params import SamplingParams, SchedulingParams
from engine.server.settings import Recovery, ServeSettings
from engine.supervisor import GaveUp
from tests.engine.cluster.forked import start_forked

os.environ["OMP_NUM_THREADS"] = "1"  # of the engines that are started: tiny's products are too small for two
MiB = 1 << 20
TINY = EngineConfig(
    model="tiny",
    dtype="float32",
    device="cpu",
    kv_memory=2 * MiB,
    check_invariants=True,
    transfer="shared_memory",
    control=Control(max_num_batched_tokens=256),
)


@dataclass
class Heard:
    """One answer, as its client has heard it."""

    tokens: list[int] = field(default_factory=list)
    finished: FinishReason | None = None
    error: str = ""
    cached: int = 0


class Asked:
    """A request and its siblings, once all have ended."""

    def __init__(self, cluster: Cluster, name: str, prompt: list[int], sampling: SamplingParams, n: int) -> None:
        self.names = (name, *(f"{name}-{i}" for i in range(1, n)))
        self.heard = {one: Heard() for one in self.names}
        self._ended = asyncio.Event()
        add = Add(name, tuple(prompt), sampling, SchedulingParams(), self.names[1:])
        cluster.client.add(add, self._take, f"answer-{name}")

    def _take(self, output: Output) -> None:
        heard = self.heard[output.request]
        assert heard.finished is None, "told after its end"
        if output.token_id is not None:
            heard.tokens.append(output.token_id)
        heard.cached = max(heard.cached, output.cached_tokens)
        if output.finished is not None:
            heard.finished, heard.error = output.finished, output.error or ""
        if all(one.finished for one in self.heard.values()):
            self._ended.set()

    async def tokens(self) -> list[list[int]]:
        """Of each, once all have ended well."""
        async with asyncio.timeout(60):
            await self._ended.wait()
        assert {one.finished for one in self.heard.values()} <= {"length", "stop"}, self.heard
        return [one.tokens for one in self.heard.values()]

    async def ended(self) -> list[Heard]:
        async with asyncio.timeout(60):
            await self._ended.wait()
        return list(self.heard.values())


@asynccontextmanager
async def running(
    control: ClusterControl,
    config: EngineConfig = TINY,
    start: Callable[[WorkerSpec], Core] = start_forked,
    **recovery: float,
) -> AsyncIterator[Cluster]:
    """Until all that is wanted serves; nothing may be left of it."""
    settings = ServeSettings(names=("tiny",), recovery=Recovery(**recovery))  # type: ignore[arg-type]
    cluster = Cluster(config, settings, start, control)
    keeping = asyncio.create_task(cluster.run())
    complete = asyncio.create_task(cluster.until_complete())
    try:
        await asyncio.wait({keeping, complete}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
        assert complete.done(), "it never came to serve"
        yield cluster
    finally:
        complete.cancel()
        cluster.client.end_streams()
        await cluster.client.shutdown()
        keeping.cancel()
        with suppress(asyncio.CancelledError, GaveUp):
            await keeping


async def until(found, seconds: float = 60.0):
    """What `found` returns, once that is something."""
    async with asyncio.timeout(seconds):
        while not (value := found()):
            await asyncio.sleep(0.01)
        return value


def named(cluster: Cluster, name: str) -> Worker:
    return next(worker for worker in cluster.workers if worker.name == name)


async def snapshot(worker: Worker) -> Snapshot:
    assert worker.client is not None
    return decode_snapshot((await worker.client.snapshot()).json)


async def settle(cluster: Cluster) -> None:
    """Nothing runs, and nobody holds anything for anybody."""
    await until(lambda: not cluster.client.num_live and not cluster.transfers())
    for worker in (worker for worker in cluster.workers if worker.phase != "dead"):
        async with asyncio.timeout(20):
            while (told := await snapshot(worker)).requests:
                await asyncio.sleep(0.02)
        pool = told.pool
        assert pool.free + pool.cached == told.engine.num_blocks, f"{worker.name} holds blocks: {pool}"
        assert cluster.load(worker.name) == 0.0
