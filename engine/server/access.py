"""Who may call a route: keys, and what browsers say of where they come from."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from engine.server.routes import Handler, Route
from engine.server.settings import Access

_KEY = "client"


def client_name(request: web.Request) -> str:
    """Whose request it is: a digest of its key, or its address. Never the key itself."""
    name: str | None = request.get(_KEY)
    return name if name is not None else request.remote or ""


class Gate:
    """Decides who may pass."""

    def __init__(self, access: Access, routes: Sequence[Route]) -> None:
        self._access = access
        self._routes = routes

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        return await handler(request)
