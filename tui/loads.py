"""What load generators tell the engine of their runs, asked for while this screen is attached to it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from engine.protocol import LiveLoad
from tui.engine_api import Missing, NotAnEngine, Unreachable

EVERY = 1.0  # seconds; they tell no more often


class LoadSource(Protocol):
    async def loads(self) -> tuple[LiveLoad, ...]:
        """Raises Missing, Unreachable or NotAnEngine."""


class LoadReader:
    """Keeps what was told last: `loads` in the order in which they began, none while the engine does not answer."""

    def __init__(self, source: LoadSource) -> None:
        self.loads: tuple[LiveLoad, ...] = ()
        self._source = source

    async def run(self) -> None:
        """Ask until cancelled; an engine that takes no word of loads is asked once."""
        with suppress(Missing):
            while True:
                await self.read()
                await asyncio.sleep(EVERY)

    async def read(self) -> None:
        """Ask once. Raises Missing where the engine takes no word of loads."""
        told: tuple[LiveLoad, ...] = ()
        with suppress(Unreachable, NotAnEngine):
            told = await self._source.loads()
        self.loads = told
