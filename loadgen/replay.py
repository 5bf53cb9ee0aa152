"""One run of a trace against one server: an absolute schedule, open loop, every turn accounted for."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from rich.console import Console

from loadgen import arrivals, metrics
from loadgen.client import clock, open_http, reason
from loadgen.engine_figures import Figure, Moment, since
from loadgen.engine_process import EngineProcess
from loadgen.engine_watch import CALL_TIMEOUT, EngineError, EngineWatch, read_snapshot, set_control
from loadgen.outcome import Outcome, RequestRecord
from loadgen.pace import Pace
from loadgen.progress import Progress, show
from loadgen.self_watch import SelfWatch
from loadgen.session import Setting, run_session
from loadgen.trace import Session, Trace

LEAD = 0.05  # seconds from setting up to the first arrival
_NO_LIMIT = 2**31


class ServerError(Exception):
    """The server cannot be used; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Options:
    """What one run was asked for; `sessions` None: all, `rate` None: the recorded arrivals."""

    file: str
    sessions: int | None = None
    model: str | None = None
    speed: float = 1.0
    concurrency: int | None = None
    rate: float | None = None
    mode: str | None = None
    alloc: str | None = None
    seed: int = 0
    timeout: float = 3600.0
    engine_args: tuple[str, ...] = ()
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run's outcome. `engine` is None for a server without a step stream; `notes` say what a reader must know."""

    summary: dict[str, Any]
    engine: dict[str, Figure] | None
    settings: dict[str, Any]
    records: tuple[RequestRecord, ...]
    start: float  # on the client's clock
    moments: tuple[Moment, ...] = ()
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    def document(self) -> dict[str, Any]:
        """The JSON contract's shape."""
        return {"summary": self.summary, "engine": self.engine, "settings": self.settings}


@dataclass(slots=True)
class _Sink:
    """Takes every record once."""

    progress: Progress
    records: list[RequestRecord] = field(default_factory=list)

    def take(self, record: RequestRecord) -> None:
        self.records.append(record)
        self.progress.count(record)


async def find_model(http: aiohttp.ClientSession, url: str, wanted: str | None) -> str:
    """The model to ask for: the wanted one, else the first the server lists. Raises `ServerError`."""
    where = f"GET {url}/v1/models"
    try:
        async with http.get(f"{url}/v1/models", timeout=CALL_TIMEOUT) as reply:
            body = await reply.read()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ServerError(f"no server at {url}: {reason(error)}") from None
    if wanted is not None:
        return wanted
    if reply.status != 200:
        raise ServerError(f"{where} answered {reply.status}; name the model with --model")
    try:
        return str(msgspec.json.decode(body)["data"][0]["id"])
    except (msgspec.MsgspecError, KeyError, IndexError, TypeError):
        raise ServerError(f"{where} lists no model; name it with --model") from None


def session_starts(sessions: Sequence[Session], options: Options) -> list[float]:
    """When each session starts: in seconds of the trace from its start, or with a rate in those of the clock."""
    if options.rate is not None:
        return arrivals.poisson(len(sessions), options.rate, options.seed)
    return arrivals.recorded([session.arrival for session in sessions])


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _play(
    sessions: Sequence[Session], starts: Sequence[float], by: Pace, setting: Setting, stop: asyncio.Event
) -> None:
    """Run all sessions to their end, or until `stop`; every turn has been reported when it returns.

    They arrive at `starts` by one pace, and think by that of the setting: with a rate these differ.
    """

    async def one(session: Session, start: float) -> None:
        pace = setting.pace
        await run_session(session, start if by is pace else pace.trace(await by.until(start)), setting)
        setting.progress.sessions_done += 1

    tasks = [asyncio.create_task(one(session, start)) for session, start in zip(sessions, starts, strict=True)]

    async def all_of_them() -> None:
        await asyncio.gather(*tasks)

    everything = asyncio.create_task(all_of_them())
    stopper = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({everything, stopper}, return_when=asyncio.FIRST_COMPLETED)
        if everything.done():
            everything.result()
    finally:
        await _cancel(*tasks, everything, stopper)


