"""The client processes of a run: one is this process, more are children that are told the same beginning and clock.

A child is `python -m loadgen.worker`: orders go in as JSON lines, what happens comes out as JSON lines. The monotonic
clock is the machine's, so that times of all processes are one another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Protocol, Self

import msgspec

from loadgen.access import Access, read_headers, written
from loadgen.live.tally import Counts, Tally
from loadgen.outcome import RequestRecord
from loadgen.pace import Pace
from loadgen.player import Controls, Job, Player
from loadgen.self_watch import SelfFigures, SelfWatch

API_KEY = "LOADGEN_API_KEY"  # not in the arguments, which everybody on the machine can read
HEADERS = "LOADGEN_WORKER_HEADERS"
ADMIN_KEY = "LOADGEN_ADMIN_KEY"  # which these processes have no use for
COUNTS_EVERY = 0.2  # seconds
STOP_TIMEOUT = 10.0  # seconds for a child to report what it has
_LONGEST_LINE = 64 * 1024 * 1024  # a record with very many chunks


class WorkerError(Exception):
    """A client process ended before its work."""


class Start(msgspec.Struct, frozen=True, tag="start", tag_field="order"):
    """What to play, and how fast."""

    job: Job
    speed: float


class Begin(msgspec.Struct, frozen=True, tag="begin", tag_field="order"):
    """Play from a moment of the clock on; records count from `zero`."""

    at: float
    zero: float


class Speed(msgspec.Struct, frozen=True, tag="speed", tag_field="order"):
    """Go by another speed from a moment on."""

    speed: float
    at: float


class Drain(msgspec.Struct, frozen=True, tag="drain", tag_field="order"):
    """Send nothing more."""


class Stop(msgspec.Struct, frozen=True, tag="stop", tag_field="order"):
    """Drop what runs."""


class Ready(msgspec.Struct, frozen=True, tag="ready", tag_field="kind"):
    """The process can begin to play at once."""


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


Order = Start | Begin | Speed | Drain | Stop
Message = Ready | Told | RequestRecord | Finished | Failed


class Players(Protocol):
    """All client processes of one run, ready to begin. Each record of theirs has been told when they are done."""

    async def play(self, begin: float, zero: float) -> list[SelfFigures]:
        """Play to the end, or until stopped; what each process needed for it.

        Raises `WorkerError`, and what `Player` raises.
        """
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


Opened = contextlib.AbstractAsyncContextManager[Players]


class ThisProcess:
    """The run in this very process."""

    def __init__(self, job: Job, take: Callable[[RequestRecord], None], pace: Pace, access: Access) -> None:
        self._tally = Tally()
        self._controls = Controls(pace, job.limits.open_budget())
        self._player = Player(job, self._controls, self._tally, take, access)
        self._watch = SelfWatch()

    async def __aenter__(self) -> Self:
        await self._player.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._player.__aexit__()

    async def play(self, begin: float, zero: float) -> list[SelfFigures]:
        self._watch = SelfWatch()
        watching = asyncio.create_task(self._watch.run())
        try:
            await self._player.play(begin, zero)
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

    def __init__(self, job: Job, take: Callable[[RequestRecord], None], pace: Pace, access: Access) -> None:
        self._job, self._take, self._pace, self._access = job, take, pace, access
        self._count = job.settings.workers
        self._processes: list[asyncio.subprocess.Process] = []
        self._told: dict[int, Told] = {}

    async def __aenter__(self) -> Self:
        own = (API_KEY, ADMIN_KEY, HEADERS)
        environment = {name: value for name, value in os.environ.items() if name not in own}
        environment |= secrets(self._access)
        try:
            for number in range(self._count):
                self._processes.append(
                    await asyncio.create_subprocess_exec(
                        *(sys.executable, "-P", "-m", "loadgen.worker"),  # not what lies about in the folder
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        env=environment,
                        limit=_LONGEST_LINE,
                        start_new_session=True,  # Ctrl-C reaches this process alone, which then stops them
                        pass_fds=self._job.limits.descriptors,
                    )
                )
                part = msgspec.structs.replace(self._job, worker=number, workers=self._count)
                self._order(number, Start(part, self._pace.speed))
            for number in range(self._count):
                match await self._next(number):
                    case Ready():
                        continue
                    case Failed(why):
                        raise WorkerError(why)
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
        if not line.endswith(b"\n"):  # none, or one that it was killed in
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

    async def play(self, begin: float, zero: float) -> list[SelfFigures]:
        self._pace.begin(begin)
        self._order_all(Begin(begin, zero))
        hearing = [asyncio.create_task(self._hear(number)) for number in range(self._count)]
        try:
            ended, going = await asyncio.wait(hearing, return_when=asyncio.FIRST_EXCEPTION)
            if going:  # the run cannot be whole any more, but what the others have counts
                self.stop()
                await asyncio.wait(going, timeout=STOP_TIMEOUT)
        finally:
            for task in hearing:
                task.cancel()
            await asyncio.wait(hearing)
        for task in ended:
            if (problem := task.exception()) is not None:
                raise problem
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


def secrets(access: Access) -> dict[str, str]:
    """For a child's environment; what is no secret is in its job."""
    key = {} if access.key is None else {API_KEY: access.key}
    return key | ({HEADERS: written(access.headers)} if access.headers else {})


def access_of(job: Job, environment: Mapping[str, str]) -> Access:
    """How a child is let in, by its own environment."""
    settings = job.settings
    headers = read_headers(environment.get(HEADERS, ""))
    return Access(environment.get(API_KEY), headers, settings.ca_file, settings.insecure)


def open_players(job: Job, take: Callable[[RequestRecord], None], pace: Pace, access: Access) -> Opened:
    """One process, or as many as the settings ask for, by `async with`.

    `take` gets every record. Raises as `Player`, and `WorkerError` if a process does not come up.
    """
    return (ThisProcess if job.settings.workers == 1 else Children)(job, take, pace, access)
