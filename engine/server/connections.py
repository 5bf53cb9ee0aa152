"""Connections between bytes and requests: how many there may be, and how long each may take.

aiohttp's protocol reads requests and writes answers; here it is watched. One sweep a second, while any connection is
there, finds those whose headers do not come, that nobody uses, or whose client does not read. What cannot be read
as HTTP is answered with errors in the form that all others have.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import OrderedDict
from http import HTTPStatus
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong

from engine.log import event
from engine.server import open_files
from engine.server.errors import SERVER, ApiError
from engine.server.refusals import Refusals
from engine.server.request_ids import HEADER, new_id, request_id
from engine.server.settings import Limits

SWEEP_SECONDS = 1.0
PARTING_SECONDS = 1.0  # to read the last words before the connection is cut
MAX_LEAVING = 64  # connections beyond --max-connections that are still being told something; more are just cut
ACCEPTED_AT_ONCE = 64  # connections taken between two looks at the others
BACKLOG = 1024  # connections that the kernel holds until they are taken

READ_BYTES = 64 * 1024  # taken from the kernel at once
WRITE_BYTES = 16 * 1024  # of an answer that may wait here before its handler waits
UNSENT_BYTES = 64 * 1024  # of an answer that the kernel takes before its client does
MAX_LINE_BYTES = 8190  # of the request line, and of a header
MAX_HEADERS = 128
MAX_HEAD_BYTES = 64 * 1024  # of the request line and all headers together
AHEAD_BYTES = 16 * 1024  # of further requests, read while one is answered
LINGER_BYTES = 256 * 1024  # of a body that nobody wanted: read to its end for the sake of the connection
LINGER_SECONDS = 2.0
TOO_MANY = "too_many_connections"

_DROP = struct.pack("ii", 1, 0)  # of SO_LINGER: do not go on sending once it is closed
_FAR = 1e9  # seconds: aiohttp has no clock of its own for a connection at rest
_log = logging.getLogger(__name__)


async def listen(runner: web.AppRunner, listener: socket.socket, limits: Limits, refusals: Refusals) -> None:
    """Serve on a bound socket; `runner.cleanup` ends it. The runner must be set up."""
    if runner.server is None:
        raise RuntimeError("the runner is not set up")
    connections = Connections(runner.server, limits, open_files.allow(limits.max_connections), refusals)
    await _Site(runner, listener, connections).start()


class Connections:
    """All that are open, and those at rest in the order in which they came to it."""

    def __init__(self, server: web.Server, limits: Limits, most: int, refusals: Refusals) -> None:
        self.limits = limits
        self.refusals = refusals
        self._server = server
        self._most = most
        self._open: dict[Connection, None] = {}
        self._resting: OrderedDict[Connection, None] = OrderedDict()
        self._leaving: dict[Connection, None] = {}  # no more of those that are open, and not closed yet
        self._num_refused = 0  # since the last sweep
        self._sweeping: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_sweeping(self) -> bool:
        return self._sweeping is not None

    def __call__(self) -> Connection:
        return Connection(self._server, self, self._loop)

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for it: one that rests makes room, the one that does so for longest."""
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        if len(self._open) >= self._most:
            if not self._resting:
                self._num_refused += 1
                self.refusals.count(TOO_MANY)
                return False
            oldest, _ = self._resting.popitem(last=False)
            del self._open[oldest]
            if self._may_leave(oldest):
                oldest.leave()
        self._open[connection] = None
        self._resting[connection] = None
        return True

    def refuse(self, connection: Connection) -> None:
        """Tell one that was not admitted why."""
        if self._may_leave(connection):
            what = f"all {self._most} connections that are taken at a time (--max-connections) are in use"
            connection.part(ApiError(what, status=503, code=TOO_MANY, headers={"Retry-After": "1"}))

    def _may_leave(self, connection: Connection) -> bool:
        """Whether it may take its time to close; else it is cut."""
        if len(self._leaving) >= MAX_LEAVING:
            connection.cut()
            return False
        self._leaving[connection] = None
        return True

    def rest(self, connection: Connection) -> None:
        """It waits for its next request from now on, or for its end: it can make room."""
        if connection in self._open:
            self._resting[connection] = None

    def work(self, connection: Connection) -> None:
        self._resting.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        for kept in (self._open, self._resting, self._leaving):
            kept.pop(connection, None)

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in (*self._open, *self._leaving):
            connection.check(now)
        if self._num_refused:
            message = f"{self._num_refused} connections were turned away: --max-connections {self._most} are in use"
            event(_log, logging.WARNING, "connections_refused", message, refused=self._num_refused)
            self._num_refused = 0
        any_left = bool(self._open or self._leaving)
        self._sweeping = self._loop.call_later(SWEEP_SECONDS, self._sweep) if any_left else None


