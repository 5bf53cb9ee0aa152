"""Whole runs against a golden server: the schedule, the branches, the failures, the stop."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from golden import GoldenServer, Script, Stall, answer, role, text
from rich.console import Console
from runs import CLOCK_STEP, Gate, Runner, again, talk, trace_of, turn, words

from loadgen import player as player_module
from loadgen import server as server_module
from loadgen.engine_watch import EngineError
from loadgen.outcome import Outcome, TokenSource
from loadgen.perform import perform
from loadgen.played import played
from loadgen.results.run_file import BY_HAND
from loadgen.server import ServerError
from loadgen.target import Steering, Target
from loadgen.traces.model import Session, TraceError


async def test_counts_are_exact(run: Runner) -> None:
    ran = await run(trace_of((0, [turn("a", 4), turn("b", 1)]), (0.1, [turn("c", 7)])))
    summary = ran.summary
    assert (summary["completed"], summary["failed"], summary["turns"]) == (3, 0, 3)
    assert (summary["total_output_tokens"], summary["total_input_tokens"]) == (12, 21)
    assert (summary["total_chunks"], summary["count_itl"], summary["count_tpot"]) == (12, 9, 2)
    assert (summary["sessions"], summary["sessions_completed"]) == (2, 2)
    assert summary["other_length_than_asked"] == 0
    assert [(record.session, record.turn, record.output_tokens) for record in ran.records] == [
        ("s0", 0, 4),
        ("s0", 1, 1),
        ("s1", 0, 7),
    ]
    assert {record.token_source for record in ran.records} == {TokenSource.USAGE}
    assert ran.run.end is not None
    assert (ran.run.end.engine, ran.run.end.stopped_by) == (None, None)
    assert (ran.run.header.sessions, ran.run.header.turns) == (2, 3)
    assert ran.run.header.server["model"] == "golden"
    assert {(served.body["model"], served.body["temperature"]) for served in ran.server.served} == {("golden", 0.7)}


async def test_real_replies_are_the_history_and_a_branch_leaves_the_old_one_out(run: Runner) -> None:
    ran = await run(trace_of((0, [turn("a", 1), turn("b", 1), again(1), turn("c", 1, seed=5)])))
    bodies = [served.body for served in ran.server.served]
    assert talk(bodies[0]) == ["Be kind.", "a"]
    assert talk(bodies[1]) == ["Be kind.", "a", "a/1.", "b"]
    assert talk(bodies[2]) == talk(bodies[1])
    assert (bodies[1]["seed"], bodies[2]["seed"]) == (1, 2)
    assert talk(bodies[3]) == ["Be kind.", "a", "a/1.", "b", "b/2.b/2.b/2.", "c"]
    assert [message["role"] for message in bodies[1]["messages"]] == ["system", "user", "assistant", "user"]


async def test_the_schedule_is_absolute_and_open_loop(run: Runner) -> None:
    """No answer comes before all six requests have: nothing waits for an answer, and no gap adds up."""

    class SixGate(Gate):
        wanted = 6

    starts = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    ran = await run(trace_of(*((start, [turn("a", 1)]) for start in starts)), server_type=SixGate, speed=2.0)
    assert ran.server.peak_in_flight == 6
    assert [record.scheduled for record in ran.records] == pytest.approx([start / 2 for start in starts], abs=1e-6)
    for record in ran.records:
        assert record.scheduled is not None
        assert record.sent is not None
        assert record.sent >= record.scheduled - CLOCK_STEP


async def test_think_time_runs_from_the_end_of_the_answer_and_is_divided_by_speed(run: Runner) -> None:
    ran = await run(trace_of((0, [turn("a", 1), turn("b", 1, think=2.0)])), speed=5.0)
    first, second = ran.records
    assert first.ended is not None
    assert second.sent is not None
    assert second.scheduled is not None
    assert second.scheduled == pytest.approx(first.ended + 0.4, abs=2e-6)
    assert second.sent >= second.scheduled - CLOCK_STEP


async def test_a_turn_with_a_moment_of_its_own_waits_for_that(run: Runner) -> None:
    session = Session(session="s", arrival=10.0, turns=(turn("a", 1), turn("b", 1, at=11.0), turn("c", 1, at=11.0)))
    ran = await run([session], speed=5.0)
    assert [record.scheduled for record in ran.records] == pytest.approx([0.0, 0.2, 0.2], abs=1e-5)
    sent = [record.sent for record in ran.records]
    assert sent == sorted(sent)  # type: ignore[type-var]
    assert ran.summary["completed"] == 3


async def test_waiting_for_a_slot_is_in_the_latency_from_scheduled(run: Runner) -> None:
    def slow(body: dict[str, Any]) -> Script:
        return answer(["x"], first=0.3)

    ran = await run(trace_of(*((0.0, [turn("a", 1)]) for _ in range(3))), slow, concurrency=1)
    assert ran.server.peak_in_flight == 1
    last = max(ran.records, key=lambda record: record.sent or 0)
    assert last.sent is not None
    assert last.scheduled == 0.0  # as scheduled, not as sent
    first_chunks = sorted(record.chunks[0] for record in ran.records)
    assert last.sent >= first_chunks[1]  # it waited for two answers
    summary = ran.summary
    assert summary["max_send_lag_ms"] == pytest.approx(last.sent * 1000)
    assert summary["max_ttft_scheduled_ms"] == pytest.approx(first_chunks[2] * 1000)
    assert summary["max_ttft_scheduled_ms"] >= 3 * 300
    assert summary["max_e2el_scheduled_ms"] == summary["max_ttft_scheduled_ms"]


async def test_other_arrivals_replace_the_recorded_ones(run: Runner) -> None:
    ran = await run(trace_of(*((100.0 * i, [turn("a", 1)]) for i in range(10))), arrivals="constant:50", seed=3)
    assert [record.scheduled for record in ran.records] == pytest.approx([i / 50 for i in range(10)], abs=1e-6)


async def test_think_times_go_by_the_speed_also_where_arrivals_do_not(run: Runner) -> None:
    ran = await run(trace_of((0, [turn("a", 1), turn("b", 1, think=2.0)])), arrivals="constant:5", speed=10.0)
    assert ran.records[1].scheduled == pytest.approx((ran.records[0].ended or 0) + 0.2, abs=2e-6)


async def test_users_take_the_next_session_when_their_last_has_ended(run: Runner) -> None:
    sessions = trace_of(*((900.0 * i, [turn("a", 1), turn("b", 1)]) for i in range(6)))
    ran = await run(sessions, lambda _: answer(["x"], first=0.05), arrivals="users:2,think=100ms")
    assert ran.server.peak_in_flight == 2
    assert ran.summary["completed"] == 12
    ends = sorted(record.ended or 0 for record in ran.records if record.turn == 1)
    starts = sorted(record.scheduled or 0 for record in ran.records if record.turn == 0)
    assert starts[:2] == [0.0, 0.0]
    assert starts[2:] == pytest.approx([end + 0.1 for end in ends[:4]], abs=0.02)


async def test_only_the_first_sessions(run: Runner) -> None:
    ran = await run(trace_of(*((0.0, [turn(f"m{i}", 1)]) for i in range(5))), sessions=2)
    assert ran.summary["sessions"] == 2
    assert sorted(talk(served.body)[-1] for served in ran.server.served) == ["m0", "m1"]


async def test_a_failed_turn_ends_its_session_and_every_turn_is_counted(run: Runner) -> None:
    def script(body: dict[str, Any]) -> Script:
        if talk(body)[-1] == "bad":
            return Script(status=400, body={"error": {"message": "too long"}})
        return words(body)

    ran = await run(
        trace_of((0, [turn("bad"), turn("b"), turn("c")]), (0, [turn("d"), turn("bad"), turn("e")])), script
    )
    summary = ran.summary
    assert (summary["completed"], summary["failed"], summary["turns"]) == (1, 5, 6)
    assert summary["failures"] == {"HTTP 400": 2, "not sent: an earlier turn failed": 3}
    assert len(ran.server.served) == 3
    assert summary["p99_ttft_ms"] is None


async def test_failures_are_kept_apart(run: Runner) -> None:
    scripts = {
        "http": Script(status=500, body={"error": "boom"}),
        "cut": Script([role(), text("a")]),
        "stall": Script([role(), text("a"), Stall()]),
        "good": answer(["x"]),
    }
    trace = trace_of(*((0.0, [turn(name, 1)]) for name in scripts))
    ran = await run(trace, lambda body: scripts[talk(body)[-1]], timeout=0.5)
    assert [record.outcome for record in ran.records] == [
        Outcome.HTTP_ERROR,
        Outcome.CUT,
        Outcome.TIMEOUT,
        Outcome.COMPLETED,
    ]
    assert [record.status for record in ran.records] == [500, 200, 200, 200]


async def test_a_failed_request_frees_its_slot(run: Runner) -> None:
    trace = trace_of(*((0.0, [turn("a", 1)]) for _ in range(4)))
    ran = await run(trace, lambda _: Script(status=500, body={}), concurrency=1)
    assert ran.summary["failures"] == {"HTTP 500": 4}


async def test_a_server_without_usage_is_counted_by_chunks_and_said_so(run: Runner) -> None:
    ran = await run(trace_of((0, [turn("a", 2)])), lambda _: Script([role(), text("a"), text("b"), text("c", 0)]))
    assert ran.records[0].outcome is Outcome.CUT
    ran = await run(trace_of((0, [turn("a", 3)])), lambda _: Script(answer(["x", "y", "z"]).steps[:-2]))
    assert (ran.records[0].output_tokens, ran.records[0].token_source) == (3, TokenSource.CHUNKS)
    assert ran.summary["token_source"] == "chunks"


async def test_stop_reports_every_turn(run: Runner) -> None:
    stop = asyncio.Event()

    def script(body: dict[str, Any]) -> Script:
        if talk(body)[-1] == "slow":
            asyncio.get_running_loop().call_later(0.2, stop.set)
            return Script([role(), text("a"), Stall()])
        return words(body)

    trace = trace_of((0, [turn("quick")]), (0, [turn("slow"), turn("b")]), (900, [turn("late"), turn("c")]))
    ran = await run(trace, script, stop)
    assert ran.run.end is not None
    assert ran.run.end.stopped_by == BY_HAND
    summary = ran.summary
    assert (summary["completed"], summary["failed"]) == (1, 0)
    assert (summary["interrupted"], summary["not_reached"], summary["turns"]) == (1, 3, 5)


async def test_stop_before_there_is_a_run(run: Runner, tmp_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(asyncio.CancelledError):
        await run(trace_of((0, [turn("a")])), stop=stop)
    assert not list(tmp_path.glob("run-*"))


async def test_stop_before_anything_was_sent(run: Runner) -> None:
    stop = asyncio.Event()

    class Watched(GoldenServer):
        """What is asked last before the run stops it."""

        def __init__(self, script_of: Callable[[dict[str, Any]], Script]) -> None:
            super().__init__(script_of)
            self.app.router.add_get("/metrics", self._stop)

        async def _stop(self, _: web.Request) -> web.Response:
            stop.set()
            return web.Response(status=404)

    trace = trace_of((900, [turn("a"), turn("b")]), (1800, [turn("c")]))
    ran = await run(trace, stop=stop, server_type=Watched)
    assert (ran.summary["not_reached"] + ran.summary["interrupted"] + ran.summary["completed"]) == 3
    assert ran.summary["turns"] == 3


async def test_stop_while_waiting_for_a_slot(run: Runner) -> None:
    stop = asyncio.Event()

    def script(body: dict[str, Any]) -> Script:
        asyncio.get_running_loop().call_later(0.2, stop.set)
        return Script([role(), Stall()])

    ran = await run(trace_of((0, [turn("a")]), (0, [turn("b")])), script, stop, concurrency=1)
    assert (ran.summary["interrupted"], ran.summary["not_reached"]) == (1, 1)


async def test_sessions_that_are_all_due_wait_in_the_trace(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 that are due at once no more are taken than may wait, and the run can be stopped meanwhile."""
    monkeypatch.setattr(player_module, "MOST_QUEUED", 20)
    stop = asyncio.Event()

    def script(body: dict[str, Any]) -> Script:
        stop.set()
        return Script([role(), Stall()])

    ran = await run(trace_of(*((0.0, [turn("a")]) for _ in range(2000))), script, stop, concurrency=1)
    assert 1 <= len(ran.records) < 30
    assert (ran.summary["interrupted"], ran.summary["not_reached"]) == (1, 1999)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_count_of_requests_is_kept_to(run: Runner, workers: int) -> None:
    trace = trace_of(*((0.01 * i, [turn("a", 1), turn("b", 1)]) for i in range(20)))
    ran = await run(trace, until=("requests=7",), workers=workers)
    assert len(ran.server.served) == 7
    assert ran.summary["completed"] == 7
    assert ran.summary["not_reached"] == 33
    assert ran.run.end is not None
    assert "requests=7" in (ran.run.end.stopped_by or "")


