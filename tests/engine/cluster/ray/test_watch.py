"""A head that comes back is waited for, and one that does not is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from engine.cluster.ray.watch import until_lost

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
