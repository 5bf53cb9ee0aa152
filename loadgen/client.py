"""One completion at a time over a shared connection pool; records times, judges nothing.

The client has no connection limit of its own, and tries again only where it is told to. A chunk is not a token:
tokens are the server's `usage`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from loadgen.access import ANYBODY, OWN, Access, hidden
from loadgen.outcome import Outcome
from loadgen.request_ids import HEADER as REQUEST_ID
from loadgen.request_ids import again
from loadgen.response import Chunk, take_chunk
from loadgen.response import Response as Response
from loadgen.response import Usage as Usage
from loadgen.sse import EventParser

if TYPE_CHECKING:
    from loadgen.asking import Payload

CONNECT_TIMEOUT = 30.0  # seconds
KEEP_ALIVE = 2.0  # seconds; servers drop idle connections after 5, and a request sent into that moment is lost
UNREAD_SECONDS = (
    1.0  # within which it is seen that a connection was closed already: later, the request may have been read
)
FIRST_RETRY = 0.5  # seconds, doubled with each one, where the server does not say when
_READ_BUFFER = 4 * 1024 * 1024  # the library's 64 KiB would pause fast streams
_READ_SIZE = 64 * 1024  # of one read from a socket; the event loop's 256 KiB comes from the system anew for each
_DRAIN_TIME = 0.1  # seconds from [DONE] to the end of the answer, for the connection to be used again
MOST_DOUBLINGS = 32  # by then it is past any timeout; 2**1024 seconds are no float
LONGEST_WAIT = 60.0  # seconds; where a server asks to come again later than that, its refusal stands
_DETAIL_LENGTH = 300
_CODE = re.compile(r"[\w.-]{1,40}")
_EVENT_STREAM = "text/event-stream"

clock = time.monotonic


_decode_json = msgspec.json.Decoder(Chunk).decode


def reason(error: Exception) -> str:
    """What went wrong, in words: some of the library's exceptions have none, some the wrong ones."""
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection was dropped before the answer's end"
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)


class _Failure(Exception):
    """A response that is no complete answer. `wait`: seconds after which it may be tried again; None: it may not.

    `refused`: the server said that it is too much just now. `unread`: it had closed the connection of an earlier answer
    when this request was sent there.
    """

    def __init__(
        self,
        outcome: Outcome,
        detail: str,
        wait: float | None = None,
        *,
        code: str = "",
        refused: bool = False,
        unread: bool = False,
    ) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.wait = wait
        self.code = code
        self.refused = refused
        self.unread = unread


def open_http(access: Access = ANYBODY) -> aiohttp.ClientSession:
    """A connection pool without limit and without a time limit of its own. Raises OSError for a bad `ca_file`."""
    headers = OWN | access.sent
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        trace_configs=[tracing],
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=KEEP_ALIVE, ssl=access.tls),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        read_bufsize=_READ_BUFFER,
    )


async def _note_reuse(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    """Tell whoever sends a request that it goes over the connection of an earlier one."""
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.append(True)


def _read_less_at_once(reply: aiohttp.ClientResponse) -> None:
    """Make reading cheap, where the event loop is asyncio's own: it allocates `max_size` bytes for every read."""
    transport = reply.connection.transport if reply.connection is not None else None
    if transport is not None and hasattr(transport, "max_size"):
        transport.max_size = _READ_SIZE


def error_text(body: bytes) -> str:
    """The server's own message from an OpenAI-style error body, else the start of the body."""
    try:
        answer = msgspec.json.decode(body)
        error = answer.get("error", answer)
        text = str(error["message"] if isinstance(error, dict) and "message" in error else answer["error"])
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, AttributeError):
        text = body.decode("utf-8", "replace").strip()
    return text[:_DETAIL_LENGTH]


def error_code(body: bytes) -> str:
    """The server's own word for an error, in an OpenAI-style body; empty where there is none."""
    try:
        answer = msgspec.json.decode(body)
        error = answer.get("error", answer)
        code = answer.get("error_type") if isinstance(error, str) else error.get("code")  # the former is TGI's
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError):
        return ""
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def decode_chunk(body: bytes) -> Chunk:
    try:
        chunk = _decode_json(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Failure(Outcome.BAD_STREAM, f"{error}: {body[:80]!r}") from None
    if chunk.error is not None or chunk.kind == "error":
        raise _Failure(Outcome.SERVER_ERROR, error_text(body), code=error_code(body))
    return chunk


async def _follow(content: aiohttp.StreamReader, response: Response, on_chunk: Callable[[], None]) -> None:
    """Take a stream of events to its end."""
    response.streamed = True
    parser = EventParser()
    async for received in content.iter_any():
        now = clock()
        for event in parser.feed(received):
            if event == b"[DONE]":
                response.done = True
                response.complete(now)
                break
            if take_chunk(decode_chunk(event), response):
                response.chunks.append(now)
                on_chunk()
            elif not response.chunks:
                response.opening += 1
        if response.ended is not None:
            break
    if response.ended is not None:
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_DRAIN_TIME):
                while not content.at_eof():
                    await content.readany()
    elif response.choices and len(response.finished) == response.choices:
        response.complete(clock())
    else:
        raise _Failure(Outcome.CUT, "the stream ended before a finish_reason or [DONE]")


async def _take_whole(reply: aiohttp.ClientResponse, response: Response, on_chunk: Callable[[], None]) -> None:
    """Take an answer in one piece."""
    response.streamed = False
    body = await reply.read()
    now = clock()
    chunk = decode_chunk(body)
    if not chunk.choices:
        raise _Failure(Outcome.BAD_STREAM, f"an answer without choices: {body[:80]!r}")
    take_chunk(chunk, response)
    response.chunks.append(now)
    response.complete(now)
    on_chunk()