@pytest.mark.parametrize("until", ["requests=1", "time=200ms"])
async def test_a_stop_rule_ends_nothing_early_once_all_is_sent(run: Runner, until: str) -> None:
    ran = await run(trace_of((0, [turn("a", 1)])), lambda _: answer(["x"], first=0.6), until=(until,))
    assert ran.run.end is not None
    assert (ran.summary["completed"], ran.run.end.stopped_by) == (1, None)


async def test_a_stop_rule_lets_what_runs_come_to_its_end(run: Runner) -> None:
    trace = trace_of((0, [turn("a", 1), turn("b", 1)]), (900, [turn("late", 1)]))
    ran = await run(trace, lambda _: answer(["x"], first=0.6), until=("time=200ms",))
    assert [record.outcome for record in ran.records if record.index == 0] == [Outcome.COMPLETED, Outcome.NOT_REACHED]
    assert (ran.summary["completed"], ran.summary["not_reached"]) == (1, 2)
    assert ran.run.end is not None
    assert ran.run.end.at < 100


async def test_errors_end_it(run: Runner) -> None:
    trace = trace_of(*((0.02 * i, [turn("a", 1)]) for i in range(200)))
    ran = await run(trace, lambda _: Script(status=500, body={}), until=("errors=5",))
    assert 5 <= ran.summary["failed"] < 150
    assert ran.run.end is not None
    assert "errors" in (ran.run.end.stopped_by or "")


