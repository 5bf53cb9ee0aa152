"""Connections before and between requests: how many there may be, and how long each may take."""

from __future__ import annotations

import socket

from aiohttp import web

from engine.server.settings import Limits


async def listen(runner: web.AppRunner, listener: socket.socket, limits: Limits) -> None:
    """Serve on a bound socket; `runner.cleanup` ends it."""
    await web.SockSite(runner, listener).start()
