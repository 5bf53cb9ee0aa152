"""Whole runs against a golden server: the schedule, the branches, the failures, the stop, the resumption."""

from __future__ import annotations

import asyncio
import io
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import psutil
import pytest
from aiohttp import web
from golden import GoldenServer, Script, Stall, answer, role, text
from rich.console import Console

from loadgen import player as player_module
from loadgen import server as server_module
from loadgen.engine_watch import EngineError
from loadgen.outcome import Outcome, RequestRecord, TokenSource
from loadgen.perform import perform
from loadgen.played import played
from loadgen.results.document import document
from loadgen.results.run_file import BY_HAND, ResultError, RunFile
from loadgen.resumption import Past
from loadgen.server import ServerError
from loadgen.settings import Settings
from loadgen.target import Steering, Target
from loadgen.traces.chat import trace_lines
from loadgen.traces.model import Header, Session, TraceError, Turn

CLOCK_STEP = 0.002  # seconds an event loop may wake early
HEADER = Header("paged-top-chat", 2, {"main": "Be kind."}, 0.7)
_names = itertools.count()


def turn(user: str, tokens: int = 3, **more: Any) -> Turn:
    return Turn(user=user, user_tokens=1, output_tokens=tokens, **{"seed": 1, **more})


def again(index: int, **more: Any) -> Turn:
    return Turn(regenerates=index, output_tokens=3, **{"seed": 2, **more})


def trace_of(*sessions: tuple[float, list[Turn]]) -> list[Session]:
    return [
        Session(session=f"s{i}", arrival=arrival, system="main", turns=tuple(turns))
        for i, (arrival, turns) in enumerate(sessions)
    ]


def words(body: dict[str, Any]) -> Script:
    return answer([f"{body['messages'][-1]['content']}/{body['seed']}."] * body["max_tokens"])


class Ran(NamedTuple):
    run: RunFile
    server: GoldenServer

    @property
    def records(self) -> list[RequestRecord]:
        return sorted(self.run.records(), key=lambda record: record.key)

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = document([self.run])["summary"]
        return summary


class Runner:
    """Runs traces against golden servers, each into a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = ""  # while the last run went on

    def settings(self, sessions: Sequence[Session], /, **options: Any) -> Settings:
        trace = self.folder / f"trace-{next(_names)}.jsonl"
        trace.write_bytes(b"".join(trace_lines(HEADER, sessions)))
        return Settings(**{"file": str(trace), "timeout": 30.0, "probe": False, **options})

    async def perform(
        self, settings: Settings, url: str, stop: asyncio.Event | None = None, into: Path | None = None, **more: Any
    ) -> RunFile:
        said = io.StringIO()
        console = Console(file=said)
        path = into or self.folder / f"run-{next(_names)}.jsonl"
        ran = await perform(settings, Target(url), path, console, Steering(stop), **more)
        self.said = said.getvalue()
        return ran

    async def __call__(
        self,
        trace: Sequence[Session],
        /,
        script_of: Callable[[dict[str, Any]], Script] = words,
        stop: asyncio.Event | None = None,
        server_type: type[GoldenServer] = GoldenServer,
        **options: Any,
    ) -> Ran:
        async with server_type(script_of) as server:
            return Ran(await self.perform(self.settings(trace, **options), server.url, stop), server)


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def talk(body: dict[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"]]


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


class Gate(GoldenServer):
    """Answers nobody before a number of requests has come."""

    wanted = 0

    async def _answer(self, request: Any, script: Script, served: Any) -> Any:
        while len(self.served) < self.wanted:
            await asyncio.sleep(0.001)
        return await super()._answer(request, script, served)


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
    assert summary["failures"] == {"HTTP error": 2, "not sent: an earlier turn failed": 3}
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
    assert ran.summary["failures"] == {"HTTP error": 4}


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


async def test_several_processes_play_what_one_does(run: Runner) -> None:
    trace = trace_of(*((0.02 * i, [turn(f"m{i}", 2), turn("b", 1)]) for i in range(12)))
    ran = await run(trace, workers=3, concurrency=6)
    assert [record.key for record in ran.records] == [(i, t) for i in range(12) for t in range(2)]
    assert {record.outcome for record in ran.records} == {Outcome.COMPLETED}
    starts = [record.scheduled for record in ran.records if record.turn == 0]
    assert starts == pytest.approx([0.02 * i for i in range(12)], abs=1e-6)
    assert all((record.sent or 0) >= (record.scheduled or 0) - CLOCK_STEP for record in ran.records)
    assert ran.run.end is not None
    assert ran.run.end.client["client_processes"] == 4  # this one hears of all


async def test_several_processes_stop_with_what_there_is(run: Runner) -> None:
    stop = asyncio.Event()

    def script(body: dict[str, Any]) -> Script:
        if talk(body)[-1] == "slow":
            asyncio.get_running_loop().call_later(0.2, stop.set)
            return Script([role(), text("a"), Stall()])
        return words(body)

    trace = trace_of((0, [turn("quick")]), (0, [turn("slow"), turn("b")]), (900, [turn("late"), turn("c")]))
    ran = await run(trace, script, stop, workers=2)
    assert (ran.summary["completed"], ran.summary["interrupted"], ran.summary["not_reached"]) == (1, 1, 3)


async def test_several_processes_share_the_slots(run: Runner) -> None:
    """Also where there are fewer slots than processes, and where the long sessions are all one process's."""
    trace = trace_of(*((0.0, [turn("a", 1)] * (1 if i % 3 else 4)) for i in range(12)))

    class Two(Gate):
        wanted = 2

    ran = await run(trace, server_type=Two, workers=3, concurrency=2)
    assert (ran.summary["completed"], ran.server.peak_in_flight) == (24, 2)


