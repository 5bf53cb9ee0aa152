"""One run from its settings to its file: the trace looked at, the server asked, played, and what was seen around it.

Whoever wants figures reads the file: `replay`, `compare` and `sweep` are this and arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec
from rich.console import Console

from loadgen.arrivals import parse_arrivals
from loadgen.client import clock, open_http
from loadgen.engine_figures import since
from loadgen.engine_process import EngineProcess
from loadgen.engine_watch import EngineError, EngineWatch, read_snapshot, set_control
from loadgen.live.screen import show
from loadgen.live.state import RunState
from loadgen.live.tally import Progress
from loadgen.machine import machine, versions
from loadgen.outcome import RequestRecord
from loadgen.pace import Pace
from loadgen.played import Survey, header_of, survey, trace_of
from loadgen.player import Job
from loadgen.results.run_file import Resumed, RunEnd, RunFile, RunHeader, RunWriter
from loadgen.self_watch import SelfWatch, summary
from loadgen.server import ServerFacts, find_server, probe
from loadgen.server_metrics import ServerMetrics
from loadgen.settings import Settings
from loadgen.stop_rules import StopRules, parse_rule
from loadgen.text.tokenizer import open_tokenizer
from loadgen.text.vocabulary import Vocabulary, find_vocabulary
from loadgen.workers import Players, open_players

LEAD = 0.05  # seconds from setting up to the first arrival
CHECK_EVERY = 0.1  # seconds between looks at the stop rules
BY_HAND = "Ctrl-C"
ENGINE_ENDED = "the engine's end"


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go; `engine` is the process behind it if loadgen started it."""

    url: str
    engine: EngineProcess | None = None
    api_key: str | None = None


@contextlib.asynccontextmanager
async def open_target(settings: Settings, console: Console, api_key: str | None = None) -> AsyncIterator[Target]:
    """The server that the settings name, or an engine that lives as long as this. Raises `EngineStartError`."""
    if settings.url is not None:
        yield Target(settings.url, api_key=api_key)
        return

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    async with EngineProcess(settings.engine_args, say) as engine:
        yield Target(engine.url, engine, api_key)


class Steering:
    """How a run is changed from outside while it goes on: its speed, and its end."""

    def __init__(self, stop: asyncio.Event | None = None) -> None:
        self.stop = stop or asyncio.Event()
        self._speed: Callable[[float], None] | None = None
        self._asked: float | None = None

    def set_speed(self, speed: float) -> None:
        """Go by another speed from now on, or from the beginning if it has not come."""
        self._asked = speed
        if self._speed is not None:
            self._speed(speed)

    def attach(self, take: Callable[[float], None]) -> None:
        """The run that is steered has begun."""
        self._speed = take
        if self._asked is not None:
            take(self._asked)


@dataclass(slots=True)
class _Prepared:
    """What is known before the first request."""

    facts: ServerFacts
    found: Survey
    vocabulary: Vocabulary | None
    header: RunHeader


async def _prepare(
    settings: Settings, target: Target, http: aiohttp.ClientSession, label: str, say: Callable[[str], None]
) -> _Prepared:
    """Ask the server, read the trace through, try one request. Raises `ServerError`, `TraceError`, `EngineError`."""
    trace = trace_of(settings)
    header = header_of(trace, settings)
    facts = await find_server(http, target.url, settings.model)
    arrivals = parse_arrivals(settings.arrivals, settings.seed)
    found = await asyncio.to_thread(survey, trace, settings, facts.max_model_len, arrivals, say)
    if settings.control:
        await set_control(http, target.url, settings.control)
    if settings.probe:
        facts = await probe(http, facts, settings)
    vocabulary = None
    if found.text_unknown:
        vocabulary = await find_vocabulary(open_tokenizer(settings.tokenizer, http, facts))
    run_header = RunHeader(
        label=label,
        settings=settings,
        started_at=_now(),
        sessions=found.sessions,
        turns=found.turns,
        trace={
            "file": settings.file,
            "format": str(trace.format),
            "temperature": header.temperature,
            "recipe": header.recipe,
            "bad_lines": found.bad_lines,
            "left_out": found.left_out,
        },
        server={
            **msgspec.to_builtins(facts),
            "started_by_loadgen": target.engine is not None,
        },
        versions=versions(),
        machine=machine(),
    )
    return _Prepared(facts, found, vocabulary, run_header)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(slots=True)
class _Watches:
    """What looks at the server from beside the requests, over the time of the run."""

    engine: EngineWatch | None
    server: ServerMetrics | None

    @classmethod
    async def begin(cls, http: aiohttp.ClientSession, url: str) -> _Watches:
        """Raises `EngineError` if it has a step stream that cannot be read."""
        first = await read_snapshot(http, url)
        server = await ServerMetrics.start(http, url)
        return cls(EngineWatch(http, url, first) if first is not None else None, server)

    async def finish(self, begin: float, notes: list[str]) -> dict[str, Any]:
        """The parts of a `RunEnd` that they tell. Requests began to be sent at `begin`, in seconds of the run.

        The engine's clock is another one: both are laid together at the first arrival.
        """
        engine: dict[str, Any] | None = None
        moments: tuple[tuple[float, int, int, int], ...] = ()
        if self.engine is not None:
            try:
                engine = await self.engine.finish()
                told = since(self.engine.ledger.moments, self.engine.ledger.began)
                moments = tuple((begin + m.time, m.held, m.internal, m.saved_blocks) for m in told)
            except EngineError as error:
                notes.append(f"No engine figures: {error}")
            else:
                if lost := engine["records_lost"]:
                    notes.append(f"{lost} step records were lost: means and peaks of the engine lack them.")
        server = None if self.server is None else await self.server.finish()
        return {"engine": engine, "moments": moments, "server": server}

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.close()
        if self.server is not None:
            await self.server.close()


