"""A core that is stopped says nothing and ends nothing: whoever waits for it is told, and it is killed."""

import asyncio
import signal

import pytest

from engine.config import EngineConfig
from engine.core_client import CoreClient, CoreProcess, EngineDiedError
from engine.messages import Add, Output
from engine.sampling_params import SamplingParams
from engine.server.serve import silence

SILENCE = 1.0


async def ready(silence: float) -> tuple[CoreProcess, CoreClient, asyncio.Task[None]]:
    core = CoreProcess(EngineConfig(model="tiny", dtype="float32", kv_memory=4 << 20))
    client = CoreClient(core, lambda seq, json: None, silence)
    running = asyncio.create_task(client.run(lambda ready: None))
    assert await client.until_ready() is not None
    return core, client, running


async def test_a_stopped_core_is_killed_and_those_who_wait_are_told() -> None:
    core, client, running = await ready(SILENCE)
    told: list[Output] = []
    core.process.send_signal(signal.SIGSTOP)
    client.add(Add("a", (1, 2, 3), SamplingParams(max_tokens=4)), told.append, "a")
    asked = asyncio.create_task(client.snapshot())
    await asyncio.wait_for(running, 20)
    assert [(output.finished, output.unavailable) for output in told] == [("error", True)]
    assert told[0].error == "the engine process said nothing for 1 s"
    with pytest.raises(EngineDiedError, match="said nothing for 1 s"):
        await asked
    assert core.process.poll() == -signal.SIGKILL


async def test_one_that_nobody_waits_for_may_be_silent() -> None:
    core, client, running = await ready(0.2)
    core.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.0)
    core.process.send_signal(signal.SIGCONT)
    reply = await client.snapshot()
    assert reply.error is None
    assert client.death is None
    await client.shutdown()
    await running


def test_it_is_waited_for_longer_than_its_own_watchdog_waits() -> None:
    assert silence(EngineConfig(step_timeout=0.0)) == 0.0
    assert silence(EngineConfig(step_timeout=1.0)) == 320.0
    assert silence(EngineConfig(step_timeout=1000.0)) == 1020.0