def _never_started(sessions: Sequence[Session], records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Turns of sessions whose task was cancelled before it ran at all."""
    seen = {(record.session, record.turn) for record in records}
    return [
        RequestRecord(session.session, index, turn.output_tokens, None, Outcome.NOT_REACHED)
        for session in sessions
        for index, turn in enumerate(session.turns)
        if (session.session, index) not in seen
    ]


async def _engine_figures(
    watch: EngineWatch | None, engine: EngineProcess | None
) -> tuple[dict[str, Figure] | None, list[str]]:
    if watch is None:
        return None, ["The server has no /engine/snapshot: no engine figures (waste, sharing, steps)."]
    try:
        figures = await watch.finish()
    except EngineError as error:
        return None, [f"No engine figures: {error}"]
    notes: list[str] = []
    if lost := figures["records_lost"]:
        notes.append(f"{lost} step records were lost: means and peaks of the engine lack them, totals do not.")
    if engine is not None:
        engine.measure()
        figures["peak_rss_bytes"] = engine.peak_rss_bytes
    return figures, notes


async def replay(
    trace: Trace,
    options: Options,
    url: str,
    engine: EngineProcess | None,
    console: Console,
    stop: asyncio.Event,
    label: str = "replay",
    pace: Pace | None = None,
) -> RunResult:
    """Play the trace against the server at `url`. Raises `ServerError` or `EngineError` before the first request.

    `engine` is the process behind `url` if loadgen started it. Setting `stop` ends the run early, and whoever holds
    `pace` may change the speed meanwhile.
    """
    pace = pace or Pace(options.speed)
    sessions = trace.sessions[: options.sessions]
    turns = sum(len(session.turns) for session in sessions)
    progress = Progress(len(sessions), turns, label)
    sink = _Sink(progress)
    async with open_http(options.api_key) as http:
        model = await find_model(http, url, options.model)
        changes = {"batching": options.mode, "allocation": options.alloc}
        wanted = {name: value for name, value in changes.items() if value is not None}
        if wanted:
            await set_control(http, url, wanted)
        first = await read_snapshot(http, url)
        watch = EngineWatch(http, url, first) if first is not None else None
        setting = Setting(
            http=http,
            url=f"{url}/v1/chat/completions",
            model=model,
            systems=trace.header.systems,
            temperature=trace.header.temperature,
            pace=pace,
            timeout=options.timeout,
            slots=asyncio.Semaphore(options.concurrency or _NO_LIMIT),
            progress=progress,
            report=sink.take,
        )
        started_at = datetime.datetime.now(datetime.UTC)
        own = SelfWatch()
        helpers = [asyncio.create_task(own.run()), asyncio.create_task(show(progress, console))]
        begin = clock() + LEAD
        by = pace if options.rate is None else Pace(1.0)
        for one in {pace, by}:
            one.begin(begin)
        try:
            await _play(sessions, session_starts(sessions, options), by, setting, stop)
            client = own.figures()
            figures, notes = await _engine_figures(watch, engine)
        finally:
            await _cancel(*helpers)
            if watch is not None:
                await watch.close()
        console.print(progress.line(), highlight=False, soft_wrap=True)
    records = [*sink.records, *_never_started(sessions, sink.records)]
    if len(records) != turns:
        raise AssertionError(f"{turns} turns, but {len(records)} records")
    if engine is not None and not engine.alive:
        notes.append("\n".join(["The engine ended during the run. Its last lines:", *engine.output_tail()]))
    if client["client_is_bottleneck"]:
        notes.append(
            f"loadgen itself was slow (CPU {client['client_cpu_share']:.0%} of a core, event loop late by "
            f"{client['client_p99_loop_lag_ms'] or 0:.0f} ms at p99): latencies include that."
        )
    if pace.changes:
        told = ", ".join(f"{speed:g} from second {second:.1f} on" for second, speed in pace.changes)
        notes.append(f"The speed was changed while it ran: {options.speed:g} was asked for, then {told}.")
    settings = {
        "file": options.file,
        "url": url,
        "engine_started_by_loadgen": engine is not None,
        "engine_args": list(options.engine_args) if engine is not None else None,
        "model": model,
        "sessions": len(sessions),
        "turns": turns,
        "speed": options.speed,
        "speed_changes": [list(change) for change in pace.changes],
        "rate": options.rate,
        "concurrency": options.concurrency,
        "mode": options.mode,
        "alloc": options.alloc,
        "seed": options.seed,
        "timeout_s": options.timeout,
        "temperature": trace.header.temperature,
        "started_at": started_at.isoformat(timespec="seconds"),
        "interrupted": stop.is_set(),
    }
    return RunResult(
        summary={**metrics.summarize(records), **client},
        engine=figures,
        settings=settings,
        records=tuple(records),
        start=begin,
        moments=tuple(since(watch.ledger.moments, watch.ledger.began)) if watch is not None else (),
        notes=tuple(notes),
        interrupted=stop.is_set(),
    )
