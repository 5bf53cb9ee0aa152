"""A run that was cut short is gone on with, as what is left of it."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from golden import GoldenServer, Script, Stall, role, text
from runs import HEADER, Runner, talk, trace_of, turn, words

from loadgen.outcome import Outcome
from loadgen.results.document import document
from loadgen.results.run_file import ResultError, RunFile
from loadgen.resumption import Past
from loadgen.traces.chat import trace_lines
from loadgen.traces.model import Session


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
        self.path = run.folder / "cut.jsonl"
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