class Connection(web.RequestHandler):
    """One connection: at rest until a request's headers are whole, then at work until its answer is written.

    Of aiohttp's own state it reads `_request_count`, the requests read so far, and `_reading_paused` and
    `_buffer_paused`, whether aiohttp wants to read no more for now; all else is public.
    """

    __slots__ = (
        "_ahead",
        "_answered",
        "_began",
        "_connections",
        "_head",
        "_is_ahead",
        "_is_garbled",
        "_is_lingering",
        "_parting",
        "_since",
        "_unsent",
        "_unsent_since",
        "_wire",
    )

    def __init__(self, server: web.Server, connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=_FAR,
            access_log=None,  # type: ignore[arg-type]  # as web.AppRunner gives it
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=LINGER_SECONDS,
            read_bufsize=READ_BYTES,
            auto_decompress=False,  # a body of some bytes could become gigabytes
        )
        self._connections = connections
        self._wire: asyncio.Transport | None = None  # until it is closed, also where aiohttp's own is gone already
        self._since = 0.0  # when it came to rest, or began to part
        self._began: float | None = None  # when the first byte of a request came whose headers are not whole
        self._head = 0  # bytes of that request
        self._answered = 0  # requests
        self._ahead = 0  # bytes read since a request waits behind the one in work
        self._is_ahead = False  # so far that it reads no more
        self._is_garbled = False  # what came is no HTTP: no more is read
        self._is_lingering = False  # a request is answered, and aiohttp reads what is left of it
        self._parting = False
        self._unsent = 0  # bytes of answers that waited here at the last sweep
        self._unsent_since = 0.0  # when they last became less

    @property
    def pending(self) -> int:
        """Requests that were read and are not answered."""
        return self._request_count - self._answered

    @property
    def is_resting(self) -> bool:
        return not self.pending and not self._is_lingering

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        self._since = self._loop.time()
        transport.set_write_buffer_limits(high=WRITE_BYTES)
        if hasattr(transport, "max_size"):  # asyncio's own; others know how much to read
            transport.max_size = READ_BYTES
        if self._connections.admit(self):
            super().connection_made(transport)
        else:
            self._connections.refuse(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._wire = None
        self._connections.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._parting:
            self._head += len(data)
            if self._head > LINGER_BYTES and self._wire is not None:
                self._wire.pause_reading()
            return
        was_resting = self.is_resting
        super().data_received(data)
        if self.pending:
            self._began, self._head = None, 0
            self._connections.work(self)
            if self.pending > 1:
                self._read_ahead(len(data))
        elif was_resting and data:
            self._began = self._loop.time() if self._began is None else self._began
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                what = f"the request line and the headers are too long; at most {MAX_HEAD_BYTES:,} bytes are taken"
                self.part(ApiError(what, status=431, code="headers_too_large"))

    def _read_ahead(self, size: int) -> None:
        self._ahead += size
        if self._ahead > AHEAD_BYTES and self._wire is not None:
            self._is_ahead = True
            self._wire.pause_reading()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write the answer; then the connection rests, or parts where the rest of a body is better not awaited."""
        if isinstance(resp, web.HTTPException):  # aiohttp's own, of before our handlers
            resp = ApiError(resp.text or resp.reason, status=resp.status).response(request)
        parts = _parts(request, resp) or self._is_garbled
        resp, lost = await super().finish_response(request, resp, start_time)
        self._answered += 1
        if parts and not lost:
            self.part()
            return resp, True
        if self.pending <= 1:
            self._ahead = 0
            if self._is_ahead and self._wire is not None and not (self._reading_paused or self._buffer_paused):
                self._wire.resume_reading()
            self._is_ahead = False
        self._is_lingering = True
        request.content.on_eof(self._rest)  # at once, mostly
        return resp, lost

    def _rest(self) -> None:
        """All of a request is read, after its answer was written."""
        self._is_lingering = False
        if self.is_resting:
            self._since = self._loop.time()
            self._connections.rest(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What no handler answered: bytes that are not HTTP (400), or an error on aiohttp's side."""
        if isinstance(exc, ConnectionError):  # the client left
            raise exc
        if status >= 500:
            what = "a request failed outside its handler"
            event(_log, logging.ERROR, "connection_failed", what, error=exc, words=False, request=request_id(request))
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun; it cannot become another")
        self._is_garbled = status < 500
        if status >= 500:
            error = ApiError("the server failed on this request; its log says more", status=status)
        elif isinstance(exc, LineTooLong) or "Too many headers" in str(message):
            what = f"at most {MAX_LINE_BYTES:,} bytes in the request line and in each header, {MAX_HEADERS} headers"
            error = ApiError(f"the request's head is too large: {what}", status=431, code="headers_too_large")
        else:
            first = str(message).strip().split("\n")[0].rstrip(":")
            error = ApiError(f"this is no HTTP request: {first}", status=status, code="bad_request")
        self._connections.refusals.count(error.code)
        response = error.response(request)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """aiohttp calls it with what it cannot handle itself; where the client has left that is no error of ours."""
        if self.transport is None:
            return
        what = "the server failed on a connection"
        event(_log, logging.ERROR, "connection_failed", what, error=kw.get("exc_info"), words=False)

    def check(self, now: float) -> None:
        """End what takes too long."""
        if self._wire is None:
            return
        limits = self._connections.limits
        unsent = self._wire.get_write_buffer_size()
        if not unsent or unsent < self._unsent or not self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        if _passed(limits.write_timeout, now - self._unsent_since):
            event(_log, logging.DEBUG, "stalled", "a client read nothing of its answer: cut", unsent=unsent)
            self.cut()
        elif self._parting:
            if now - self._since >= PARTING_SECONDS:
                self.cut()
        elif not self.is_resting:
            return
        elif self._began is not None:
            if _passed(limits.header_timeout, now - self._began):
                what = f"the headers did not come within {limits.header_timeout:g} s"
                self.part(ApiError(what, status=408, code="request_timeout"))
        elif _passed(limits.keep_alive_timeout if self._answered else limits.header_timeout, now - self._since):
            self.leave()

    def leave(self) -> None:
        """Close it once all is sent."""
        self.force_close()

    def part(self, last_words: ApiError | None = None) -> None:
        """Write this if anything, read no more requests, and close once the client has had time to read it."""
        wire = self._wire
        if wire is None or self._parting:
            return
        self._parting = True
        self._since, self._head = self._loop.time(), 0
        self._connections.rest(self)
        if last_words is not None:
            if last_words.code != TOO_MANY:  # those are counted also where there is no room to tell them
                self._connections.refusals.count(last_words.code)
            wire.write(_raw(last_words))
        self.transport = None  # else aiohttp would close it at once, and what has not been read would reset it
        self.force_close()
        if wire.can_write_eof():
            wire.write_eof()

    def cut(self) -> None:
        """Close it at once; what was not sent is lost, also what the kernel had taken."""
        if self._wire is not None:
            self._wire.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP)
            self._wire.abort()


