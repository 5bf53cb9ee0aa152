"""Waiting for what comes by itself, without a guess at how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Until it is true. Raises TimeoutError where it never is."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
