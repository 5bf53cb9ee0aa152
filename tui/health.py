"""Whether the server still takes requests, asked while its engine is followed: one that stops answers all else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

EVERY = 2.0  # seconds


class HealthSource(Protocol):
    async def unready(self) -> str:
        """Raises nothing."""


class HealthReader:
    """Keeps what was told last: `unready` is why no requests are taken; empty while `is_live` says no."""

    def __init__(self, source: HealthSource, is_live: Callable[[], bool]) -> None:
        self.unready = ""
        self._source = source
        self._is_live = is_live

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(EVERY)

    async def read(self) -> None:
        """Ask once, if there is an engine to ask."""
        self.unready = await self._source.unready() if self._is_live() else ""