def _retry_after(reply: aiohttp.ClientResponse) -> float | None:
    """Seconds that the server asks to wait for, whichever way it says it; None: it does not."""
    text = reply.headers.get("Retry-After", "")
    with suppress(ValueError):
        return max(0.0, float(text))
    with suppress(ValueError):
        moment = parsedate_to_datetime(text)
        return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return None


def _refusal(reply: aiohttp.ClientResponse, body: bytes, wait: float) -> _Failure:
    """What an answer other than 200 means: only "too much just now" may be tried again."""
    detail, code = f"{reply.status}: {error_text(body)}", error_code(body)
    if 300 <= reply.status < 400:
        detail = f"{reply.status}: the server sends to {reply.headers.get('Location')}; give that address"
    if reply.status not in (429, 503):
        return _Failure(Outcome.HTTP_ERROR, detail, code=code)
    asked = _retry_after(reply)
    pause = wait if asked is None else asked
    return _Failure(Outcome.HTTP_ERROR, detail, pause if pause <= LONGEST_WAIT else None, code=code, refused=True)


async def _no_stream(reply: aiohttp.ClientResponse) -> _Failure:
    """What an answer means that should have been a stream: some servers tell errors with status 200."""
    if reply.content_type == "application/json":
        decode_chunk(await reply.read())
    return _Failure(
        Outcome.BAD_STREAM,
        f"the answer to a request for a stream is {reply.content_type}, not {_EVENT_STREAM}; a server that cannot "
        "stream is measured with --no-stream",
    )


async def _attempt(
    http: aiohttp.ClientSession,
    address: str,
    body: bytes,
    response: Response,
    on_chunk: Callable[[], None],
    stream: bool,
    wait: float,
    request_id: str,
) -> None:
    """Send a request and take its answer. `wait` is for one that may be tried again. Raises `_Failure`."""
    response.status = None
    headers = {REQUEST_ID: request_id} if request_id else None
    reused: list[bool] = []
    began = clock()
    try:
        async with http.post(
            address, data=body, headers=headers, allow_redirects=False, trace_request_ctx=reused
        ) as reply:
            response.status = reply.status
            _read_less_at_once(reply)
            if reply.status != 200:
                raise _refusal(reply, await reply.read(), wait)
            if reply.content_type == _EVENT_STREAM:
                await _follow(reply.content, response, on_chunk)
            elif not stream:
                await _take_whole(reply, response, on_chunk)
            else:
                raise await _no_stream(reply)
    except aiohttp.InvalidURL as error:
        raise _Failure(Outcome.CONNECTION, f"{error}: no address") from None
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise _Failure(Outcome.CONNECTION, reason(error), wait) from None
    except (aiohttp.ClientError, OSError) as error:
        unanswered = response.status is None
        gone = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
        unread = unanswered and bool(reused) and gone and clock() - began < UNREAD_SECONDS
        raise _Failure(Outcome.CUT, reason(error), wait if unanswered else None, unread=unread) from None


async def complete(
    http: aiohttp.ClientSession,
    url: str,
    payload: Payload,
    response: Response,
    *,
    timeout: float,
    on_chunk: Callable[[], None],
    retries: int = 0,
    refused_retries: int = 0,
    stream: bool = True,
    request_id: str = "",
) -> None:
    """Send one request and follow its answer into `response`; ends with `response.outcome` set.

    `url` is the server's root, `timeout` the seconds from the first sending to the end of the answer. With `retries`
    a request is sent again where no answer began (no connection, or one that was dropped before a status) and after
    429 and 503, when the server says (Retry-After) or after half a second, doubled each time; unless that is past
    the timeout, or more than `LONGEST_WAIT`. `refused_retries` is the same for 429 and 503 alone. One that met the
    connection of an earlier answer closed goes to another at once, as in HTTP clients for which servers close idle
    connections at will (RFC 9112, 9.6): llama.cpp does after each stream. With `stream` an answer that is no stream is
    a failure. Cancelling leaves the outcome at interrupted.
    """
    response.sent = clock()
    deadline = response.sent + timeout
    unread = 0
    try:
        async with asyncio.timeout(timeout):
            while True:
                try:
                    wait = FIRST_RETRY * 2 ** min(response.retries, MOST_DOUBLINGS)
                    sent_as = again(request_id, response.retries)
                    return await _attempt(
                        http, url + payload.path, payload.body, response, on_chunk, stream, wait, sent_as
                    )
                except _Failure as failure:
                    most = max(retries, refused_retries) if failure.refused else retries
                    tried = response.retries - unread
                    if failure.unread:
                        unread += 1
                    elif failure.wait is None or tried >= most or clock() + failure.wait > deadline:
                        raise
                    else:
                        began = clock()
                        await asyncio.sleep(failure.wait)
                        if failure.refused:
                            response.refusals += 1
                            response.waited += clock() - began
                response.retries += 1
    except _Failure as failure:
        response.outcome, response.detail = failure.outcome, hidden(http.headers, str(failure))
        response.code = failure.code if hidden(http.headers, failure.code) == failure.code else ""
    except TimeoutError:
        if response.outcome is not Outcome.COMPLETED:
            response.outcome = Outcome.TIMEOUT
            response.detail = f"no complete answer after {timeout:g} s, {len(response.chunks)} chunks had come"
    finally:
        response.ended = clock() if response.ended is None else response.ended