async def test_nothing_is_late_for_what_is_read_first(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a long run that is gone on with: schedule and server's figures begin when the first session is there."""
    real, was_read, looks = played, threading.Event(), []

    class Looked(GoldenServer):
        def __init__(self, script_of: Callable[[dict[str, Any]], Script]) -> None:
            super().__init__(script_of)
            self.app.router.add_get("/metrics", self._look)

        async def _look(self, _: web.Request) -> web.Response:
            looks.append(was_read.is_set())
            return web.Response(status=404)

    def slowly(*arguments: Any) -> Any:
        time.sleep(2.0)
        was_read.set()
        yield from real(*arguments)

    monkeypatch.setattr(player_module, "played", slowly)
    ran = await run(trace_of((0.0, [turn("a", 1)])), server_type=Looked)
    assert ran.summary["max_send_lag_ms"] < 1000
    assert set(looks) == {True}


async def test_no_server(run: Runner) -> None:
    with pytest.raises(ServerError, match=r"no server at http://127\.0\.0\.1:9"):
        await run.perform(run.settings(trace_of((0, [turn("a")]))), "http://127.0.0.1:9")


async def test_a_server_that_names_no_model_needs_model(run: Runner) -> None:
    class Nameless(GoldenServer):
        async def _models(self, _: web.Request) -> web.Response:
            return web.json_response({"data": []})

    sessions = trace_of((0, [turn("a", 1)]))
    with pytest.raises(ServerError, match="--model"):
        await run(sessions, server_type=Nameless)
    ran = await run(sessions, server_type=Nameless, model="mine")
    assert (ran.summary["completed"], ran.server.served[0].body["model"]) == (1, "mine")


async def test_a_server_that_does_not_answer_is_told_in_words(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen(GoldenServer):
        async def _models(self, _: web.Request) -> web.Response:
            await asyncio.sleep(3600)
            raise AssertionError

    monkeypatch.setattr(server_module, "CALL_TIMEOUT", aiohttp.ClientTimeout(total=0.1))
    with pytest.raises(ServerError, match=r"no server at http://.*: no answer in time"):
        await run(trace_of((0, [turn("a")])), server_type=Frozen)


async def test_control_without_a_route_for_it_is_an_error(run: Runner) -> None:
    with pytest.raises(EngineError, match="no such route; only a paged-engine can be set"):
        await run(trace_of((0, [turn("a")])), control={"batching": "static"})


async def test_a_trace_without_times_needs_arrivals(run: Runner) -> None:
    sessions = [Session(session=f"s{i}", arrival=None, turns=(turn("a", 1),)) for i in range(3)]
    with pytest.raises(TraceError, match="--rate R, --users N or --arrivals SPEC"):
        await run(sessions)
    ran = await run(sessions, arrivals="inf")
    assert [record.scheduled for record in ran.records] == [0.0, 0.0, 0.0]


async def test_a_bad_line_far_down_is_found_before_anything_is_sent(run: Runner) -> None:
    settings = run.settings(trace_of(*((0.0, [turn("a")]) for _ in range(50))))
    with Path(settings.file).open("a") as file:
        file.write("{}\n")
    async with GoldenServer(words) as server:
        with pytest.raises(TraceError, match="line 52"):
            await run.perform(settings, server.url)
    assert server.served == []


async def test_a_session_that_a_stop_leaves_open_is_not_called_done(run: Runner) -> None:
    """As the last line of progress tells it."""
    out = io.StringIO()
    sessions = trace_of((0, [turn("a", 1)]), (0, [turn("b", 1), turn("c", 1, think=900)]), (900, [turn("d", 1)]))
    async with GoldenServer(words) as server:
        settings, path = run.settings(sessions, until=("time=300ms",)), run.folder / "run.jsonl"
        await perform(settings, Target(server.url), path, Console(file=out), Steering())
    assert "sessions 1/3, turns 2/4" in out.getvalue()
