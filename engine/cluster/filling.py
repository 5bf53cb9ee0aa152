"""Blocks of another host on their way to an engine, and what is done when nobody tells whether they have come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from engine import log

OVERDUE = 3.0  # times `transfer_seconds`: they are for the reading, and again for the writing
_log = logging.getLogger(__name__)


async def filled(fill: Coroutine[Any, Any, str], seconds: float, what: str, overdue: Callable[[str], None]) -> str:
    """What went wrong with filling an engine's blocks, or "": only then may it use them, for this or anything else.

    `fill` says itself what takes longer than `seconds` to read or to write. Where it says nothing at all, whoever waits
    for the blocks goes on without them: `overdue` is told why, once. They are kept until `fill` ends.
    """
    filling = asyncio.ensure_future(fill)
    try:
        await asyncio.wait((filling,), timeout=OVERDUE * seconds)
        if not filling.done():
            why = f"nobody has told for {OVERDUE * seconds:g} s whether {what} came"
            log.event(_log, logging.WARNING, "transfer_overdue", why)
            overdue(why)
        return await filling
    except Exception as failure:  # whatever it is, the engine waits to hear of it
        return f"{type(failure).__name__}: {failure}"
    finally:
        filling.cancel()
