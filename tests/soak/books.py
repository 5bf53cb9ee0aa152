"""What must hold when nothing lives: no block held, the folded stream equal to the engine's state, nothing grown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import msgspec
import psutil

from engine.protocol import Gap, Record, Snapshot, decode_item, decode_snapshot
from tests.soak.clients import Finding
from tui.fold import EngineFold

MiB = 1 << 20


@dataclass(frozen=True)
class Size:
    """Of both processes, in bytes of memory and open files, when nothing lives; `life` counts engines."""

    requests: int
    life: int
    api_memory: int
    core_memory: int
    api_files: int
    core_files: int


class Follower:
    """Folds the step stream for as long as the soak goes on, from engine to engine."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.fold: EngineFold | None = None
        self.records = 0
        self.gaps = 0
        self.lives = 0

    async def run(self) -> None:
        """Until it is cancelled. Raises Finding."""
        while True:
            snapshot = await read_snapshot(self._http)
            if snapshot is not None:
                if self.fold is None or snapshot.engine.started != self.fold.engine.started:
                    self.lives += 1
                    self.fold = None
                if self.fold is None:
                    self.fold = EngineFold.from_snapshot(snapshot)
                await self._follow(self.fold)
            await asyncio.sleep(0.05)

    async def _follow(self, fold: EngineFold) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._http.get(f"/engine/steps?from={fold.seq + 1}") as response:
                if response.status in (400, 503):  # away, or another engine by now
                    return
                if response.status != 200:
                    raise Finding(f"/engine/steps answered {response.status}")
                async for data in events(response):
                    item = decode_item(data)
                    if isinstance(item, Gap):
                        self.gaps += 1
                        self.fold = None
                        return
                    assert isinstance(item, Record)
                    if item.seq != fold.seq + 1:
                        raise Finding(f"record {item.seq} follows {fold.seq}")
                    fold.apply(item)
                    self.records += 1


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of each event, one line each."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield line[6:]


async def read_snapshot(http: aiohttp.ClientSession) -> Snapshot | None:
    """None while no engine serves."""
    async with http.get("/engine/snapshot") as response:
        if response.status == 503:
            return None
        if response.status != 200:
            raise Finding(f"/engine/snapshot answered {response.status}")
        return decode_snapshot(await response.read())


async def check_books(http: aiohttp.ClientSession, follower: Follower) -> Snapshot:
    """Wait until nothing lives; then every block must be free or cached, and the fold equal to the snapshot.

    Raises Finding.
    """
    for _ in range(600):
        snapshot = await read_snapshot(http)
        fold = follower.fold
        if (
            snapshot is not None
            and not snapshot.requests
            and fold is not None
            and (fold.engine.started, fold.seq) == (snapshot.engine.started, snapshot.seq)
        ):
            break
        await asyncio.sleep(0.05)
    else:
        raise Finding(f"requests live on though none is asked: {snapshot}")
    pool = snapshot.pool
    if pool.free + pool.cached != snapshot.engine.num_blocks or snapshot.host_blocks:
        raise Finding(f"blocks leak: {pool}, {snapshot.host_blocks} host blocks")
    if (snapshot.waste.held, snapshot.sharing.logical_blocks, snapshot.queue.length) != (0, 0, 0):
        raise Finding(f"the ledgers hold what nobody does: {snapshot.waste}, {snapshot.sharing}")
    folded = fold.to_snapshot()
    for name in Snapshot.__struct_fields__:
        if getattr(folded, name) != getattr(snapshot, name):
            raise Finding(f"{name}: folded {getattr(folded, name)}, told {getattr(snapshot, name)}")
    return msgspec.structs.replace(snapshot, blocks=())


def size_of(process: psutil.Process, requests: int, life: int) -> Size:
    (core,) = process.children()
    return Size(
        requests,
        life,
        process.memory_info().rss,
        core.memory_info().rss,
        process.num_fds(),
        core.num_fds(),
    )
