"""The one log line of a request, which is written when it has ended: what it was, how it ended, what it cost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs, web

from engine import log
from engine.server.errors import ApiError
from engine.server.request_ids import request_id, trace_id

if TYPE_CHECKING:  # handlers, which the routes know, import this module
    from engine.server.routes import Handler

MOST_FAILURES, FAILURE_SECONDS = 10, 60.0  # told loudly in that time; then as other requests are
WATCHING = ("/health", "/metrics", "/engine/loads", "/engine/loads/{id}")  # asked again and again, whatever the method
EXPECTED_FAILURES = (503, 504)  # no engine, which says so itself, and a client's own timeout

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Notes:
    fields: dict[str, Any] = field(default_factory=dict)
    failure: ApiError | None = None
    unforeseen: Exception | None = None
    status: int | None = None  # once an answer has begun


_NOTES: web.RequestKey[_Notes] = web.RequestKey("log_notes", _Notes)


def note(request: web.BaseRequest, **fields: Any) -> None:
    """Add fields to the request's log line. Never a prompt, an answer or a key; later values replace earlier ones."""
    _notes(request).fields.update(fields)


def note_error(request: web.BaseRequest, error: ApiError) -> None:
    """The request is refused or fails with this, perhaps in the middle of its stream. A server error's words are
    told, for they are the server's own; others may quote the client."""
    note(request, code=error.code)
    if error.status >= 500:
        note(request, reason=error.message)
        _notes(request).failure = error


def note_unforeseen(request: web.BaseRequest, error: Exception) -> None:
    """The request fails with this. Its stack is told and not its words: they may quote the client."""
    _notes(request).unforeseen = error


def _notes(request: web.BaseRequest) -> _Notes:
    if _NOTES not in request:
        request[_NOTES] = _Notes()
    return request[_NOTES]


class RequestLog:
    """Logs requests; `every`: also those in which nothing went wrong. It sends their answers, to see how that ends."""

    def __init__(self, whose: Callable[[web.Request], str], *, every: bool) -> None:
        self.num_ended = 0
        self._whose = whose
        self._usual_level = logging.INFO if every else logging.DEBUG
        self._failures = Allowance(MOST_FAILURES, FAILURE_SECONDS)

    async def on_prepare(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """For `on_response_prepare`: of an answer that is not sent to its end this is all there is to see."""
        _notes(request).status = response.status

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.monotonic()
        try:
            response = await handler(request)
        except asyncio.CancelledError:
            self._ended(request, began, "left" if request.transport is None else "aborted")
            raise
        except ConnectionError:
            self._ended(request, began, "left")
            raise
        ended = None
        try:
            await response.prepare(request)
            await response.write_eof()
        except asyncio.CancelledError:
            ended = "left" if request.transport is None else "aborted"
            raise
        except ConnectionError:
            ended = "left"  # aiohttp sees it too
        finally:
            self._ended(request, began, ended)
        return response

    def _ended(self, request: web.Request, began: float, ended: str | None) -> None:
        """`ended` is given where it was not for the server to say."""
        self.num_ended += 1
        notes = _notes(request)
        status = notes.status
        fields = {
            "request": request_id(request),
            "client": self._whose(request),
            "method": method(request),
            "route": route(request),
            "status": status,
            "seconds": round(time.monotonic() - began, 6),
            "bytes": None if status is None else request.writer.output_size,
            "ended": ended or _how(notes, status),
        }
        if (trace := trace_id(request)) is not None:
            fields["trace"] = trace
        level, error = self._usual_level, None
        if is_watching(request) and (status is None or status < 400 or status == 503):
            level = logging.DEBUG
        if notes.unforeseen is not None or (notes.failure and notes.failure.status not in EXPECTED_FAILURES):
            untold = self._failures.take()
            if untold is not None:
                error = notes.unforeseen
                level = logging.WARNING if error is None else logging.ERROR
                if untold:
                    fields["failures_before"] = untold
        fields |= {name: value for name, value in notes.fields.items() if name not in fields}
        log.event(_log, level, "request_ended", "request ended", error=error, words=False, **fields)


class Allowance:
    """So many at most in so many seconds."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._since = -seconds
        self._taken = 0
        self._refused = 0

    def take(self, now: float | None = None) -> int | None:
        """How many were refused since the last that was not; None if this one is refused too."""
        now = time.monotonic() if now is None else now
        if now - self._since >= self._seconds:
            self._since, self._taken = now, 0
        if self._taken == self._most:
            self._refused += 1
            return None
        self._taken += 1
        refused, self._refused = self._refused, 0
        return refused


def method(request: web.BaseRequest) -> str:
    """Clients may make up their own: those are not repeated."""
    return request.method if request.method in hdrs.METH_ALL else "other"


def route(request: web.Request) -> str | None:
    """Its pattern: a path may have anything in it. None: there is no such route."""
    resource = request.match_info.route.resource
    return None if resource is None else resource.canonical


def is_watching(request: web.Request) -> bool:
    """Whether it only looks how the server fares, as dashboards, load generators and probes do once a second."""
    where = (route(request) or "").removeprefix("/workers/{name}")
    return where in WATCHING or (where.startswith("/engine/") and request.method in (hdrs.METH_GET, hdrs.METH_HEAD))


def _how(notes: _Notes, status: int | None) -> str:
    if notes.unforeseen is not None or notes.failure is not None:
        return "failed"
    if status is not None and status >= 400:
        return "refused"
    return "aborted" if "abort" in notes.fields.get("finish", ()) else "complete"
