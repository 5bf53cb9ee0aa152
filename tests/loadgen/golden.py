"""A golden server: an OpenAI-compatible double whose token counts and send times are exactly known.

`python tests/loadgen/golden.py --port 0` serves it in a process of its own: it prints its address, answers every
request with `max_tokens` tokens, and tells at GET /golden/served what it did and when.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from aiohttp import web

clock = time.monotonic


@dataclass(frozen=True)
class Write:
    """One network write `delay` seconds after the one before was due; `content`: it completes a chunk with content."""

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
    """How one request is answered: with `steps`, or whole with `body`; `dropped`: not even a status comes."""

    steps: Sequence[Write | Stall | Cut] = ()
    status: int = 200
    body: dict[str, Any] | None = None
    content_type: str = "text/event-stream"
    before_headers: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)
    dropped: bool = False


def event(payload: dict[str, Any] | str) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def chunk(
    delta: dict[str, Any] | None = None, finish: str | None = None, index: int = 0, **more: Any
) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": index, "delta": delta, "finish_reason": finish}]
    return {"id": "x", "object": "chat.completion.chunk", "choices": choices, **more}


def role(delay: float = 0.0) -> Write:
    return Write(event(chunk({"role": "assistant", "content": ""})), delay)


@lru_cache
def text(content: str, delay: float = 0.0, index: int = 0) -> Write:
    return Write(event(chunk({"content": content}, index=index)), delay, content=bool(content))


@lru_cache
def completion_text(content: str, delay: float = 0.0) -> Write:
    """A chunk of /v1/completions."""
    choice = {"index": 0, "text": content, "logprobs": None, "finish_reason": None}
    return Write(event({"id": "x", "object": "text_completion", "choices": [choice]}), delay, content=bool(content))


def finish(delay: float = 0.0, index: int = 0) -> Write:
    return Write(event(chunk({}, "length", index)), delay)


def token_counts(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """A `usage`."""
    told: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    return told if cached is None else {**told, "prompt_tokens_details": {"cached_tokens": cached}}


def usage(prompt: int, completion: int, delay: float = 0.0, cached: int | None = None) -> Write:
    return Write(event(chunk(usage=token_counts(prompt, completion, cached))), delay)


def done(delay: float = 0.0) -> Write:
    return Write(event("[DONE]"), delay)


def answer(words: Sequence[str], gap: float = 0.0, first: float = 0.0, prompt: int = 7) -> Script:
    """A well-behaved answer, one token a chunk."""
    chunks = [text(word, gap if index else first) for index, word in enumerate(words)]
    return Script([role(), *chunks, finish(), usage(prompt, len(words)), done()])


def whole(content: str, prompt: int = 7, completion: int = 3) -> Script:
    """An answer in one piece."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "length"}
    return Script(body={"object": "chat.completion", "choices": [choice], "usage": token_counts(prompt, completion)})


def prompt_of(body: dict[str, Any]) -> str:
    """The text that a request ends with."""
    return str(body["messages"][-1]["content"] if "messages" in body else body["prompt"])


@dataclass
class Served:
    """What the server saw and did for one request, on the same monotonic clock as the client's."""

    path: str
    body: dict[str, Any]
    received: float
    content_times: list[float] = field(default_factory=list)
    ended: float = 0.0
    request_id: str | None = None


class Noting(asyncio.Protocol):
    """Notes when a request's last bytes came, before anything is done with them: a server's own work is its latency."""

    def __init__(self, handler: asyncio.Protocol) -> None:
        self.received = 0.0
        self._handler = handler
        self.connection_made = handler.connection_made  # type: ignore[method-assign]
        self.connection_lost = handler.connection_lost  # type: ignore[method-assign]
        self.eof_received = handler.eof_received  # type: ignore[method-assign]
        self.pause_writing = handler.pause_writing  # type: ignore[method-assign]
        self.resume_writing = handler.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        self.received = clock()
        self._handler.data_received(data)