async def perform(
    settings: Settings,
    target: Target,
    path: Path,
    console: Console,
    steering: Steering,
    label: str = "replay",
    *,
    overwrite: bool = False,
    resumes: bool = False,
) -> RunFile:
    """Play the settings' trace against the target, and keep it in the file at `path`.

    `steering.stop` ends it early with what there is. With `resumes` the file is there, and is gone on with. Raises
    `TraceError`, `ServerError`, `EngineError` or `ResultError`, all before the first request but for a full disk.
    """

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    notes: list[str] = []
    zero_at = _end_of(RunFile.read(path)) if resumes else 0.0
    async with open_http(target.api_key) as http:
        prepared = await _prepare(settings, target, http, label, say)
        notes += _notes_before(prepared)
        if resumes:
            writer = RunWriter.resume(path, Resumed(at=zero_at, started_at=_now(), versions=versions()))
        else:
            writer = RunWriter(path, prepared.header, overwrite=overwrite)
        with writer:
            watches = await _Watches.begin(http, target.url)
            try:
                await _play(settings, target, prepared, writer, watches, console, steering, label, zero_at, notes, resumes)
            finally:
                await watches.close()
    return RunFile.read(path)


async def _play(
    settings: Settings,
    target: Target,
    prepared: _Prepared,
    writer: RunWriter,
    watches: _Watches,
    console: Console,
    steering: Steering,
    label: str,
    zero_at: float,
    notes: list[str],
    resumes: bool,
) -> None:
    """The run itself, from the first request to the last line of its file."""
    pace = Pace(settings.speed)
    rules = StopRules([parse_rule(rule) for rule in settings.until])
    job = Job(
        settings=settings,
        facts=prepared.facts,
        vocabulary=prepared.vocabulary,
        resumes=str(writer.path) if resumes else None,
    )
    begin = 0.0
    progress = Progress(
        label, prepared.header.sessions, prepared.header.turns, begin, settings.speed, rules.last_turn, rules.last_second
    )

    def take(record: RequestRecord) -> None:
        writer.append(record)
        progress.take(record)

    async with open_players(settings.workers, take, pace, target.api_key) as players:
        own = SelfWatch()

        def state() -> RunState:
            told = players.told()
            return progress.state(clock(), [one.counts for one in told], [one.figures for one in told])

        def set_speed(speed: float) -> None:
            now = clock()
            players.set_speed(speed, now)
            progress.set_speed(speed, now)

        begin = progress.began = clock() + LEAD
        steering.attach(set_speed)
        helpers = [
            asyncio.create_task(show(state, console)),
            asyncio.create_task(_mind(state, rules, players, progress, steering.stop, target.engine)),
            *([asyncio.create_task(own.run())] if settings.workers > 1 else []),
        ]
        try:
            figures = await players.play(job, begin, begin - zero_at, rules.last_turn)
            end = clock()
            told = await watches.finish(zero_at, notes)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.wait(helpers)
        for helper in helpers:
            if not helper.cancelled() and (problem := helper.exception()) is not None:
                raise problem
    if target.engine is not None:
        target.engine.measure()
        if told["engine"] is not None:
            told["engine"]["peak_rss_bytes"] = target.engine.peak_rss_bytes
        if not target.engine.alive:
            progress.stopping = ENGINE_ENDED
            notes.append("\n".join(["The engine ended during the run. Its last lines:", *target.engine.output_tail()]))
    processes = [*figures, own.figures()] if settings.workers > 1 else figures
    writer.finish(
        RunEnd(
            at=round(end - begin + zero_at, 6),
            stopped_by=progress.stopping,
            client=summary(processes),
            speed_changes=pace.changes,
            notes=tuple(notes),
            **told,
        )
    )


async def _mind(
    state: Callable[[], RunState],
    rules: StopRules,
    players: Players,
    progress: Progress,
    stop: asyncio.Event,
    engine: EngineProcess | None,
) -> None:
    """End the run when it is told to, when a rule says so, or when there is nobody left to answer."""
    asked = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(engine.ended() if engine is not None else asyncio.Event().wait())
    try:
        while not (asked.done() or ended.done()):
            if progress.stopping is None and (why := rules.check(state())) is not None:
                progress.stopping = why
                players.drain()
            await asyncio.wait([asked, ended], timeout=CHECK_EVERY, return_when=asyncio.FIRST_COMPLETED)
        progress.stopping = BY_HAND if asked.done() else ENGINE_ENDED
        players.stop()
    finally:
        for task in (asked, ended):
            task.cancel()


def _end_of(run: RunFile) -> float:
    """Seconds of a run after which nothing happened in it."""
    last = max((end.at for end in run.ends), default=0.0)
    return max(last, max((record.ended for record in run.records() if record.ended is not None), default=last))


def _notes_before(prepared: _Prepared) -> list[str]:
    """What a reader must know of what was played."""
    notes = []
    if found := prepared.found.bad_lines:
        notes.append(f"{found:,} lines of the trace did not fit and were left out (--skip-bad).")
    if left_out := prepared.found.left_out:
        notes.append(f"{left_out:,} sessions were left out: longer than the server's context (--too-long skip).")
    return notes
