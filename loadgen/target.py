"""Where requests go, and how a run is changed from outside while it goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from rich.console import Console

from loadgen.engine_process import EngineProcess
from loadgen.keys import NO_KEYS, Keys
from loadgen.played import survey_aside
from loadgen.settings import Settings


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go; `engine` is the process behind it if loadgen started it."""

    url: str
    engine: EngineProcess | None = None
    keys: Keys = NO_KEYS


@contextlib.asynccontextmanager
async def open_target(settings: Settings, console: Console, keys: Keys = NO_KEYS) -> AsyncIterator[Target]:
    """The server that the settings name, or an engine that lives as long as this.

    Raises `EngineStartError`, and `TraceError` before an engine is started for a trace that cannot be played.
    """
    if settings.url is not None:
        yield Target(settings.url, keys=keys.at(settings.url))
        return

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    await survey_aside(settings, None, say)
    async with EngineProcess(settings.engine_args, say) as engine:
        yield Target(engine.url, engine, keys)


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
