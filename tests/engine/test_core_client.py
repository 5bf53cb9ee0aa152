"""The API process's end of a core that dies: how that is told, and that nobody waits for the dead."""

import asyncio
import gc
import signal
import socket
import subprocess
import threading

import pytest

from engine import core_client
from engine.config import EngineConfig
from engine.core_client import CoreClient, CoreProcess, EngineDiedError, to_its_end


@pytest.mark.parametrize(
    ("number", "told"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (signal.SIGRTMIN + 6, f"signal {signal.SIGRTMIN + 6}")],
)
def test_whatever_signal_kills_it_is_told(number: int, told: str) -> None:
    core = CoreProcess(EngineConfig())
    core.process.send_signal(number)
    core.process.wait()
    assert core.ending().startswith(f"the engine process was killed by {told}")
    core.stop(0)


class Lingering:
    """Stands in for a process that cannot be killed at once, as one does whose GPU's driver holds it."""

    def __init__(self) -> None:
        self.is_killed = False
        self.gone = threading.Event()

    def wait(self, timeout: float | None = None) -> int:
        if not self.gone.wait(timeout):
            raise subprocess.TimeoutExpired("core", timeout or 0)
        return -signal.SIGKILL

    def poll(self) -> int | None:
        return -signal.SIGKILL if self.gone.is_set() else None

    def kill(self) -> None:
        self.is_killed = True


async def test_whoever_waits_is_told_before_the_process_is_gone(monkeypatch) -> None:
    monkeypatch.setattr(core_client, "LAST_SECONDS", 0.01)
    core = CoreProcess.__new__(CoreProcess)
    core.socket, theirs = socket.socketpair()
    core.process = process = Lingering()
    client = CoreClient(core, lambda seq, json: None)
    running = asyncio.create_task(client.run(lambda ready: None))
    await asyncio.sleep(0)  # it connects
    while client._writer is None:
        await asyncio.sleep(0)
    asked = asyncio.create_task(client.snapshot())
    await asyncio.sleep(0)
    theirs.close()
    with pytest.raises(EngineDiedError, match="closed its connection"):
        await asked
    assert process.is_killed
    assert not running.done()  # what it holds, the next one needs
    process.gone.set()
    await running


async def test_a_dead_core_holds_no_file() -> None:
    core = CoreProcess.__new__(CoreProcess)
    core.socket, theirs = socket.socketpair()
    core.process = process = Lingering()
    process.gone.set()
    theirs.close()
    client = CoreClient(core, lambda seq, json: None)
    await client.run(lambda ready: None)
    assert core.socket.fileno() == -1


async def test_what_nobody_waits_for_any_more_may_fail() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    going_on, ended = asyncio.Event(), asyncio.Event()

    async def fails() -> None:
        await going_on.wait()
        ended.set()
        raise EngineDiedError("it was killed")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(to_its_end(fails()), 0.01)
    going_on.set()
    await ended.wait()
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert not told
    going_on.set()
    with pytest.raises(EngineDiedError):
        await to_its_end(fails())
