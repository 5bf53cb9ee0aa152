"""A golden server: an OpenAI-compatible double whose token counts and send times are exactly known."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

clock = time.monotonic


@dataclass(frozen=True)
class Write:
    """One network write after a delay; `content` says that it completes a chunk that carries content."""

    payload: bytes
    delay: float = 0.0
    content: bool = False


@dataclass(frozen=True)
class Stall:
    """Send nothing more until the client goes away."""


@dataclass(frozen=True)
class Cut:
    """Drop the connection."""


@dataclass(frozen=True)
class Script:
    """How one request is answered."""

    steps: Sequence[Write | Stall | Cut] = ()
    status: int = 200
    body: dict[str, Any] | None = None
    content_type: str = "text/event-stream"
    before_headers: float = 0.0


def event(payload: dict[str, Any] | str) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "x", "object": "chat.completion.chunk", "choices": choices, **more}


def role(delay: float = 0.0) -> Write:
    return Write(event(chunk({"role": "assistant", "content": ""})), delay)


def text(content: str, delay: float = 0.0) -> Write:
    return Write(event(chunk({"content": content})), delay, content=True)


def finish(delay: float = 0.0) -> Write:
    return Write(event(chunk({}, "length")), delay)


def usage(prompt: int, completion: int, delay: float = 0.0) -> Write:
    told = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return Write(event(chunk(usage=told)), delay)


def done(delay: float = 0.0) -> Write:
    return Write(event("[DONE]"), delay)


def answer(words: Sequence[str], gap: float = 0.0, first: float = 0.0, prompt: int = 7) -> Script:
    """A well-behaved answer, one token a chunk."""
    chunks = [text(word, gap if index else first) for index, word in enumerate(words)]
    return Script([role(), *chunks, finish(), usage(prompt, len(words)), done()])


@dataclass
class Served:
    """What the server saw and did for one request, on the same monotonic clock as the client's."""

    body: dict[str, Any]
    received: float
    content_times: list[float] = field(default_factory=list)
    ended: float = 0.0


class GoldenServer:
    """`async with GoldenServer(script_of) as server: server.url`; `script_of` maps a request body to a script."""

    def __init__(self, script_of: Callable[[dict[str, Any]], Script]) -> None:
        self._script_of = script_of
        self.served: list[Served] = []
        self.in_flight = 0
        self.peak_in_flight = 0
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self._complete)
        self.app.router.add_get("/v1/models", self._models)

    async def __aenter__(self) -> GoldenServer:
        self._runner = web.AppRunner(self.app, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "golden", "object": "model"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        served = Served(await request.json(), clock())
        self.served.append(served)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            return await self._answer(request, self._script_of(served.body), served)
        finally:
            self.in_flight -= 1
            served.ended = clock()

    async def _answer(self, request: web.Request, script: Script, served: Served) -> web.StreamResponse:
        await asyncio.sleep(script.before_headers)
        if script.body is not None:
            return web.json_response(script.body, status=script.status)
        reply = web.StreamResponse(status=script.status, headers={"Content-Type": script.content_type})
        await reply.prepare(request)
        for step in script.steps:
            if isinstance(step, Stall):
                await asyncio.sleep(3600)
            elif isinstance(step, Cut):
                assert request.transport is not None
                request.transport.abort()
                return reply
            else:
                await asyncio.sleep(step.delay)
                if step.content:
                    served.content_times.append(clock())
                await reply.write(step.payload)
        await reply.write_eof()
        return reply
