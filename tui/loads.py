"""What load generators tell the engine of their runs, asked for while this screen is attached to it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from engine.protocol import LiveLoad
from tui.engine_api import Locked, Missing, NotAnEngine, Unreachable

EVERY = 1.0  # seconds; they tell no more often
LOCKED_AGAIN = 2.0  # seconds before an engine that refuses the key is asked again


class LoadSource(Protocol):
    async def loads(self) -> tuple[LiveLoad, ...]:
        """Raises Missing, Unreachable or NotAnEngine."""


class LoadReader:
    """Keeps what was told last: `loads` in the order in which they began, none while the engine does not answer."""

    def __init__(self, source: LoadSource) -> None:
        self.loads: tuple[LiveLoad, ...] = ()
        self._source = source
        self._locked = False

    async def run(self) -> None:
        """Ask until cancelled; an engine that takes no word of loads is asked once, one that wants a key rarely."""
        with suppress(Missing):
            while True:
                await self.read()
                await asyncio.sleep(LOCKED_AGAIN if self._locked else EVERY)

    async def read(self) -> None:
        """Ask once. Raises Missing where the engine takes no word of loads."""
        told: tuple[LiveLoad, ...] = ()
        self._locked = False
        try:
            told = await self._source.loads()
        except Locked:
            self._locked = True
        except (Unreachable, NotAnEngine):
            pass
        self.loads = told