async def test_several_processes_share_the_requests_that_may_be_sent(run: Runner) -> None:
    """One process has but 3 turns to play, and the others play the rest."""
    trace = trace_of(*((0.0, [turn("a", 1)] * (3 if i % 3 else 1)) for i in range(9)))
    ran = await run(trace, until=("requests=20",), workers=3)
    assert (len(ran.server.served), ran.summary["completed"], ran.summary["not_reached"]) == (20, 20, 1)


@pytest.mark.parametrize("users", [2, 5])
async def test_users_of_several_processes_take_the_next_session_of_all(run: Runner, users: int) -> None:
    trace = trace_of(*((0.0, [turn(f"m{i}", 1)] * (1 if i % 3 else 3)) for i in range(15)))

    class AllOfThem(Gate):
        wanted = users

    ran = await run(trace, server_type=AllOfThem, workers=3, arrivals=f"users:{users}")
    assert (ran.summary["completed"], ran.server.peak_in_flight) == (25, users)
    firsts = [talk(served.body)[-1] for served in ran.server.served if len(served.body["messages"]) == 2]
    assert sorted(firsts[:users]) == [f"m{i}" for i in range(users)]


async def test_a_speed_that_is_set_before_several_processes_begin(run: Runner) -> None:
    steering = Steering()
    steering.set_speed(50.0)
    trace = trace_of((0.0, [turn("a", 1)]), (5.0, [turn("b", 1)]))
    async with GoldenServer(words) as server:
        settings, path = run.settings(trace, workers=2), run.folder / "run.jsonl"
        ran = await perform(settings, Target(server.url), path, Console(file=io.StringIO()), steering)
    assert max(record.scheduled or 0.0 for record in ran.records()) == pytest.approx(0.1, abs=0.01)


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


