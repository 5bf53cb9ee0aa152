"""What one client process plays: its share of a trace's sessions, each at its moment, to their end or to a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, tee
from pathlib import Path

import msgspec

from loadgen.arrivals import Arrivals, Recorded, Users, parse_arrivals
from loadgen.asking import Asker
from loadgen.client import clock, open_http
from loadgen.live.tally import Tally
from loadgen.outcome import RequestRecord
from loadgen.pace import Ended, Pace
from loadgen.played import header_of, played, trace_of
from loadgen.results.run_file import RunFile
from loadgen.server import ServerFacts
from loadgen.session import Budget, Setting, run_session
from loadgen.settings import Settings
from loadgen.text.tokenizer import open_tokenizer
from loadgen.text.vocabulary import Vocabulary
from loadgen.traces.model import Session

LOOKAHEAD = 1.0  # seconds before its arrival in which a session's first request is written
MOST_QUEUED = 10_000  # sessions that are written or wait for a slot; the rest wait in the trace, their moments known
_NO_LIMIT = 2**31

_Arrive = Callable[[], Awaitable[float]]
_Feed = Iterator[tuple[int, Session, float]]
_One = Callable[[Session, int, _Arrive], Coroutine[None, None, None]]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part of a run: every `workers`-th session from the `worker`-th on, of those not done before."""

    settings: Settings
    facts: ServerFacts
    vocabulary: Vocabulary | None
    worker: int = 0
    workers: int = 1
    resumes: str | None = None  # the run's file, whose finished sessions are left out
    counts: bool = False  # answers and recorded replies are counted by a tokenizer where nothing else tells

    def share(self, amount: int) -> int:
        """This process's part of an amount that all of them make together."""
        return amount // self.workers + (self.worker < amount % self.workers)


@dataclass(slots=True)
class Controls:
    """What can be changed while it plays: how fast, how many more requests, and whether to drop what runs."""

    pace: Pace
    arrivals: Pace = field(default_factory=lambda: Pace(1.0))  # by which sessions come whose times are not the trace's
    budget: Budget = field(default_factory=lambda: Budget(float("inf")))
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def drain(self) -> None:
        """Send nothing more; what runs comes to its end."""
        self.budget.left = 0
        self.pace.end()
        self.arrivals.end()


def _left(job: Job) -> Iterator[tuple[int, Session]]:
    """What is to be played, with places in the trace: all sessions, or those that an interrupted run has not ended."""
    over = RunFile.read(Path(job.resumes)).final_turns() if job.resumes else {}
    for index, session in played(trace_of(job.settings), job.settings, job.facts.max_model_len):
        if over.get(index, 0) < len(session.turns):
            yield index, session


def _timed(sessions: Iterator[tuple[int, Session]], arrivals: Arrivals | Users) -> Iterator[tuple[int, Session, float]]:
    """Sessions with their place in the trace, and when they start (0 where users take them)."""
    if isinstance(arrivals, Users):
        return ((index, session, 0.0) for index, session in sessions)
    ours, theirs = tee(sessions)
    times = arrivals.times(session.arrival for _, session in theirs)
    return ((index, session, time) for (index, session), time in zip(ours, times, strict=False))


async def _open_loop(feed: _Feed, by: Pace, setting: Setting, one: _One) -> None:
    """Start each session at its moment, whatever became of the others."""
    coming = 0  # that are written ahead of their moment

    async def arrive(start: float) -> float:
        nonlocal coming
        try:
            return await by.until(start)
        finally:
            coming -= 1

    async with asyncio.TaskGroup() as group:
        for index, session, start in feed:
            with suppress(Ended):
                await by.until(start, LOOKAHEAD)
            await asyncio.sleep(0)  # however many are due at once: what runs goes on between two of them
            while coming + setting.tally.queued > MOST_QUEUED and setting.budget.left >= 1:
                await asyncio.sleep(0.01)
            if setting.budget.left < 1:
                break
            coming += 1
            group.create_task(one(session, index, partial(arrive, start)))


async def _closed_loop(feed: _Feed, users: Users, job: Job, by: Pace, setting: Setting, one: _One) -> None:
    """Each user plays one session after the other, and thinks between them."""
    begin = by.moment(0.0)

    async def user(ready: float) -> None:
        for index, session, _ in feed:

            async def arrive(moment: float = ready) -> float:
                return await by.until(by.trace(moment))

            await one(session, index, arrive)
            if setting.budget.left < 1:
                return
            ready = clock() + users.think / setting.pace.speed

    async with asyncio.TaskGroup() as group:
        for number in range(job.worker, users.count, job.workers):
            group.create_task(user(begin + users.start(number)))


async def play(
    job: Job,
    controls: Controls,
    tally: Tally,
    report: Callable[[RequestRecord], None],
    begin: float,
    zero: float,
    api_key: str | None = None,
) -> None:
    """Play the job's sessions from the moment `begin` on, until all have ended or `controls.stop` is set.

    Records count from `zero`: a run that goes on after a pause has begun before. Whoever holds `controls` may change
    the speed and drain it meanwhile. Every turn of a session that began has been reported when it returns.
    """
    settings = job.settings
    arrivals = parse_arrivals(settings.arrivals, settings.seed)
    by = controls.pace if isinstance(arrivals, Recorded) else controls.arrivals
    for pace in (controls.pace, controls.arrivals):
        pace.begin(begin)
    slots = _NO_LIMIT if settings.concurrency is None else job.share(settings.concurrency)
    async with open_http(api_key) as http:
        tokenizer = open_tokenizer(settings.tokenizer, http, job.facts) if job.counts else None
        setting = Setting(
            http=http,
            url=job.facts.url,
            asker=Asker(header_of(trace_of(settings), settings), job.facts, settings, job.vocabulary),
            pace=controls.pace,
            timeout=settings.timeout,
            retries=settings.retries,
            stream=settings.stream,
            slots=asyncio.Semaphore(slots),
            budget=controls.budget,
            tally=tally,
            zero=zero,
            report=report,
            tokenizer=tokenizer,
        )

        async def one(session: Session, index: int, arrive: _Arrive) -> None:
            await run_session(session, index, arrive, setting)
            tally.session_done()

        feed = islice(_timed(_left(job), arrivals), job.worker, None, job.workers)
        if isinstance(arrivals, Users):
            playing = asyncio.create_task(_closed_loop(feed, arrivals, job, by, setting, one))
        else:
            playing = asyncio.create_task(_open_loop(feed, by, setting, one))
        stopper = asyncio.create_task(controls.stop.wait())
        try:
            await asyncio.wait({playing, stopper}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (playing, stopper):
                task.cancel()
            await asyncio.wait({playing, stopper})
        if not playing.cancelled() and (problem := playing.exception()) is not None:
            raise problem.exceptions[0] if isinstance(problem, ExceptionGroup) else problem
