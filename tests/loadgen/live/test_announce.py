"""A run is told of while it goes on, is gone when it is over, and is never disturbed by who hears of it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from rich.console import Console

from engine.protocol import LiveLoad, LoadLatency, LoadRun, decode_loads, encode
from loadgen.engine_process import EngineProcess
from loadgen.live import announce as announce_module
from loadgen.live.announce import announce, told
from loadgen.live.state import RunState
from loadgen.live.tally import Counts, Progress
from loadgen.outcome import Outcome
from loadgen.perform import perform
from loadgen.self_watch import SelfFigures
from loadgen.settings import Settings
from loadgen.target import Steering, Target
from tests.loadgen.live.states import completed, failed, long_run

TINY = ("--model", "tiny", "--kv-memory", "64MiB", "--max-model-len", "2048")
STATE = RunState("replay", 0.0, sessions=3, turns=9)


def test_it_is_the_state_in_seconds() -> None:
    progress = Progress("replay", sessions=3, turns=9, began=100.0, speed=2.0)
    progress.take(completed(0, sent=1.0, chunks=(1.5, 2.5), tokens=3))
    progress.take(completed(1, sent=2.0, chunks=(2.125, 2.25), tokens=2))
    figures = [
        SelfFigures(wall_s=4.0, cpu_s=1.0, ticks=9, p99_lag_ms=7.0),
        SelfFigures(wall_s=4.0, cpu_s=3.5, ticks=9, p99_lag_ms=2.0),
    ]
    run = told(progress.state(104.0, [Counts(due=5, sent=4, in_flight=2, queued=1, sessions_done=1)], figures), "chat")
    assert (run.label, run.trace, run.elapsed, run.speed) == ("replay", "chat", 4.0, 2.0)
    assert (run.sessions, run.sessions_done, run.turns, run.share) == (3, 1, 9, pytest.approx(2 / 9))
    assert run.left == pytest.approx(4.0 * 7 / 2)
    assert (run.due, run.queued, run.sent, run.in_flight, run.completed, run.failed) == (5, 1, 4, 2, 2, 0)
    assert run.output_tokens == 5
    assert run.ttft == LoadLatency(pytest.approx(0.3125), pytest.approx(0.49625), 2)
    assert run.ttft_scheduled.p50 == pytest.approx(0.5625)
    assert run.tpot.p50 == pytest.approx((0.5 + 0.125) / 2)
    assert (run.e2e.p50, run.e2e_scheduled.p50) == (pytest.approx(0.875), pytest.approx(1.125))
    assert run.send_lag == pytest.approx(0.25)
    assert (run.loop_lag, run.cpu_share, run.bottleneck) == (0.007, 0.875, True)
    assert (run.failure, run.stopping) == ("", "")


def test_a_percentile_among_failures_is_none_and_they_are_counted() -> None:
    progress = Progress("replay", sessions=3, turns=9, began=0.0)
    for index in range(8):
        progress.take(completed(index))
    progress.take(failed(Outcome.NOT_SENT, "", 8))
    progress.take(failed(Outcome.TIMEOUT, "no answer\nwithin 30 s", 9))
    run = told(progress.state(9.0, []), "chat")
    assert run.failed == 2
    assert (run.ttft.p50, run.ttft.p99) == (0.5, None)
    assert run.ttft.requests >= 9
    assert run.failure == "timed out: no answer within 30 s"


def test_before_anything_has_ended_nothing_is_measured() -> None:
    run = told(STATE, "chat")
    assert run.ttft == run.e2e_scheduled == LoadLatency()
    assert (run.left, run.send_lag, run.loop_lag) == (None, None, None)


@pytest.mark.parametrize("state", [STATE, *long_run()[::17]], ids=lambda state: f"{state.elapsed:.0f} s")
def test_the_engine_takes_what_is_told(state: RunState) -> None:
    run = told(state, "chat")
    assert msgspec.json.decode(encode(run), type=LoadRun) == run


def test_words_are_bounded_and_can_be_sent() -> None:
    state = replace(
        STATE,
        label="B, round 1\x1b[31m",
        stopping="x" * 999,
        failures={Outcome.CUT: 1},
        first_failures={Outcome.CUT: "y" * 999},
    )
    run = told(state, "\udcff.jsonl")
    assert (run.label, run.trace) == ("B, round 1?[31m", "?.jsonl")
    assert (len(run.stopping), len(run.failure)) == (200, 200)
    assert msgspec.json.decode(encode(run), type=LoadRun) == run


def test_what_was_sent_a_moment_early_is_not_late() -> None:
    progress = Progress("replay", sessions=1, turns=1, began=0.0)
    progress.take(msgspec.structs.replace(completed(), scheduled=1.001))
    run = told(progress.state(3.0, []), "chat")
    assert run.send_lag == 0.0


@asynccontextmanager
async def answering(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_an_engine_without_such_a_route_is_told_once() -> None:
    asked: list[str] = []

    async def no_route(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.Response(status=404)

    async with answering(no_route) as url, aiohttp.ClientSession() as http:
        await asyncio.wait_for(announce(lambda: STATE, http, url, "chat"), 20)
    assert asked == ["PUT"]


@pytest.mark.parametrize("status", [400, 413, 429, 500, 503, None], ids=str)
async def test_what_the_server_makes_of_it_changes_nothing(status: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce_module, "EVERY", 0.01)
    monkeypatch.setattr(announce_module, "TIMEOUT", aiohttp.ClientTimeout(total=0.05))
    methods: list[str] = []
    enough = asyncio.Event()

    async def refusing(request: web.Request) -> web.Response:
        methods.append(request.method)
        if len(methods) >= 3:
            enough.set()
        if status is None:
            await asyncio.sleep(60)  # it does not answer at all
        return web.Response(status=status or 200)

    async with answering(refusing) as url, aiohttp.ClientSession() as http:
        task = asyncio.create_task(announce(lambda: STATE, http, url, "chat"))
        await asyncio.wait_for(enough.wait(), 20)
        assert not task.done()
        await cancelled(task)
    assert set(methods[:3]) == {"PUT"}
    assert methods[-1] == "DELETE"


async def test_nobody_there_changes_nothing() -> None:
    async with aiohttp.ClientSession() as http:
        task = asyncio.create_task(announce(lambda: STATE, http, "http://127.0.0.1:1", "chat"))
        await asyncio.sleep(0.1)
        assert not task.done()
        await cancelled(task)


async def test_a_run_is_on_its_engine_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce_module, "EVERY", 0.1)
    turns = [{"user": f"What is {n}?", "user_tokens": 5, "output_tokens": 40, "seed": n, "think": 0.2} for n in (1, 2)]
    del turns[0]["think"]
    lines = [{"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}, "temperature": 0.7}]
    lines += [{"session": f"s{n}", "arrival": n / 10, "system": "main", "turns": turns} for n in range(6)]
    trace = tmp_path / "talk.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen: list[LiveLoad] = []

    async with EngineProcess(TINY, lambda _: None) as engine, aiohttp.ClientSession() as http:

        async def loads() -> tuple[LiveLoad, ...]:
            async with http.get(f"{engine.url}/engine/loads") as reply:
                return decode_loads(await reply.read()).loads

        async def watch() -> None:
            while True:
                seen.extend(await loads())
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        settings, target = Settings(file=str(trace)), Target(engine.url, engine)
        console = Console(file=io.StringIO())
        run = await perform(settings, target, tmp_path / "run.jsonl", console, Steering(), "A, round 1")
        await cancelled(watching)
        assert await loads() == ()
    records = list(run.records())
    assert [record.outcome for record in records] == [Outcome.COMPLETED] * 12
    assert len({load.id for load in seen}) == 1
    assert {(load.run.label, load.run.trace, load.run.turns) for load in seen} == {("A, round 1", "talk", 12)}
    sent = [load.run.sent for load in seen]
    assert sent == sorted(sent)
    last = seen[-1].run
    assert 0 < last.completed <= 12
    ttft = sorted(record.chunks[0] - record.sent for record in records if record.sent is not None)
    assert last.ttft.p50 is not None
    assert ttft[0] * 0.99 <= last.ttft.p50 <= ttft[-1] * 1.01
    assert 0 < last.ttft.requests <= last.completed  # latencies may be those of half a second before
