"""A serving engine as it looks from outside, for tests: real HTTP on 127.0.0.1, with pages from `pages`.

`python -m tests.servers.stand_in --count 10 --bulk 800` serves busy ones until interrupted, and prints their addresses.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from aiohttp import web

from tests.servers.pages import KINDS, EngineFigures, Kind, page

# hang: no answer; drip: a few bytes a second; cut: half a page, then the connection ends; endless: a page that goes on
# for ever; moved: a redirect; none: 404, as where metrics are not switched on.
Mode = Literal[
    "ok", "hang", "drip", "cut", "unready", "locked", "garbage", "binary", "endless", "moved", "none", "html"
]

OWNERS = {"paged-engine": "paged-top", "vllm": "vllm", "vllm-v0": "vllm", "sglang": "sglang", "llama.cpp": "llamacpp",
          "tensorrt-llm": "tensorrt_llm"}  # fmt: skip
VERSIONS = {"paged-engine": "/version", "vllm": "/version", "vllm-v0": "/version", "sglang": "/get_server_info",
            "tgi": "/info", "tensorrt-llm": "/version", "llama.cpp": "/props"}  # fmt: skip


class StandIn:
    """A server of `kind` with these engines, on a free port. Change its attributes while it runs.

    `mode`: of its metrics alone; `edit`: what becomes of a page before it is sent; `advance`: called before each page
    with the seconds since the last one; `moved_to`: the address that a redirect leads to; `slots`: rows of llama.cpp's
    /slots, None: there is none (501); `words`: what /detokenize makes of token ids, None: there is none, or `wordless`
    is the status of its answers. `detokenized`: the bodies of these questions.
    `asked`: the paths of all requests, in order; `most_at_once`: requests that were being answered together.
    """

    def __init__(
        self,
        kind: Kind = "vllm",
        engines: Sequence[EngineFigures] | None = None,
        *,
        key: str | None = None,
        version: str = "1.2.3",
        tls: ssl.SSLContext | None = None,
        bulk: int = 0,
        zipped: bool = True,
    ) -> None:
        self.kind = kind
        self.engines = list(engines) if engines is not None else [EngineFigures()]
        self.key = key
        self.version = version
        self.bulk = bulk
        self.zipped = zipped  # where the client takes it
        self.mode: Mode = "ok"
        self.moved_to = "https://elsewhere.example"
        self.slots: list[dict[str, Any]] | None = None
        self.words: Callable[[Sequence[int]], object] | None = None
        self.wordless = 404
        self.detokenized: list[dict[str, Any]] = []
        self.edit: Callable[[str], str] = lambda text: text
        self.advance: Callable[[EngineFigures, float], None] | None = None
        self.ready_made: Callable[[], bytes] | None = None  # gzip, told instead of a page of its own
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []  # of the same requests
        self.most_at_once = 0
        self._at_once = 0
        self._tls = tls
        self._port = 0
        self._last: float | None = None
        self._runner: web.AppRunner | None = None

    @property
    def engine(self) -> EngineFigures:
        """The one, where there is one."""
        (engine,) = self.engines
        return engine

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def path(self) -> str:
        """Where its metrics are."""
        return "/prometheus/metrics" if self.kind == "tensorrt-llm" else "/metrics"

    @property
    def metrics_asked(self) -> int:
        return self.asked.count(self.path)

    def restart(self) -> None:
        """Its process is a new one: every counter begins at 0."""
        for engine in self.engines:
            engine.restart()

    async def start(self) -> None:
        """Listen; after `stop` on the port it had."""
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Nothing answers any more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        self.headers.append(dict(request.headers))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            known = self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}"
            if not known and request.path != "/health":
                return web.json_response({"error": {"message": "a key is needed"}}, status=401)
            if request.path == self.path:
                return await self._metrics(request)
            if request.path == "/detokenize" and request.method == "POST":
                return self._detokenize(await request.json())
            return self._other(request.path)
        finally:
            self._at_once -= 1

    def _other(self, path: str) -> web.Response:
        if path == "/health":
            return web.json_response({"status": "ok"})
        if path == "/v1/models" and self.kind != "triton":
            models = dict.fromkeys(engine.model for engine in self.engines)
            owner = OWNERS.get(self.kind, self.kind)
            return web.json_response(
                {"object": "list", "data": [{"id": name, "object": "model", "owned_by": owner} for name in models]}
            )
        if path == VERSIONS.get(self.kind):
            name = "build_info" if self.kind == "llama.cpp" else "version"
            return web.json_response({name: self.version, "other": 1})
        if path == "/slots" and self.kind == "llama.cpp":
            if self.slots is None:
                return web.json_response({"error": {"message": "start the server with --slots"}}, status=501)
            return web.json_response(self.slots)
        return web.json_response({"detail": "Not Found"}, status=404)

    def _detokenize(self, body: dict[str, Any]) -> web.Response:
        """As vLLM and SGLang do, whose names for the text differ."""
        self.detokenized.append(body)
        if self.words is None:
            return web.json_response({"detail": "Not Found"}, status=self.wordless)
        return web.json_response({"text" if self.kind == "sglang" else "prompt": self.words(body["tokens"])})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        now = time.monotonic()
        if self.advance is not None and self._last is not None:
            for engine in self.engines:
                self.advance(engine, now - self._last)
        self._last = now
        match self.mode:
            case "unready":
                return web.Response(status=503, text="the model is loading")
            case "locked":
                return web.json_response({"error": {"message": "not allowed"}}, status=403)
            case "none":
                return web.json_response({"detail": "Not Found"}, status=404)
            case "moved":
                return web.Response(status=307, headers={"Location": f"{self.moved_to}/metrics"})
            case "html":
                return web.Response(text="<html><body>It works!</body></html>", content_type="text/html")
            case "hang":
                await asyncio.Event().wait()
        if self.ready_made is not None:
            headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Content-Encoding": "gzip"}
            return web.Response(body=self.ready_made(), headers=headers)
        text = self.edit(page(self.kind, self.engines, self.bulk))
        if self.mode == "garbage":
            text = text.replace("} ", "} many ").replace("_total ", "_total lots ")
        data = text.encode()
        if self.mode == "binary":
            data = bytes(range(256)) * 4
        if self.mode in ("drip", "endless", "cut"):
            return await self._slowly(request, data)
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        if self.zipped and "gzip" in request.headers.get("Accept-Encoding", ""):
            data, headers["Content-Encoding"] = gzip.compress(data, 1), "gzip"
        return web.Response(body=data, headers=headers)

    async def _slowly(self, request: web.Request, data: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        if self.mode == "endless":
            while True:
                await response.write(b"vllm:num_requests_running 1.0\n" * 10_000)
        if self.mode == "cut":
            await response.write(data[: len(data) // 2])
            if request.transport is not None:
                request.transport.abort()
            return response
        for start in range(0, len(data), 10):
            await response.write(data[start : start + 10])
            await asyncio.sleep(0.1)
        return response


def busy(engine: EngineFigures, seconds: float) -> None:
    """Ten requests a second, and gauges that move: for `advance`."""
    requests = max(1, round(10 * seconds))
    engine.serve(requests, prompt=512, generated=64, cached=256)
    engine.running = 8 + engine.requests % 5
    engine.waiting = engine.requests % 3
    engine.kv_usage = 0.2 + engine.requests % 50 / 100


class Alike:
    """A page of a busy server that many tell, made once a second: a thousand of their own take more than a core."""

    def __init__(self, kind: Kind, bulk: int) -> None:
        self._kind, self._bulk, self._engine = kind, bulk, EngineFigures()
        self._made = (time.monotonic() - 1, b"")

    def __call__(self) -> bytes:
        now, (then, data) = time.monotonic(), self._made
        if now - then >= 1:
            busy(self._engine, now - then)
            data = gzip.compress(page(self._kind, [self._engine], self._bulk).encode(), 1)
            self._made = now, data
        return data


async def _serve(options: argparse.Namespace) -> None:
    servers = []
    alike = Alike(options.kind, options.bulk) if options.alike else None
    for number in range(options.count):
        server = StandIn(options.kind, [EngineFigures(rank=str(rank)) for rank in range(options.engines)])
        server.bulk, server.advance = options.bulk, busy
        server.ready_made = alike
        server.mode = "hang" if number < options.hanging else "ok"
        await server.start()
        servers.append(server)
        print(server.url, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve stand-ins until interrupted; their addresses are printed.")
    parser.add_argument("--kind", choices=KINDS, default="vllm")
    parser.add_argument("--count", type=int, default=1, help="servers")
    parser.add_argument("--hanging", type=int, default=0, help="of them, those whose /metrics never answers")
    parser.add_argument("--alike", action="store_true", help="all tell one page, which is made once a second")
    parser.add_argument("--engines", type=int, default=1, help="data-parallel engines of each")
    parser.add_argument("--bulk", type=int, default=800, help="lines that nobody reads")
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
