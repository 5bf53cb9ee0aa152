"""Several client processes play what one does, and are loadgen's own wherever it is started."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from golden import GoldenServer, Script, Stall, answer, role, text
from rich.console import Console
from runs import CLOCK_STEP, Gate, Runner, talk, trace_of, turn, words

from loadgen.outcome import Outcome
from loadgen.perform import RunBroken, perform
from loadgen.results.run_file import RunFile
from loadgen.target import Steering, Target
from loadgen.traces.model import TraceError
from loadgen.workers import WorkerError

ROOT = Path(__file__).resolve().parents[2]


async def test_files_that_lie_about_are_not_taken_for_modules(tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise RuntimeError('not the one that was meant')")
    header = {"format": "paged-top-chat", "version": 1, "systems": {"main": "Be kind."}}
    turn = {"user": "Hi", "user_tokens": 1, "output_tokens": 2, "seed": 1}
    sessions = [{"session": f"s{i}", "arrival": 0, "system": "main", "turns": [turn]} for i in range(2)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [header, *sessions]))
    async with GoldenServer(lambda _: answer(["a", "b"])) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "loadgen.cli", "replay", "t.jsonl", "--no-probe", "--no-plots"),
            *("--url", server.url, "--workers", "2"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
        )
        _, err = await process.communicate()
    assert process.returncode == 0, err


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


class Fading(GoldenServer):
    """The trace is gone, or cut, once it has been read and the server is asked for its models."""

    trace: Path
    keeps = 0  # bytes

    async def _models(self, request: web.Request) -> web.Response:
        self.trace.write_bytes(self.trace.read_bytes()[: self.keeps])
        return await super()._models(request)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_trace_that_changes_before_it_is_played(
    run: Runner, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = run.settings(trace_of((0.0, [turn("a", 1)])), workers=workers)
    async with Fading(words) as server:
        server.trace = Path(settings.file)
        with pytest.raises((TraceError, WorkerError), match=r"trace-.*: is empty"):
            await run.perform(settings, server.url)
    assert "Traceback" not in capfd.readouterr().err


async def test_a_trace_that_changes_while_it_is_played_keeps_what_was_measured(run: Runner) -> None:
    settings = run.settings(trace_of((0.0, [turn("a", 1)]), (2.0, [turn("b", 1)]), (3.0, [turn("c", 1)])))
    async with Fading(words) as server:
        server.trace = Path(settings.file)
        server.keeps = server.trace.stat().st_size - 20
        with pytest.raises(RunBroken, match="line 4") as broken:
            await run.perform(settings, server.url)
    assert [record.outcome for record in broken.value.run.records()][:1] == [Outcome.COMPLETED]
