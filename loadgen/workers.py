"""The client processes of a run: one is this process, more are children that are told the same beginning and clock.

A child is `python -m loadgen.worker`: orders go in as JSON lines, what happens comes out as JSON lines. The monotonic
clock is the machine's, so that times of all processes are one another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import msgspec

from loadgen.live.tally import Counts, Tally
from loadgen.outcome import RequestRecord
from loadgen.pace import Pace
from loadgen.player import Controls, Job, play
from loadgen.self_watch import SelfFigures, SelfWatch

API_KEY = "LOADGEN_API_KEY"  # not in the arguments, which everybody on the machine can read
COUNTS_EVERY = 0.2  # seconds
STOP_TIMEOUT = 10.0  # seconds for a child to report what it has
_LONGEST_LINE = 64 * 1024 * 1024  # a record with very many chunks


class WorkerError(Exception):
    """A client process ended before its work."""


class Start(msgspec.Struct, frozen=True, tag="start", tag_field="order"):
    """What to play, and from which moment of the clock on."""

    job: Job
    begin: float
    zero: float
    budget: float | None


class Speed(msgspec.Struct, frozen=True, tag="speed", tag_field="order"):
    """Go by another speed from a moment on."""

    speed: float
    at: float


class Drain(msgspec.Struct, frozen=True, tag="drain", tag_field="order"):
    """Send nothing more."""


class Stop(msgspec.Struct, frozen=True, tag="stop", tag_field="order"):
    """Drop what runs."""


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="kind"):
    """The process is up: imports are done."""


class Told(msgspec.Struct, frozen=True, tag="counts", tag_field="kind"):
    """How far a process is, and what it needed so far."""

    counts: Counts
    figures: SelfFigures


class Finished(msgspec.Struct, frozen=True, tag="finished", tag_field="kind"):
    """A process has reported all; what it needed for it."""

    figures: SelfFigures


class Failed(msgspec.Struct, frozen=True, tag="failed", tag_field="kind"):
    """A process cannot go on."""

    why: str


Order = Start | Speed | Drain | Stop
Message = Ready | Told | RequestRecord | Finished | Failed


class Players(Protocol):
    """All client processes of one run. `take` gets every record of theirs."""

    async def play(self, job: Job, begin: float, zero: float, budget: float | None) -> list[SelfFigures]:
        """Play to the end, or until stopped; what each process needed for it. Raises `WorkerError`."""
        ...

    def set_speed(self, speed: float, at: float) -> None:
        """Go by another speed from a moment on."""
        ...

    def drain(self) -> None:
        """Send nothing more; what runs comes to its end."""
        ...

    def stop(self) -> None:
        """Drop what runs."""
        ...

    def told(self) -> list[Told]:
        """How far each process is, as far as it has told."""
        ...


class ThisProcess:
    """The run in this very process."""

    def __init__(self, take: Callable[[RequestRecord], None], pace: Pace, api_key: str | None) -> None:
        self._take, self._api_key = take, api_key
        self._tally = Tally()
        self._controls = Controls(pace)
        self._watch = SelfWatch()

    async def play(self, job: Job, begin: float, zero: float, budget: float | None) -> list[SelfFigures]:
        if budget is not None:
            self._controls.budget.left = min(budget, self._controls.budget.left)
        watching = asyncio.create_task(self._watch.run())
        try:
            await play(job, self._controls, self._tally, self._take, begin, zero, self._api_key)
        finally:
            watching.cancel()
        return [self._watch.figures()]

    def set_speed(self, speed: float, at: float) -> None:
        self._controls.pace.set_speed(speed, at)

    def drain(self) -> None:
        self._controls.drain()

    def stop(self) -> None:
        self._controls.stop.set()

    def told(self) -> list[Told]:
        return [Told(self._tally.counts(), self._watch.figures())]


class Children:
    """A run in several processes, started by `async with`; they end with it, or when this process is gone."""

    def __init__(self, count: int, take: Callable[[RequestRecord], None], pace: Pace, api_key: str | None) -> None:
        self._count, self._take, self._pace, self._api_key = count, take, pace, api_key
        self._processes: list[asyncio.subprocess.Process] = []
        self._told: dict[int, Told] = {}

    async def __aenter__(self) -> Children:
        environment = dict(os.environ)
        environment.pop(API_KEY, None)
        if self._api_key is not None:
            environment[API_KEY] = self._api_key
        try:
            for _ in range(self._count):
                self._processes.append(
                    await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "loadgen.worker"),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        env=environment,
                        limit=_LONGEST_LINE,
                        start_new_session=True,  # Ctrl-C reaches this process alone, which then stops them
                    )
                )
            for number in range(self._count):
                if not isinstance(await self._next(number), Ready):
                    raise WorkerError(f"client process {number} did not begin as expected")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(OSError, RuntimeError):
                assert process.stdin is not None
                process.stdin.close()  # a child whose orders have ended ends
        for process in self._processes:
            try:
                async with asyncio.timeout(STOP_TIMEOUT):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    def _order(self, number: int, order: Order) -> None:
        stdin = self._processes[number].stdin
        assert stdin is not None
        if not stdin.is_closing():
            stdin.write(encode(order) + b"\n")

    def _order_all(self, order: Order) -> None:
        for number in range(self._count):
            self._order(number, order)

    async def _next(self, number: int) -> Message:
        """What a child tells next. Raises `WorkerError` if it has ended."""
        process = self._processes[number]
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            code = await process.wait()
            raise WorkerError(f"client process {number} ended with exit code {code}; --workers 1 shows why")
        return decode_message(line)

    async def _hear(self, number: int) -> SelfFigures:
        while True:
            match await self._next(number):
                case RequestRecord() as record:
                    self._take(record)
                case Told() as told:
                    self._told[number] = told
                case Finished(figures):
                    return figures
                case Failed(why):
                    raise WorkerError(why)
                case Ready():
                    raise WorkerError(f"client process {number} began twice")

    async def play(self, job: Job, begin: float, zero: float, budget: float | None) -> list[SelfFigures]:
        self._pace.begin(begin)
        for number in range(self._count):
            part = msgspec.structs.replace(job, worker=number, workers=self._count)
            self._order(number, Start(part, begin, zero, None if budget is None else part.share(int(budget))))
        try:
            async with asyncio.TaskGroup() as group:
                hearing = [group.create_task(self._hear(number)) for number in range(self._count)]
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from None
        return [task.result() for task in hearing]

    def set_speed(self, speed: float, at: float) -> None:
        self._pace.set_speed(speed, at)
        self._order_all(Speed(speed, at))

    def drain(self) -> None:
        self._order_all(Drain())

    def stop(self) -> None:
        self._order_all(Stop())

    def told(self) -> list[Told]:
        return list(self._told.values())


encode = msgspec.json.Encoder().encode
decode_order = msgspec.json.Decoder(Order).decode
decode_message = msgspec.json.Decoder(Message).decode


@contextlib.asynccontextmanager
async def open_players(
    workers: int, take: Callable[[RequestRecord], None], pace: Pace, api_key: str | None
) -> AsyncIterator[Players]:
    """One process, or as many as asked for. Raises `WorkerError` if one does not come up."""
    if workers == 1:
        yield ThisProcess(take, pace, api_key)
        return
    async with Children(workers, take, pace, api_key) as children:
        yield children