class _Site(web.BaseSite):
    """A bound socket whose connections are ours."""

    __slots__ = ("_connections", "_listener")

    def __init__(self, runner: web.AppRunner, listener: socket.socket, connections: Connections) -> None:
        super().__init__(runner)
        self._listener = listener
        self._connections = connections

    @property
    def name(self) -> str:
        return str(self._listener.getsockname())

    async def start(self) -> None:
        await super().start()
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections have it of the socket that accepts them
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_on_loop_error)
        self._server = await loop.create_server(self._connections, sock=self._listener, backlog=ACCEPTED_AT_ONCE)
        self._listener.listen(BACKLOG)  # the kernel's queue is as long as it was


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Of a connection that could not be taken asyncio tells with a traceback, and many times over."""
    if "socket.accept()" in context.get("message", ""):
        event(_log, logging.DEBUG, "accept_failed", "no connection can be taken now", error=context.get("exception"))
    else:
        loop.default_exception_handler(context)


async def on_prepare(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """For `on_response_prepare`: tell the client where the connection will be closed with its body unread."""
    if _parts(request, response):
        response.force_close()
        response.headers[hdrs.CONNECTION] = "close"


def _parts(request: web.BaseRequest, response: web.StreamResponse) -> bool:
    return response.status == HTTPStatus.REQUEST_TIMEOUT or _unread(request) > LINGER_BYTES


def _unread(request: web.BaseRequest) -> float:
    """Bytes of the body that have not come; infinite where nobody knows."""
    body = request.content
    if body.is_eof():
        return 0
    length = request.content_length
    return float("inf") if length is None else length - body.total_raw_bytes


def _passed(limit: float, seconds: float) -> bool:
    return 0 < limit <= seconds


def _raw(error: ApiError) -> bytes:
    request = new_id()  # there is none, and still an id to ask for
    body = error.body(request)
    headers = {
        HEADER: request,
        hdrs.CONTENT_TYPE: "application/json; charset=utf-8",
        hdrs.CONTENT_LENGTH: str(len(body)),
        hdrs.CONNECTION: "close",
        hdrs.SERVER: SERVER,
        **(error.headers or {}),
    }
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
