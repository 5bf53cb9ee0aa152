"""One run from its settings to its file: prepared, played, and what was seen around it.

Whoever wants figures reads the file: `replay`, `compare` and `sweep` are this and arithmetic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import numpy  # noqa: F401  # before connections take all the files that this process may open
from rich.console import Console

from loadgen.client import clock, open_http
from loadgen.engine_process import EngineProcess
from loadgen.garbage import frozen
from loadgen.limits import Limits, open_limits
from loadgen.live.announce import announce
from loadgen.live.screen import show
from loadgen.live.state import RunState
from loadgen.live.tally import Counts, Progress
from loadgen.machine import versions
from loadgen.outcome import RequestRecord
from loadgen.pace import Pace
from loadgen.played import NOTHING
from loadgen.player import Job
from loadgen.prepare import Prepared, now, prepare
from loadgen.results.run_file import BY_HAND, ENGINE_ENDED, ResultError, Resumed, RunEnd, RunFile, RunWriter
from loadgen.resumption import Past
from loadgen.self_watch import SelfFigures, SelfWatch, summary
from loadgen.settings import Settings
from loadgen.stop_rules import stop_rules_of
from loadgen.target import Steering, Target
from loadgen.text.tokenizer import TokenizerError
from loadgen.traces.model import TraceError
from loadgen.watches import Watches
from loadgen.workers import Players, WorkerError, open_players

LEAD = 0.05  # seconds from setting up to the first arrival
CHECK_EVERY = 0.1  # seconds between looks at the stop rules

_Result = TypeVar("_Result")


class RunBroken(Exception):
    """A run that could not go on: `problem` says why, and `run` is what it has measured."""

    def __init__(self, problem: Exception, run: RunFile) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.run = run


async def perform(
    settings: Settings,
    target: Target,
    path: Path,
    console: Console,
    steering: Steering,
    label: str = "replay",
    *,
    overwrite: bool = False,
    past: Past | None = None,
) -> RunFile:
    """Play the settings' trace against the target, and keep it in the file at `path`.

    `steering.stop` ends it early with what there is. The run of a `past` is gone on with in its file. Raises
    `TraceError`, `ServerError`, `EngineError`, `TokenizerError`, `ResultError` or `WorkerError`, and `CancelledError`
    if it is stopped, all before the first request; after it `RunBroken`, as of a disk that gets full.
    """

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    async with open_http(target.keys.client) as http, open_http(target.keys.engine) as engine_http:
        over = NOTHING if past is None else past.turns
        prepared = await _unless(steering.stop, prepare(settings, target, http, engine_http, label, say, over))
        if past is None:
            writer = RunWriter(path, prepared.header, overwrite=overwrite)
        else:
            past.check(prepared.header)
            writer = RunWriter.resume(path, Resumed(at=past.seconds, started_at=now(), versions=versions()))
        with writer:
            try:
                run = _Run(settings, target, prepared, writer, past)
                end = await run.play(http, engine_http if prepared.engine_open else None, console, steering, label)
                writer.finish(end)
            except (ResultError, TokenizerError, TraceError, WorkerError) as problem:
                kept = RunFile.read(path)
                if next(kept.records(), None) is None:
                    raise
                raise RunBroken(problem, kept) from None
    return RunFile.read(path)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result:
    """What the work comes to. Raises `CancelledError` if it is stopped before."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise asyncio.CancelledError
        return working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait({working, stopping})


