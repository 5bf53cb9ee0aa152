"""`/engine/loads`: load generators tell of their runs here, so that whoever watches the engine sees them too.

The engine makes nothing of it: the core hears none of this.
"""

from __future__ import annotations

import re

from aiohttp import web

from engine.protocol import LoadRun, encode
from engine.server.errors import ApiError
from engine.server.load_board import MAX_LOADS, BoardFull, LoadBoard
from engine.server.parsing import parse
from engine.server.service import Service

MAX_BYTES = 16 * 1024  # of what a load tells
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class LoadRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._board = LoadBoard()

    async def loads(self, request: web.Request) -> web.Response:
        """All loads that told of themselves within the last seconds."""
        self._service.ready()
        return web.Response(body=encode(self._board.live()), content_type="application/json")

    async def put(self, request: web.Request) -> web.Response:
        """Take what a load generator tells of its run, under an id of its own choice; it stands for ten seconds."""
        self._service.ready()
        load = request.match_info["id"]
        if _ID.fullmatch(load) is None:
            raise ApiError(f"id: must be 1 to 64 of A-Z a-z 0-9 . _ -, got {load[:100]!r}", param="id")
        run = parse(await self._service.bodies.read(request, MAX_BYTES), LoadRun)
        try:
            self._board.put(load, run)
        except BoardFull:
            what = f"{MAX_LOADS} loads are told of already; more are not taken"
            raise ApiError(what, status=429, param="id", code="too_many_loads") from None
        return web.Response(status=204)

    async def drop(self, request: web.Request) -> web.Response:
        """Forget a load: its run is over."""
        self._service.ready()
        load = request.match_info["id"]
        if not self._board.drop(load):
            raise ApiError(f"id: no load {load[:100]!r}", status=404, param="id", code="load_not_found")
        return web.Response(status=204)
