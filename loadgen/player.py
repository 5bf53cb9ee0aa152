"""What one client process plays: its share of a trace's sessions, each at its moment, to their end or to a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, tee
from typing import Self

import msgspec

from loadgen.access import ANYBODY, Access
from loadgen.arrivals import Arrivals, Recorded, Users, parse_arrivals
from loadgen.asking import Asker
from loadgen.client import open_http
from loadgen.limits import Budget, Limits, Tickets
from loadgen.live.tally import Tally
from loadgen.outcome import RequestRecord
from loadgen.pace import Ended, Pace
from loadgen.played import header_of, is_done, played, trace_of
from loadgen.server import ServerFacts
from loadgen.session import Setting, run_session
from loadgen.settings import Settings
from loadgen.text.tokenizer import open_tokenizer
from loadgen.text.vocabulary import Vocabulary
from loadgen.traces.model import Session

LOOKAHEAD = 1.0  # seconds before its arrival in which a session's first request is written
MOST_QUEUED = 10_000  # sessions that are written or wait for a slot; the rest wait in the trace, their moments known

_Arrive = Callable[[], Awaitable[float]]
_Feed = Iterator[tuple[int, Session, float]]
_One = Callable[[Session, int, _Arrive], Coroutine[None, None, float]]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part of a run, of the sessions that are not done yet.

    That is every `workers`-th from the `worker`-th on, or what its users take.
    """

    settings: Settings
    facts: ServerFacts
    vocabulary: Vocabulary | None
    limits: Limits
    worker: int = 0
    workers: int = 1
    done: bytes = b""  # sessions that are left out, as they have been played before; for `is_done`
    run: str = ""  # what its requests' ids begin with
    counts: bool = False  # answers and recorded replies are counted by a tokenizer where nothing else tells


@dataclass(slots=True)
class Controls:
    """What can be changed while it plays: how fast, whether more is sent, and whether to drop what runs."""

    pace: Pace
    budget: Budget
    arrivals: Pace = field(default_factory=lambda: Pace(1.0))  # by which sessions come whose times are not the trace's
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def drain(self) -> None:
        """Send nothing more; what runs comes to its end."""
        self.budget.end()
        self.pace.end()
        self.arrivals.end()


def _all_of_it(job: Job, stop: asyncio.Event) -> Iterator[tuple[int, Session]]:
    """The sessions of the run with their places in the trace."""
    for index, session in played(trace_of(job.settings), job.settings, job.facts.max_model_len):
        if stop.is_set():
            return
        yield index, session


def _timed(sessions: Iterator[tuple[int, Session]], arrivals: Arrivals) -> _Feed:
    """Sessions with their place in the trace, and when they start."""
    ours, theirs = tee(sessions)
    times = arrivals.times(session.arrival for _, session in theirs)
    return ((index, session, time) for (index, session), time in zip(ours, times, strict=False))


def _left(feed: _Feed, done: bytes) -> _Feed:
    """What is not done yet, the first of it at 0. The gaps in front of what is done take no time."""
    passed = before = 0.0
    begun = False
    for index, session, time in feed:
        if not is_done(done, index):
            passed, begun = passed if begun else time, True
            yield index, session, time - passed
        else:
            passed += time - before
        before = time


def _taken(sessions: _Feed, tickets: Tickets) -> _Feed:
    """Of the sessions that all processes go through, those whose number this one draws."""
    passed = 0
    while (number := tickets.take()) is not None:
        session = next(islice(sessions, number - passed, None), None)
        if session is None:
            return
        passed = number + 1
        yield session


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
            while coming + setting.tally.queued > MOST_QUEUED and not setting.budget.over:
                await asyncio.sleep(0.01)
            if setting.budget.over:
                break
            coming += 1
            group.create_task(one(session, index, partial(arrive, start)))


async def _closed_loop(sessions: _Feed, users: Users, job: Job, by: Pace, setting: Setting, one: _One) -> None:
    """Each user plays one session after the other, and thinks between them."""
    begin = by.moment(0.0)

    async def user(ready: float) -> None:
        for index, session, _ in sessions:

            async def arrive(moment: float = ready) -> float:
                return await by.until(by.trace(moment))

            over = await one(session, index, arrive)
            if setting.budget.over:
                return
            ready = over + users.think / setting.pace.speed

    async with asyncio.TaskGroup() as group:
        for number in range(job.worker, users.count, job.workers):
            group.create_task(user(begin + users.start(number)))


class Player:
    """Plays a job, opened by `async with` before the run begins: what takes long is done then.

    Whoever holds `controls` may change the speed and drain it meanwhile.
    """

    def __init__(
        self,
        job: Job,
        controls: Controls,
        tally: Tally,
        report: Callable[[RequestRecord], None],
        access: Access = ANYBODY,
    ) -> None:
        self._job, self._controls, self._tally, self._report = job, controls, tally, report
        self._http = open_http(access)

    async def __aenter__(self) -> Self:
        """Raises `TraceError`, `ResultError` or `TokenizerError`."""
        job, settings = self._job, self._job.settings
        try:
            self._asker = Asker(header_of(trace_of(settings), settings), job.facts, settings, job.vocabulary)
            self._tokenizer = open_tokenizer(settings.tokenizer, self._http, job.facts) if job.counts else None
            self._arrivals = parse_arrivals(settings.arrivals, settings.seed)
            left = _left(_timed(_all_of_it(job, self._controls.stop), self._arrivals), job.done)
            first = await asyncio.to_thread(next, left, None)  # past all that was done before
            self._feed: _Feed = left if first is None else chain([first], left)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._controls.stop.set()
        await self._http.close()

    async def play(self, begin: float, zero: float) -> None:
        """Play from the moment `begin` on, until all sessions have ended or `controls.stop` is set.

        Records count from `zero`: a run that goes on after a pause has begun before. Every turn of a session that
        began has been reported when it returns.
        """
        job, settings, controls, arrivals = self._job, self._job.settings, self._controls, self._arrivals
        by = controls.pace if isinstance(arrivals, Recorded) else controls.arrivals
        for pace in (controls.pace, controls.arrivals):
            pace.begin(begin)
        setting = Setting(
            http=self._http,
            url=job.facts.url,
            asker=self._asker,
            pace=controls.pace,
            timeout=settings.timeout,
            retries=settings.retries,
            retry_refused=settings.retry_refused,
            stream=settings.stream,
            slots=job.limits.open_slots(),
            budget=controls.budget,
            tally=self._tally,
            zero=zero,
            report=self._report,
            tokenizer=self._tokenizer,
            run=job.run,
        )

        one = partial(run_session, setting=setting)
        if isinstance(arrivals, Users):
            taken = _taken(self._feed, Tickets(job.limits.taken))
            playing = asyncio.create_task(_closed_loop(taken, arrivals, job, by, setting, one))
        else:
            feed = islice(self._feed, job.worker, None, job.workers)
            playing = asyncio.create_task(_open_loop(feed, by, setting, one))
        stopper = asyncio.create_task(controls.stop.wait())
        try:
            await asyncio.wait({playing, stopper}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (playing, stopper):
                task.cancel()
            await asyncio.wait({playing, stopper})
            await self._http.close()  # the report needs open files, too
        if not playing.cancelled() and (problem := playing.exception()) is not None:
            raise problem.exceptions[0] if isinstance(problem, ExceptionGroup) else problem
