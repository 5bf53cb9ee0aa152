"""One streaming chat completion at a time over a shared connection pool; records times, judges nothing.

The client never retries, and has no connection limit of its own. A chunk is not a token: tokens are the
server's `usage`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from loadgen.outcome import Outcome
from loadgen.sse import EventParser

CONNECT_TIMEOUT = 30.0  # seconds
_READ_BUFFER = 4 * 1024 * 1024  # the library's 64 KiB would pause fast streams
_DETAIL_LENGTH = 300

clock = time.monotonic


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = True


class ChatRequest(msgspec.Struct, frozen=True):
    """The body of a chat completion; `ignore_eos` (vLLM's extension) keeps the recorded answer length."""

    model: str
    messages: Sequence[Message]
    max_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool = True
    stream: bool = True
    stream_options: _StreamOptions = _StreamOptions()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


def reason(error: Exception) -> str:
    """What went wrong, in words: some of the library's exceptions have none."""
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


class StreamFailureError(Exception):
    """A response that is no complete answer."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome


@dataclass(slots=True)
class Response:
    """What one request brought so far, filled while the stream runs so that a failure keeps what came."""

    sent: float | None = None
    ended: float | None = None
    outcome: Outcome = Outcome.INTERRUPTED
    detail: str = ""
    chunks: list[float] = field(default_factory=list)
    usage: _Usage | None = None
    parts: list[str] = field(default_factory=list)
    finished: bool = False
    done: bool = False

    @property
    def text(self) -> str:
        return "".join(self.parts)


def open_http(api_key: str | None = None) -> aiohttp.ClientSession:
    """A connection pool without limit and without a time limit of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=2),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        read_bufsize=_READ_BUFFER,
    )


def _take_event(event: bytes, now: float, response: Response, on_chunk: Callable[[], None]) -> None:
    if event == b"[DONE]":
        response.done = True
        return
    try:
        chunk = _decode_chunk(event)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StreamFailureError(Outcome.BAD_STREAM, f"{error}: {event[:80]!r}") from None
    if chunk.error is not None:
        raise StreamFailureError(Outcome.SERVER_ERROR, _error_text(event))
    if chunk.usage is not None:
        response.usage = chunk.usage
    carries = False
    for choice in chunk.choices:
        delta = choice.delta
        if delta.content:
            response.parts.append(delta.content)
            carries = True
        carries = carries or bool(delta.reasoning or delta.reasoning_content or delta.tool_calls)
        response.finished = response.finished or choice.finish_reason is not None
    if carries:
        response.chunks.append(now)
        on_chunk()


def _error_text(body: bytes) -> str:
    """The server's own message from an OpenAI-style error body, else the start of the body."""
    try:
        error = msgspec.json.decode(body)["error"]
        text = str(error["message"] if isinstance(error, dict) and "message" in error else error)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        text = body.decode("utf-8", "replace").strip()
    return text[:_DETAIL_LENGTH]


async def _stream(
    http: aiohttp.ClientSession, url: str, body: bytes, response: Response, on_chunk: Callable[[], None]
) -> None:
    response.sent = clock()
    async with http.post(url, data=body, headers={"Content-Type": "application/json"}) as reply:
        if reply.status != 200:
            raise StreamFailureError(Outcome.HTTP_ERROR, f"{reply.status}: {_error_text(await reply.read())}")
        if reply.content_type != "text/event-stream":
            raise StreamFailureError(Outcome.BAD_STREAM, f"the answer is {reply.content_type}, not text/event-stream")
        parser = EventParser()
        try:
            async for received in reply.content.iter_any():
                now = clock()
                for event in parser.feed(received):
                    _take_event(event, now, response, on_chunk)
                if response.done:
                    return
        except aiohttp.ClientError as error:
            raise StreamFailureError(Outcome.CUT, reason(error)) from None
        if not response.finished:
            raise StreamFailureError(Outcome.CUT, "the stream ended before a finish_reason or [DONE]")


async def complete(
    http: aiohttp.ClientSession,
    url: str,
    request: ChatRequest,
    response: Response,
    timeout: float,
    on_chunk: Callable[[], None],
) -> None:
    """Send one request and follow its stream into `response`; ends with `response.outcome` set.

    `url` is the whole address, `timeout` the seconds from sending to the end of the answer. Cancelling
    leaves the outcome at interrupted.
    """
    body = _encode(request)
    try:
        async with asyncio.timeout(timeout):
            await _stream(http, url, body, response, on_chunk)
        response.outcome = Outcome.COMPLETED
    except StreamFailureError as error:
        response.outcome, response.detail = error.outcome, str(error)
    except TimeoutError as error:
        connecting = isinstance(error, aiohttp.ClientError)
        response.outcome = Outcome.CONNECTION if connecting else Outcome.TIMEOUT
        response.detail = str(error) if connecting else f"no complete answer after {timeout:g} s"
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
        response.outcome, response.detail = Outcome.CONNECTION, str(error)
    except (aiohttp.ClientError, OSError) as error:
        response.outcome, response.detail = Outcome.CUT, reason(error)
    finally:
        response.ended = clock()