async def test_what_the_others_have_outlives_a_client_process(run: Runner) -> None:
    stalled: list[int] = []

    def script(body: dict[str, Any]) -> Script:
        if talk(body)[-1] != "last":
            return words(body)
        stalled.append(1)
        if len(stalled) == 2:
            alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
            next(child for child in alive if "loadgen.worker" in child.cmdline()).kill()
        return Script([role(), text("a"), Stall()])

    trace = trace_of(*((0.0, [turn("a", 1)]) for _ in range(9)), (1.5, [turn("last")]), (1.5, [turn("last")]))
    path = run.folder / "run.jsonl"
    async with GoldenServer(script) as server:
        with pytest.raises(Exception, match=r"client process \d ended with exit code -9"):
            await run.perform(run.settings(trace, workers=2), server.url, into=path)
    outcomes = [record.outcome for record in RunFile.read(path).records()]
    assert outcomes.count(Outcome.COMPLETED) == 9
    assert outcomes.count(Outcome.INTERRUPTED) == 1  # of the process that was left


async def test_an_interrupted_run_is_gone_on_with(run: Runner, tmp_path: Path) -> None:
    stop, slow = asyncio.Event(), True

    def script(body: dict[str, Any]) -> Script:
        if slow and talk(body)[-1] == "slow":
            asyncio.get_running_loop().call_later(0.1, stop.set)
            return Script([role(), text("a"), Stall()])
        return words(body)

    sessions = trace_of((0, [turn("quick")]), (0.1, [turn("a"), turn("slow")]), (2, [turn("late"), turn("c")]))
    settings, path = run.settings(sessions), tmp_path / "run.jsonl"
    async with GoldenServer(script) as server:
        first = await run.perform(settings, server.url, stop, path)
        assert document([first])["summary"]["completed"] == 2
        slow, before = False, len(server.served)
        second = await run.perform(settings, server.url, None, path, past=Past.read(path))
        assert [talk(served.body)[-1] for served in server.served[before:]][:1] == ["a"]
    assert len(server.served) - before == 4  # the whole session that was cut, and the one not reached
    assert "sessions 3/3, turns 5/5 done" in run.said
    records = list(second.records())
    assert sorted(record.key for record in records) == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert {record.outcome for record in records} == {Outcome.COMPLETED}
    assert second.resumed[0].at <= min(record.scheduled or 0 for record in records if record.index == 1)
    assert document([second])["summary"]["completed"] == 5


class Cut:
    """A run in `path` that is cut short when so many requests have come, which are never answered from there on."""

    def __init__(self, run: Runner, sessions: Sequence[Session], **options: Any) -> None:
        self.run, self.settings = run, run.settings(sessions, **options)
        self.path = run.folder / f"cut-{next(_names)}.jsonl"
        self.asked: list[str] = []

    async def go(self, until: int | None = None, resumes: bool = True, **changes: Any) -> RunFile:
        """Play it, or go on with it, until `until` requests have come in all."""
        stop = asyncio.Event()

        def script(body: dict[str, Any]) -> Script:
            self.asked.append(talk(body)[-1])
            if until is None or len(self.asked) < until:
                return words(body)
            stop.set()
            return Script([role(), Stall()])

        async with GoldenServer(script) as server:
            settings = msgspec.structs.replace(self.settings, **changes)
            past = Past.read(self.path) if resumes else None
            return await self.run.perform(settings, server.url, stop, self.path, past=past)


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_run_is_gone_on_with_as_often_as_it_takes(run: Runner, workers: int) -> None:
    sessions = trace_of(*((0.01 * i, [turn(f"m{i}", 1), turn("b", 1)]) for i in range(20)))
    cut = Cut(run, sessions, workers=workers)
    await cut.go(12, resumes=False)
    await cut.go(30)
    ran = await cut.go()
    assert sorted(record.key for record in ran.records()) == [(i, t) for i in range(20) for t in range(2)]
    assert document([ran])["summary"]["completed"] == 40
    assert len(ran.resumed) == 2
    assert all(before.at <= after.at for before, after in itertools.pairwise(ran.ends))
    parts = [0.0, *(resumed.at for resumed in ran.resumed)]
    assert all(before < after for before, after in itertools.pairwise(parts))


