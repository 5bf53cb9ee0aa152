"""`--web`: the screen in a browser, through textual-serve: each page is a paged-top of its own on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tui.hosts import is_beyond_loopback, is_loopback, name_in

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Handler, Middleware

STOP_SECONDS = 5.0  # for the pages' programs, when the server ends
FONT_SIZE = 16  # pixels
_FROM_THE_NET = re.compile(r'<link[^>]*href="https?://[^>]*>')  # a font; what is served here asks nobody else
_FOCUS = '<script>addEventListener("load", () => document.querySelector(".xterm-helper-textarea").focus())</script>'


class NoWeb(Exception):
    """It cannot be served; the message says why."""


async def serve(host: str, port: int, names: Collection[str], started: Callable[[], Awaitable[Sequence[str]]]) -> None:
    """Serve until interrupted. Raises NoWeb, and what `started` raises.

    `names`: what browsers may call this server on loopback, besides that. `started` is awaited once the address is
    ours; it gives the arguments of the paged-top that each page starts.
    """
    if find_spec("textual_serve") is None:
        raise NoWeb("it needs the package textual-serve: pip install textual-serve")
    from aiohttp import web

    pages = _Pages()
    app = web.Application()
    if not is_beyond_loopback(host):
        app.middlewares.append(_only_named(names))
    app.add_routes([web.get("/", pages.page), web.get("/ws", pages.screen), web.static("/static", pages.statics)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, UnicodeError) as error:
            raise NoWeb(f"{host}:{port}: {_why(error)}") from None
        pages.arguments = await started()
        print(f"paged-top: http://{_in_url(host)}:{port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        over = asyncio.Event()
        for sign in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(sign, over.set)
        await over.wait()
    finally:
        await pages.close()
        await runner.cleanup()


class _Pages:
    """The pages that are open. `arguments` are those of their programs; empty until they are known."""

    def __init__(self) -> None:
        import textual_serve.server
        from jinja2 import Template

        self.arguments: Sequence[str] = ()
        folder = Path(textual_serve.server.__file__).parent
        self.statics = folder / "static"
        text = _FROM_THE_NET.sub("", (folder / "templates" / "app_index.html").read_text(encoding="utf-8"))
        self._template = Template(text.replace("</body>", f"{_FOCUS}</body>"), autoescape=True)
        self._open: set[asyncio.Task[object]] = set()

    async def page(self, request: web.Request) -> web.Response:
        """The page, whose addresses are of the host that the browser knows."""
        from aiohttp import web

        text = self._template.render(
            font_size=FONT_SIZE,
            app_websocket_url=f"{'wss' if _is_secure(request) else 'ws'}://{request.host}/ws",
            config={"static": {"url": "/static/"}},
            application={"name": "paged-top"},
        )
        return web.Response(text=text, content_type="text/html")

    async def screen(self, request: web.Request) -> web.StreamResponse:
        """One page's screen and keys, as long as it is open. Pages of other sites may not press keys here."""
        from aiohttp import web
        from textual_serve.server import Server

        origin = request.headers.get("Origin", "").partition("://")[2]
        if origin not in ("", request.host):
            raise web.HTTPForbidden(text=f"this page is of {origin}, not of {request.host}\n")
        if not self.arguments:
            raise web.HTTPServiceUnavailable(text="the engine is not up yet\n")
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            # Without `exec` a shell stands between, which would outlive this program.
            return await Server(f"exec {shlex.join(self.arguments)}").handle_websocket(request)
        finally:
            self._open.discard(task)

    async def close(self) -> None:
        """End the pages' programs, and wait for them a little."""
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=STOP_SECONDS)


def _only_named(names: Collection[str]) -> Middleware:
    """Keep out a page that makes its own name point to this machine: it names itself in `Host`."""
    from aiohttp import web

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host")
        if host is None or is_loopback(name := name_in(host)) or name in names:
            return await handler(request)
        raise web.HTTPForbidden(
            text=f"{ascii(name)[1:-1]} is no name of this server; --web-name at its start sets one\n"
        )

    return check


def _is_secure(request: web.Request) -> bool:
    """Whether the browser asked by https: a proxy in front tells."""
    return request.secure or request.headers.get("X-Forwarded-Proto") == "https"


def _why(error: Exception) -> str:
    """Why an address cannot be had, without the address."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno).lower()
    return str(getattr(error, "strerror", None) or error).lower()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