class _Run:
    """A run from its first request to the last line of its file, or the last part of one that has a past."""

    def __init__(
        self, settings: Settings, target: Target, prepared: Prepared, writer: RunWriter, past: Past | None
    ) -> None:
        self._settings, self._target, self._prepared, self._writer = settings, target, prepared, writer
        self._past = past
        self._before = 0.0 if past is None else past.seconds
        self._notes = prepared.notes()
        self._pace = Pace(settings.speed)
        self._rules = stop_rules_of(settings)

    def _job(self, limits: Limits) -> Job:
        return Job(
            settings=self._settings,
            facts=self._prepared.facts,
            vocabulary=self._prepared.vocabulary,
            limits=limits,
            done=self._prepared.found.done,
            run=self._writer.run_id,
            counts=self._prepared.counts,
        )

    async def play(
        self,
        http: aiohttp.ClientSession,
        engine_http: aiohttp.ClientSession | None,
        console: Console,
        steering: Steering,
        label: str,
    ) -> RunEnd:
        """Play it to its end, or to an early one. `engine_http` asks the engine's own routes; None: it may not."""
        header, rules, settings = self._prepared.header, self._rules, self._settings
        progress = Progress(
            label, header.sessions, header.turns, clock(), self._pace.speed, rules.last_turn, rules.last_second
        )

        def take(record: RequestRecord) -> None:
            self._writer.append(record)
            progress.take(record)

        earlier = Counts() if self._past is None else self._past.count(self._prepared.found.done, progress.take)
        budget = None if rules.last_turn is None else max(0, rules.last_turn - earlier.sent)
        async with AsyncExitStack() as stack:
            limits = stack.enter_context(open_limits(budget, settings.concurrency, settings.workers))
            opened = open_players(self._job(limits), take, self._pace, self._target.keys.client)
            players = await stack.enter_async_context(opened)
            watches = await Watches.begin(http, engine_http, self._target.url, settings.metrics_url)
            stack.push_async_callback(watches.close)
            own = SelfWatch()

            def state() -> RunState:
                told = players.told()
                counts = [earlier, *(one.counts for one in told)]
                return progress.state(clock(), counts, [one.figures for one in told])

            def set_speed(speed: float) -> None:
                moment = clock()
                players.set_speed(speed, moment)
                progress.set_speed(speed, moment)

            # Also the console's first words, which take the longest, come before the clock runs.
            console.print(f"{label}: {header.turns:,} turns at {self._target.url}", markup=False, highlight=False)
            stack.enter_context(frozen())
            begin = clock() + LEAD
            progress.began = begin - self._before
            steering.attach(set_speed)
            helpers = [
                asyncio.create_task(show(state, console)),
                asyncio.create_task(self._mind(state, players, progress, steering.stop)),
                asyncio.create_task(own.run()),
            ]
            if self._prepared.facts.kind == "paged-engine" and engine_http is not None:
                trace = Path(settings.file).stem
                helpers.append(asyncio.create_task(announce(state, engine_http, self._target.url, trace)))
            try:
                figures = await players.play(begin, progress.began)
                end = max(begin, clock())  # it may be stopped before it began
                if progress.stopping is None and (last := state()).sent < last.turns:
                    progress.stopping = rules.check(last)
                told = await watches.finish(self._before, self._notes)
            finally:
                for helper in helpers:
                    helper.cancel()
                await asyncio.wait(helpers)
        for helper in helpers:
            if not helper.cancelled() and (problem := helper.exception()) is not None:
                raise problem
        await self._look_at_engine(told, progress)
        processes: list[SelfFigures] = figures if settings.workers == 1 else [*figures, own.figures()]
        return RunEnd(
            at=round(end - begin + self._before, 6),
            stopped_by=progress.stopping,
            client=summary(processes),
            speed_changes=tuple((at + self._before, speed) for at, speed in self._pace.changes),
            notes=tuple(self._notes),
            **told,
        )

    async def _mind(
        self, state: Callable[[], RunState], players: Players, progress: Progress, stop: asyncio.Event
    ) -> None:
        """End it when it is told to, when a rule says so, or when there is nobody left to answer."""
        engine = self._target.engine
        asked = asyncio.create_task(stop.wait())
        ended = asyncio.create_task(_end_of_engine(engine))
        try:
            while not (asked.done() or ended.done()):
                seen = state()
                left = progress.stopping is None and seen.sent < seen.turns  # else there is nothing to end early
                if left and (why := self._rules.check(seen)) is not None:
                    progress.stopping = why
                    players.drain()
                await asyncio.wait([asked, ended], timeout=CHECK_EVERY, return_when=asyncio.FIRST_COMPLETED)
            progress.stopping = BY_HAND if asked.done() else ENGINE_ENDED
            players.stop()
        finally:
            for task in (asked, ended):
                task.cancel()

    async def _look_at_engine(self, told: dict[str, Any], progress: Progress) -> None:
        """Note what an engine of loadgen's own needed, or that it has ended."""
        engine = self._target.engine
        if engine is None:
            return
        engine.measure()
        if told["engine"] is not None:
            told["engine"]["peak_rss_bytes"] = engine.peak_rss_bytes
        if not engine.alive:
            progress.stopping = ENGINE_ENDED
            self._notes.append(await engine.ended())


async def _end_of_engine(engine: EngineProcess | None) -> None:
    """Wait until it ends by itself; for ever if it is somebody else's."""
    if engine is None:
        await asyncio.Event().wait()
    else:
        await engine.ended()