class GoldenServer:
    """`async with GoldenServer(script_of) as server: server.url`; `script_of` maps a request body to a script.

    With `api_key` it answers 401 to whoever has another.
    """

    def __init__(self, script_of: Callable[[dict[str, Any]], Script], api_key: str | None = None) -> None:
        self._script_of = script_of
        self._api_key = api_key
        self.served: list[Served] = []
        self.connections: set[object] = set()
        self.in_flight = 0
        self.peak_in_flight = 0
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self._complete)
        self.app.router.add_post("/v1/completions", self._complete)
        self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_get("/golden/served", self._tell)

    async def start(self, port: int = 0) -> None:
        self._runner = web.AppRunner(self.app, shutdown_timeout=0.2, access_log=None)
        await self._runner.setup()
        handlers = self._runner.server
        assert handlers is not None
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: Noting(handlers()), "127.0.0.1", port, backlog=4096)
        self.url = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> GoldenServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "golden", "object": "model"}]})

    async def _tell(self, _: web.Request) -> web.Response:
        """Everything served since the last time it was asked."""
        told = [{**asdict(served), "body": None, "prompt": prompt_of(served.body)} for served in self.served]
        peak, self.peak_in_flight = self.peak_in_flight, self.in_flight
        self.served = []
        return web.json_response({"served": told, "peak_in_flight": peak})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        assert request.transport is not None
        connection = request.transport.get_protocol()
        assert isinstance(connection, Noting)
        served = Served(request.path, json.loads(body), connection.received)
        served.request_id = request.headers.get("X-Request-Id")
        self.served.append(served)
        self.connections.add(connection)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            if self._api_key is not None and request.headers.get("Authorization") != f"Bearer {self._api_key}":
                return web.json_response({"error": {"message": "Incorrect API key", "code": 401}}, status=401)
            return await self._answer(request, self._script_of(served.body), served)
        finally:
            self.in_flight -= 1
            served.ended = clock()

    async def _answer(self, request: web.Request, script: Script, served: Served) -> web.StreamResponse:
        if script.before_headers:
            await asyncio.sleep(script.before_headers)
        if script.dropped:
            return _drop(request, web.Response())
        if script.body is not None:
            if script.status == 200:
                served.content_times.append(clock())
            return web.json_response(script.body, status=script.status, headers=script.headers)
        headers = {"Content-Type": script.content_type, **script.headers}
        reply = web.StreamResponse(status=script.status, headers=headers)
        await reply.prepare(request)
        due = clock()
        for step in script.steps:
            if isinstance(step, Stall):
                await asyncio.sleep(3600)
            elif isinstance(step, Cut):
                return _drop(request, reply)
            else:
                due += step.delay  # from when it was due, not from when it was late: gaps do not add up
                if (left := due - clock()) > 0:
                    await asyncio.sleep(left)
                if step.content:
                    served.content_times.append(clock())
                await reply.write(step.payload)
        await reply.write_eof()
        return reply


def _drop(request: web.Request, reply: web.StreamResponse) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return reply


def as_asked(first: float, gap: float, per_chunk: int = 1) -> Callable[[dict[str, Any]], Script]:
    """Scripts that answer `max_tokens` tokens, `per_chunk` in a chunk, the first after `first` seconds. A word of the
    prompt's last message is a token."""

    def script_of(body: dict[str, Any]) -> Script:
        tokens, prompt = int(body["max_tokens"]), len(prompt_of(body).split())
        sizes = [per_chunk] * (tokens // per_chunk) + [tokens % per_chunk] * bool(tokens % per_chunk)
        if not body.get("stream"):
            told = whole(" word" * tokens, prompt, tokens)
            return replace(told, before_headers=first + gap * (len(sizes) - 1))
        word = text if "messages" in body else completion_text
        chunks = [word(" word" * size, gap if index else first) for index, size in enumerate(sizes)]
        return Script([role(), *chunks, finish(), usage(prompt, tokens), done()])

    return script_of


async def serve(port: int, script_of: Callable[[dict[str, Any]], Script]) -> None:
    """Until the process is ended."""
    gc.disable()  # a collection is a pause between two writes
    server = GoldenServer(script_of)
    await server.start(port)
    print(server.url, flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first", type=float, default=0.02, help="seconds to the first token")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between chunks")
    parser.add_argument("--per-chunk", type=int, default=1, help="tokens in a chunk")
    options = parser.parse_args()
    asyncio.run(serve(options.port, as_asked(options.first, options.gap, options.per_chunk)))


if __name__ == "__main__":
    main()