async def test_a_killed_run_is_gone_on_with(run: Runner) -> None:
    """In the middle of a session, and of a line."""
    sessions = trace_of(*((0.01 * i, [turn(f"m{i}", 1), turn("b", 1)]) for i in range(6)))
    cut = Cut(run, sessions)
    await cut.go(resumes=False)
    lines = cut.path.read_bytes().splitlines(keepends=True)
    cut.path.write_bytes(b"".join(lines[:6]) + lines[6][:30])
    whole = Counter(msgspec.json.decode(line)["index"] for line in lines[1:6])
    before = len(cut.asked)
    ran = await cut.go()
    assert len(cut.asked) - before == 2 * sum(whole[i] < 2 for i in range(6))
    assert sorted(record.key for record in ran.records()) == [(i, t) for i in range(6) for t in range(2)]
    assert ran.end is not None


async def test_what_is_left_comes_with_the_gaps_that_it_has_in_the_trace(run: Runner) -> None:
    """The first session is cut short while it thinks, after 15 others: it is not waited for as long again."""
    others = [(10.0 + 0.01 * i, [turn(f"m{i}", 1)]) for i in range(20)]
    cut = Cut(run, trace_of((0.0, [turn("a", 1), turn("b", 1, think=900.0)]), *others), speed=10.0)
    first = await cut.go(16, resumes=False)
    done = {record.index for record in first.records() if record.outcome is Outcome.COMPLETED} - {0}
    left = [0, *(i for i in range(1, 21) if i not in done)]
    ran = await cut.go(len(cut.asked) + len(left))
    at = ran.resumed[0].at
    due = {record.index: record.scheduled for record in ran.records() if (record.scheduled or 0) >= at}
    assert [due[i] for i in left] == pytest.approx([at + 0.001 * place for place in range(len(left))], abs=1e-5)


async def test_stop_rules_count_the_whole_run(run: Runner) -> None:
    sessions = trace_of(*((0.02 * i, [turn(f"m{i}", 1)]) for i in range(40)))
    cut = Cut(run, sessions, until=("requests=20", "errors=5"))
    await cut.go(9, resumes=False)
    ran = await cut.go()
    assert document([ran])["summary"]["completed"] == 20
    assert ran.end is not None
    assert ran.end.stopped_by == "requests=20"
    with pytest.raises(ResultError, match=r"is over, as --until asked: requests=20; `loadgen report"):
        await cut.go()


async def test_a_time_rule_is_of_the_whole_run(run: Runner) -> None:
    cut = Cut(run, trace_of((0.0, [turn("a", 1)]), (0.0, [turn("b", 1)]), (900.0, [turn("c", 1)])), until=("time=2s",))
    first = await cut.go(2, resumes=False)
    assert first.end is not None
    ran = await cut.go()
    assert ran.end is not None
    assert ran.end.stopped_by == "time=2s"
    assert ran.end.at - first.end.at < 2.0 + 1.0


async def test_a_run_that_came_to_its_end_is_not_gone_on_with(run: Runner) -> None:
    cut = Cut(run, trace_of((0.0, [turn("a", 1)])))
    await cut.go(resumes=False)
    size = cut.path.stat().st_size
    with pytest.raises(ResultError, match="is complete, nothing is left to play"):
        await cut.go()
    assert cut.path.stat().st_size == size


async def test_a_run_of_another_trace_or_model_is_not_gone_on_with(run: Runner) -> None:
    sessions = trace_of(*((0.1 * i, [turn(f"m{i}", 1)]) for i in range(6)))
    cut = Cut(run, sessions)
    await cut.go(3, resumes=False)
    size = cut.path.stat().st_size
    with pytest.raises(ResultError, match=r"the run asks golden, and the server at .* has other"):
        await cut.go(model="other")
    changed = [*sessions[:5], msgspec.structs.replace(sessions[5], turns=(turn("m5", 2),))]
    Path(cut.settings.file).write_bytes(b"".join(trace_lines(HEADER, changed)))
    with pytest.raises(ResultError, match=r"its trace .*, or what of it the server takes, is not what it was"):
        await cut.go()
    assert cut.path.stat().st_size == size


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
