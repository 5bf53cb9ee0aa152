"""Whole runs against a golden server: the schedule, the branches, the failures, the stop."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from golden import GoldenServer, Script, Stall, answer, role, text
from rich.console import Console

from loadgen import replay as module
from loadgen.outcome import Outcome
from loadgen.replay import Options, RunResult, ServerError, replay
from loadgen.trace import Header, Session, Trace, Turn

CLOCK_STEP = 0.002  # seconds an event loop may wake early


def turn(user: str, tokens: int = 3, **more: Any) -> Turn:
    return Turn(user=user, user_tokens=1, output_tokens=tokens, **{"seed": 1, **more})


def again(index: int, **more: Any) -> Turn:
    return Turn(regenerates=index, output_tokens=3, **{"seed": 2, **more})


def trace_of(*sessions: tuple[float, list[Turn]], temperature: float = 0.7) -> Trace:
    header = Header("paged-top-chat", 1, {"main": "Be kind."}, temperature)
    return Trace(
        header, tuple(Session(f"s{i}", arrival, "main", tuple(turns)) for i, (arrival, turns) in enumerate(sessions))
    )


def words(body: dict[str, Any]) -> Script:
    return answer([f"{body['messages'][-1]['content']}/{body['seed']}."] * body["max_tokens"])


async def run(
    trace: Trace,
    script_of: Callable[[dict[str, Any]], Script] = words,
    stop: asyncio.Event | None = None,
    server_type: type[GoldenServer] = GoldenServer,
    **options: Any,
) -> tuple[RunResult, GoldenServer]:
    async with server_type(script_of) as server:
        console = Console(file=io.StringIO())
        settings = Options(**{"file": "t.jsonl", "timeout": 30.0, **options})
        return await replay(trace, settings, server.url, None, console, stop or asyncio.Event()), server


def talk(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"]]


async def test_counts_are_exact() -> None:
    trace = trace_of((0, [turn("a", 4), turn("b", 1)]), (0.1, [turn("c", 7)]))
    result, server = await run(trace)
    summary = result.summary
    assert (summary["completed"], summary["failed"], summary["turns"]) == (3, 0, 3)
    assert (summary["total_output_tokens"], summary["total_input_tokens"]) == (12, 21)
    assert (summary["total_chunks"], summary["count_itl"], summary["count_tpot"]) == (12, 9, 2)
    assert (summary["sessions"], summary["sessions_completed"]) == (2, 2)
    assert summary["other_length_than_asked"] == 0
    assert result.engine is None
    assert any("no /engine/snapshot" in note for note in result.notes)
    assert set(result.document()) == {"summary", "engine", "settings"}
    msgspec.json.encode(result.document())
    assert {(served.body["model"], served.body["temperature"]) for served in server.served} == {("golden", 0.7)}


async def test_real_replies_are_the_history_and_a_branch_leaves_the_old_one_out() -> None:
    trace = trace_of((0, [turn("a", 1), turn("b", 1), again(1), turn("c", 1, seed=5)]))
    _, server = await run(trace)
    bodies = [served.body for served in server.served]
    assert talk(bodies[0]) == ["Be kind.", "a"]
    assert talk(bodies[1]) == ["Be kind.", "a", "a/1.", "b"]
    assert talk(bodies[2]) == talk(bodies[1])
    assert (bodies[1]["seed"], bodies[2]["seed"]) == (1, 2)
    assert talk(bodies[3]) == ["Be kind.", "a", "a/1.", "b", "b/2.b/2.b/2.", "c"]
    assert [message["role"] for message in bodies[1]["messages"]] == ["system", "user", "assistant", "user"]


async def test_the_schedule_is_absolute_and_open_loop() -> None:
    """No answer comes before all six requests have: nothing waits for an answer, and no gap adds up."""
    starts = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    everyone = asyncio.Event()

    class Gate(GoldenServer):
        async def _answer(self, request: Any, script: Script, served: Any) -> Any:
            if len(self.served) == len(starts):
                everyone.set()
            await everyone.wait()
            return await super()._answer(request, script, served)

    trace = trace_of(*((start, [turn("a", 1)]) for start in starts))
    result, server = await run(trace, server_type=Gate, speed=2.0)
    assert server.peak_in_flight == 6
    records = sorted(result.records, key=lambda record: record.session)
    assert [record.scheduled for record in records] == [result.start + start / 2 for start in starts]
    for record in records:
        assert record.scheduled is not None
        assert record.sent is not None
        assert record.sent >= record.scheduled - CLOCK_STEP


async def test_think_time_runs_from_the_end_of_the_answer_and_is_divided_by_speed() -> None:
    trace = trace_of((0, [turn("a", 1), turn("b", 1, think=2.0)]))
    result, _ = await run(trace, speed=5.0)
    first, second = result.records
    assert first.ended is not None
    assert second.sent is not None
    assert second.scheduled == pytest.approx(first.ended + 0.4, abs=1e-9)
    assert second.sent >= second.scheduled - CLOCK_STEP


async def test_waiting_for_a_slot_is_in_the_latency_from_scheduled() -> None:
    def slow(body: dict[str, Any]) -> Script:
        return answer(["x"], first=0.3)

    trace = trace_of(*((0.0, [turn("a", 1)]) for _ in range(3)))
    result, server = await run(trace, slow, concurrency=1)
    assert server.peak_in_flight == 1
    last = max(result.records, key=lambda record: record.sent or 0)
    assert last.sent is not None
    assert last.scheduled == result.start  # as scheduled, not as sent
    first_chunks = sorted(record.chunks[0] for record in result.records)
    assert last.sent >= first_chunks[1]  # it waited for two answers
    summary = result.summary
    assert summary["max_send_lag_ms"] == pytest.approx((last.sent - result.start) * 1000)
    assert summary["max_ttft_scheduled_ms"] == pytest.approx((first_chunks[2] - result.start) * 1000)
    assert summary["max_ttft_scheduled_ms"] >= 3 * 300
    assert summary["max_e2el_scheduled_ms"] == summary["max_ttft_scheduled_ms"]


async def test_rate_replaces_the_arrivals() -> None:
    trace = trace_of(*((100.0 * i, [turn("a", 1)]) for i in range(10)))
    result, _ = await run(trace, rate=50.0, seed=3)
    assert result.summary["completed"] == 10
    assert result.settings["rate"] == 50.0


async def test_only_the_first_sessions() -> None:
    trace = trace_of(*((0.0, [turn(f"m{i}", 1)]) for i in range(5)))
    result, server = await run(trace, sessions=2)
    assert result.summary["sessions"] == 2
    assert sorted(talk(served.body)[-1] for served in server.served) == ["m0", "m1"]


async def test_a_failed_turn_ends_its_session_and_every_turn_is_counted() -> None:
    def script(body: dict[str, Any]) -> Script:
        if talk(body)[-1] == "bad":
            return Script(status=400, body={"error": {"message": "too long"}})
        return words(body)

    trace = trace_of((0, [turn("bad"), turn("b"), turn("c")]), (0, [turn("d"), turn("bad"), turn("e")]))
    result, server = await run(trace, script)
    summary = result.summary
    assert (summary["completed"], summary["failed"], summary["turns"]) == (1, 5, 6)
    assert summary["failures"] == {"HTTP error": 2, "not sent: an earlier turn failed": 3}
    assert len(server.served) == 3
    assert summary["p99_ttft_ms"] is None


async def test_failures_are_kept_apart() -> None:
    scripts = {
        "http": Script(status=500, body={"error": "boom"}),
        "cut": Script([role(), text("a")]),
        "stall": Script([role(), text("a"), Stall()]),
        "good": answer(["x"]),
    }
    trace = trace_of(*((0.0, [turn(name, 1)]) for name in scripts))
    result, _ = await run(trace, lambda body: scripts[talk(body)[-1]], timeout=0.5)
    by_session = {record.session: record.outcome for record in result.records}
    assert [by_session[f"s{i}"] for i in range(4)] == [
        Outcome.HTTP_ERROR,
        Outcome.CUT,
        Outcome.TIMEOUT,
        Outcome.COMPLETED,
    ]


async def test_a_failed_request_frees_its_slot() -> None:
    trace = trace_of(*((0.0, [turn("a", 1)]) for _ in range(4)))
    result, _ = await run(trace, lambda _: Script(status=500, body={}), concurrency=1)
    assert result.summary["failures"] == {"HTTP error": 4}


async def test_stop_reports_every_turn() -> None:
    stop = asyncio.Event()

    def script(body: dict[str, Any]) -> Script:
        if talk(body)[-1] == "slow":
            asyncio.get_running_loop().call_later(0.2, stop.set)
            return Script([role(), text("a"), Stall()])
        return words(body)

    trace = trace_of((0, [turn("quick")]), (0, [turn("slow"), turn("b")]), (900, [turn("late"), turn("c")]))
    result, _ = await run(trace, script, stop)
    summary = result.summary
    assert result.interrupted
    assert (summary["completed"], summary["failed"]) == (1, 0)
    assert (summary["interrupted"], summary["not_reached"], summary["turns"]) == (1, 3, 5)


async def test_stop_before_anything_was_sent() -> None:
    stop = asyncio.Event()
    stop.set()
    result, _ = await run(trace_of((0, [turn("a"), turn("b")])), stop=stop)
    assert (result.summary["not_reached"], result.summary["duration"]) == (2, 0.0)


async def test_stop_while_waiting_for_a_slot() -> None:
    stop = asyncio.Event()

    def script(body: dict[str, Any]) -> Script:
        asyncio.get_running_loop().call_later(0.2, stop.set)
        return Script([role(), Stall()])

    result, _ = await run(trace_of((0, [turn("a")]), (0, [turn("b")])), script, stop, concurrency=1)
    assert (result.summary["interrupted"], result.summary["not_reached"]) == (1, 1)


async def test_no_server() -> None:
    trace = trace_of((0, [turn("a")]))
    with pytest.raises(ServerError, match=r"no server at http://127\.0\.0\.1:9"):
        await replay(trace, Options("t"), "http://127.0.0.1:9", None, Console(file=io.StringIO()), asyncio.Event())


async def test_a_server_that_names_no_model_needs_model() -> None:
    async def nothing(_: Any) -> Any:
        from aiohttp import web

        return web.json_response({"data": []})

    class Nameless(GoldenServer):
        _models = nothing

    trace = trace_of((0, [turn("a", 1)]))
    async with Nameless(words) as server:
        console = Console(file=io.StringIO())
        with pytest.raises(ServerError, match="--model"):
            await replay(trace, Options("t"), server.url, None, console, asyncio.Event())
        result = await replay(trace, Options("t", model="mine"), server.url, None, console, asyncio.Event())
    assert (result.summary["completed"], server.served[0].body["model"]) == (1, "mine")


async def test_a_server_that_does_not_answer_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(GoldenServer):
        async def _models(self, _: web.Request) -> web.StreamResponse:
            await asyncio.sleep(3600)
            raise AssertionError

    monkeypatch.setattr(module, "CALL_TIMEOUT", aiohttp.ClientTimeout(total=0.1))
    with pytest.raises(ServerError, match=r"no server at http://.*: no answer in time"):
        await run(trace_of((0, [turn("a")])), server_type=Frozen)


async def test_mode_without_a_control_route_is_an_error() -> None:
    from loadgen.engine_watch import EngineError

    with pytest.raises(EngineError, match="no such route; --mode and --alloc need a paged-engine"):
        await run(trace_of((0, [turn("a")])), mode="static")
