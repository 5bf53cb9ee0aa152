"""Tasks that go on together: where one fails, or whoever waits is cancelled, all of them end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


async def together(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all. Raises what the first that fails raises."""
    try:
        await asyncio.gather(*tasks)
    finally:
        await ended(tasks)


async def ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel all, and wait until they have ended, whatever came of them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
