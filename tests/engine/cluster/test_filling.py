"""Blocks of another host that are brought to an engine, or of which nobody tells whether they came."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from engine.cluster.filling import OVERDUE, filled
from engine.cluster.protocol import ClusterControl
from engine.cluster.worker import WorkerSpec
from engine.core_client import Core
from engine.messages import Pull
from engine.transfer.pool_memory import read_blocks, write_blocks
from tests.engine.cluster.clusters import TINY, Asked, named, running, settle, snapshot, until
from tests.engine.cluster.forked import ForkedCore
from tests.engine.cluster.test_cluster import prompts, sampling


async def test_whoever_waits_is_told_once_and_the_end_is_that_of_the_filling():
    told: list[str] = []
    end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def fill() -> str:
        return await end

    waiting = asyncio.create_task(filled(fill(), 0.01, "the blocks", told.append))
    await until(lambda: told)
    assert told == [f"nobody has told for {OVERDUE * 0.01:g} s whether the blocks came"]
    assert not waiting.done(), "its blocks are kept"
    end.set_result("the node is gone")
    assert await waiting == "the node is gone"
    assert len(told) == 1


async def test_what_is_told_in_time_is_all():
    async def fails() -> str:
        raise OSError("no route")

    async def fill() -> str:
        return ""

    told: list[str] = []
    assert await filled(fails(), 60.0, "the blocks", told.append) == "OSError: no route"
    assert await filled(fill(), 60.0, "the blocks", told.append) == ""
    assert not told


class FarCore(ForkedCore):
    """On a host of its own, as it says. The first blocks that any of them is to get do not come until `go_on`."""

    node = "far"
    fills = 0
    go_on: asyncio.Event

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(replace(spec.config, host=spec.name))

    async def fill(self, pull: Pull, source: Core) -> str:
        FarCore.fills += 1
        if FarCore.fills == 1:
            await FarCore.go_on.wait()
        sources, targets = zip(*pull.pairs, strict=True)
        write_blocks(pull.into, targets, read_blocks(pull.offer.place, sources))
        return ""


async def test_a_request_whose_blocks_nobody_tells_of_goes_on_elsewhere():
    (prompt,) = prompts(1)
    async with running(ClusterControl(replicas=1)) as cluster:
        wanted = await Asked(cluster, "alone", prompt, sampling(), 2).tokens()
    FarCore.fills, FarCore.go_on = 0, asyncio.Event()
    config = replace(TINY, transfer="parent", transfer_seconds=0.1)
    async with running(ClusterControl(prefill=1, decode=2), config, FarCore) as cluster:
        assert await Asked(cluster, "a", prompt, sampling(), 2).tokens() == wanted
        (overdue,) = cluster.transfers()
        assert overdue.phase == "overdue"
        assert cluster.router_state().recovered == 1
        told = await snapshot(named(cluster, overdue.target))
        assert [(one.request, one.status) for one in told.requests] == [("a", "receiving")]
        assert told.engine.num_blocks - told.pool.free == overdue.blocks > 0, "nobody else gets them"
        FarCore.go_on.set()
        await settle(cluster)
        assert [done.error for done in cluster.recent] == ["the request has ended"]
        assert await Asked(cluster, "b", *prompts(1, seed=1), sampling(), 2).tokens()
        assert FarCore.fills == 2
        await settle(cluster)
