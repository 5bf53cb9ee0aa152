"""Keeps an engine core alive: when its process dies after it has served, another one is started in its place.

Deaths that follow each other closely wait longer and longer for the next start; the control in force is kept. One of
several engines is told of by its name.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import msgspec

from engine import log
from engine.config import EngineConfig
from engine.core_client import Core, CoreClient, CoreProcess, EngineDiedError
from engine.server.settings import Recovery
from engine.watchdog import COMPILE_SECONDS, GRACE

BACK_OFF = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # seconds before a start, by the deaths in a row before it
STEADY = 10.0  # seconds: an engine that has served for so long does not belong to the row


class Death(NamedTuple):
    """How an engine ended, when (Unix time), and how many have so far."""

    reason: str
    unix: float
    number: int


class CannotStart(Exception):
    """No engine can be started now; the message tells a person why. Another time it may be possible."""


class GaveUp(Exception):
    """The engine cannot be kept alive; `unusable` is a setting that no start can serve with."""

    def __init__(self, message: str, *, unusable: bool) -> None:
        super().__init__(message)
        self.unusable = unusable


class Supervisor:
    """One core after the other: `serve` serves with a process until it is dead, and returns the client that it had.

    `first` is there already, for it takes longest to start; `start` makes another, in a thread: it may wait.
    """

    def __init__(
        self,
        config: EngineConfig,
        recovery: Recovery,
        first: Core,
        serve: Callable[[Core], Awaitable[CoreClient]],
        start: Callable[[EngineConfig], Core] = CoreProcess,
    ) -> None:
        self._config = config
        self._recovery = recovery
        self._serve = serve
        self._start = start
        self.core = first  # the newest
        self.last: Death | None = None
        self._ending = False

    def end(self) -> None:
        """Start nothing from now on; `run` returns at the next death."""
        self._ending = True

    def go_on(self) -> None:
        """Start others again, after `end`. Of no use after a death."""
        self._ending = False

    @property
    def deaths(self) -> int:
        return 0 if self.last is None else self.last.number

    async def run(self) -> None:
        """Until a death after `end`, or until it is cancelled. Raises GaveUp."""
        in_a_row = failed_starts = 0
        while True:
            client = await self._serve(self.core)
            death = client.death
            assert death is not None, "a core's client ends with its core"
            if self._ending:
                return
            has_served = client.info is not None
            is_steady = client.info is not None and time.monotonic() - client.info.started >= STEADY
            in_a_row = 1 if is_steady else in_a_row + 1
            failed_starts = 0 if has_served else failed_starts + 1
            if client.in_force is not None:
                self._config = msgspec.structs.replace(self._config, control=client.in_force.control)
            if client.kv_events is not None:  # subscribers come back to the port that was free at first
                self._config = msgspec.structs.replace(self._config, kv_events=client.kv_events)
            while True:
                self.last = Death(str(death), time.time(), self.deaths + 1)
                self._give_up(death, has_served, failed_starts)
                wait = BACK_OFF[min(in_a_row, len(BACK_OFF)) - 1]
                message = f"{self._told(death)}; another one is started{f' in {wait:g} s' if wait else ''}"
                log.say(message, level=logging.ERROR, name="engine_died", deaths=self.deaths, wait=wait)
                await asyncio.sleep(wait)
                if self._ending:
                    return
                try:
                    config = msgspec.structs.replace(self._config, restarts=self.deaths)
                    self.core = await started(partial(self._start, config))
                    break
                except (OSError, CannotStart) as error:  # no memory or no number for a process, perhaps for the moment
                    death = EngineDiedError(f"the engine process cannot be started: {error}")
                    has_served, in_a_row, failed_starts = False, in_a_row + 1, failed_starts + 1

    def _give_up(self, death: EngineDiedError, has_served: bool, failed_starts: int) -> None:
        most = self._recovery.max_restarts
        told = self._told(death)
        if (self.deaths == 1 and not has_served) or most == 0:
            raise GaveUp(told, unusable=death.unusable)
        if failed_starts >= most:
            raise GaveUp(f"{told}; {failed_starts} starts in a row failed (--max-restarts {most})", unusable=False)

    def _told(self, death: EngineDiedError) -> str:
        return f"{self._config.name}: {death}" if self._config.name else str(death)


def silence(config: EngineConfig) -> float:
    """Seconds after which a core that says nothing is taken to be stopped: it ends steps that hang itself, before."""
    return max(config.step_timeout, COMPILE_SECONDS) + 2 * GRACE if config.step_timeout else 0.0


async def started(start: Callable[[], Core]) -> Core:
    """What `start` makes, in a thread of its own: it may wait for long, and others need those of the event loop.
    Whoever is cancelled meanwhile leaves no core behind."""
    starting: Future[Core] = Future()
    starting.set_running_or_notify_cancel()  # to be waited for no more is not to be called off

    def begin() -> None:
        try:
            starting.set_result(start())
        except BaseException as error:
            starting.set_exception(error)

    threading.Thread(target=begin, name="start", daemon=True).start()
    try:
        return await asyncio.wrap_future(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_stop)
        raise


def _stop(starting: Future[Core]) -> None:
    if starting.exception() is None:
        starting.result().stop(0)
