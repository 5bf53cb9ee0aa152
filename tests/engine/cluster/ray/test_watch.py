"""A head that comes back is waited for, and one that does not is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import SimpleNamespace
from typing import cast

import pytest

from engine.cluster.cluster import Cluster
from engine.cluster.ray.nodes import RayNodes
from engine.cluster.ray.watch import bring_back, until_lost

LOOK = 0.01


async def _close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_a_head_is_lost_when_it_has_been_gone_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    reserved = socket.create_server(("127.0.0.1", 0))
    head = f"127.0.0.1:{reserved.getsockname()[1]}"
    losing = asyncio.create_task(until_lost(head, LOOK, patience=3600.0))
    told = ""

    async def until_told(times: int) -> None:
        nonlocal told
        while told.count(f"Ray's head at {head} is gone") < times:
            await asyncio.sleep(LOOK)
            told += capsys.readouterr().err

    await asyncio.sleep(3 * LOOK)
    assert not capsys.readouterr().err  # it is there
    for times in (1, 2):  # it is told once each time
        reserved.close()
        await until_told(times)
        back = await asyncio.start_server(_close, "127.0.0.1", int(head.rpartition(":")[2]))
        heard = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < heard + 5 * LOOK:
            await asyncio.sleep(LOOK)
        assert not losing.done()
        back.close()
        await back.wait_closed()
    losing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await losing
    await until_lost(head, LOOK, patience=5 * LOOK)
    assert f"{head} is gone: unless it comes back within 0.05 s, this ends" in capsys.readouterr().err


async def test_workers_without_room_are_told_once_and_started_when_there_is_some(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Nodes:
        looks = 0

        def homeless(self, names: list[str]) -> list[str]:
            self.looks += 1
            return [name for name in names if name != "decode-1"]  # that one died of something else

        def that_find_room(self, names: list[str]) -> list[str]:
            return names if self.looks > 3 else []

    workers = [SimpleNamespace(name=name, phase="dead") for name in ("decode-1", "decode-2")]
    started: list[str] = []
    nodes, cluster = Nodes(), SimpleNamespace(workers=workers, start_again=started.extend)
    bringing = asyncio.create_task(bring_back(cast("Cluster", cluster), cast("RayNodes", nodes), LOOK))
    async with asyncio.timeout(20):
        while not started:
            await asyncio.sleep(LOOK)
    bringing.cancel()
    assert set(started) == {"decode-2"}
    told = capsys.readouterr().err
    assert told.count("decode-2 is started again when the Ray cluster has room for it") == 1
    assert "there is room on the Ray cluster again for decode-2" in told
    assert "decode-1" not in told
