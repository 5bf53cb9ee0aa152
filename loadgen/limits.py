"""What the client processes of a run share: how many requests may be in flight, and numbers that are given once.

Both are files without a name that the processes inherit. Nothing is split between them, so that none waits for what
another does not use, and nobody has to be asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import Protocol

import msgspec

_NUMBER = 8  # bytes
_NO_LIMIT = 2**31
_MOST_SLOTS = 2**16


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one run, and the descriptors of what processes share of them; None: there is no such limit.

    `budget` is the requests that are sent at most, `concurrency` those in flight. `taken` counts the sessions that
    users took. One process alone needs no descriptor for its slots.
    """

    budget: int | None = None
    concurrency: int | None = None
    sent: int
    taken: int
    slots: tuple[int, int] | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a process inherits."""
        return (self.sent, self.taken, *(self.slots or ()))

    def open_budget(self) -> Budget:
        """How many requests may be sent, in this process."""
        return Budget(None if self.budget is None else Tickets(self.sent, self.budget))

    def open_slots(self) -> Slots:
        """The slots, in this process."""
        if self.slots is not None:
            return SharedSlots(*self.slots)
        return asyncio.Semaphore(_NO_LIMIT if self.concurrency is None else self.concurrency)


@contextlib.contextmanager
def open_limits(budget: int | None, concurrency: int | None, processes: int) -> Iterator[Limits]:
    """Limits that so many processes can inherit while this lasts."""
    with contextlib.ExitStack() as files:
        sent, taken = (files.enter_context(_counter()) for _ in range(2))
        slots = None
        if concurrency is not None and processes > 1:
            slots = files.enter_context(_pipe_of(concurrency))
        yield Limits(budget=budget, concurrency=concurrency, sent=sent, taken=taken, slots=slots)


@contextlib.contextmanager
def _counter() -> Iterator[int]:
    """A file of one number, 0; in memory where the system can, for a disk may be full."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile(buffering=0) as file:
            yield file.fileno()
        return
    descriptor = os.memfd_create("loadgen")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _pipe_of(size: int) -> Iterator[tuple[int, int]]:
    """A pipe with a byte for each free slot: who takes one has the slot.

    It holds at least as many as there are ports for connections to one address.
    """
    reading, writing = os.pipe()
    try:
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        os.write(writing, bytes(min(size, _MOST_SLOTS)))
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


class Tickets:
    """Numbers from 0 on, each given once in whichever process asks; below `end`, if there is one."""

    def __init__(self, descriptor: int, end: int | None = None) -> None:
        self._descriptor, self._end = descriptor, end

    def take(self) -> int | None:
        """The next number; None if there is none."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)  # the kernel frees it when a process is killed
        try:
            number = int.from_bytes(os.pread(self._descriptor, _NUMBER, 0), "little")
            if self._end is not None and number >= self._end:
                return None
            os.pwrite(self._descriptor, (number + 1).to_bytes(_NUMBER, "little"), 0)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        return number


class Budget:
    """How many requests may still be sent."""

    def __init__(self, tickets: Tickets | None = None) -> None:
        """`tickets` has one for each; without it there is no end."""
        self._tickets = tickets
        self.over = False  # nothing more may be sent

    def take(self) -> bool:
        """Whether one more may be sent; if so it is counted."""
        if not self.over and self._tickets is not None and self._tickets.take() is None:
            self.over = True
        return not self.over

    def end(self) -> None:
        """Nothing more may be sent by this process."""
        self.over = True


class Slots(Protocol):
    """Of requests in flight. Who waits is served in turn, among those of one process."""

    async def acquire(self) -> object: ...

    def release(self) -> None: ...


class SharedSlots:
    """The slots that are bytes of a pipe, whose two ends are given."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for a slot."""
        if not self._waiting and self._taken():
            return
        slot = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().add_reader(self._reading, self._serve)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():  # it came, and nobody is there to use it
                self.release()
            raise

    def release(self) -> None:
        """Give one back, to whichever process comes first."""
        os.write(self._writing, b"\0")

    def _taken(self) -> bool:
        try:
            return bool(os.read(self._reading, 1))
        except BlockingIOError:
            return False

    def _serve(self) -> None:
        """Hand out what is free, in turn."""
        while self._waiting:
            if self._waiting[0].done():  # it was cancelled
                self._waiting.popleft()
            elif self._taken():
                self._waiting.popleft().set_result(None)
            else:
                return
        asyncio.get_running_loop().remove_reader(self._reading)
