"""Server-sent events on one response, begun with the first of them."""

from __future__ import annotations

from aiohttp import web

from engine.server.errors import ApiError
from engine.server.request_ids import request_id

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold events back
}


class EventStream:
    """Until the first event nothing is sent, so that a request can still fail with a status of its own.

    Of what a client does not read, this process holds `connections.WRITE_BYTES` and one write; then `write` waits,
    until the client reads on or its connection is cut (--write-timeout), which cancels the handler.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=_HEADERS)

    @property
    def begun(self) -> bool:
        return self.response.prepared

    async def begin(self) -> None:
        if not self.begun:
            await self.response.prepare(self._request)
            self._request[_BEGUN] = self

    async def data(self, body: bytes) -> None:
        await self.write(b"data: " + body + b"\n\n")

    async def write(self, events: bytes) -> None:
        """Whole events. Waits while the client reads slower than this writes."""
        await self.begin()
        await self.response.write(events)
        await self._request.writer.drain()  # aiohttp itself waits after each 64 KiB only

    async def fail(self, error: ApiError) -> None:
        """Tell of an error in a stream that has begun, and end it."""
        await self.data(error.body(request_id(self._request)))
        await self.done()

    async def done(self) -> None:
        await self.data(b"[DONE]")


_BEGUN = web.RequestKey("event_stream", EventStream)


def take_stream(request: web.Request) -> EventStream | None:
    """The stream that a request's answer has begun as: it can have no other answer. Told once, or each would live on
    with the other."""
    stream: EventStream | None = request.pop(_BEGUN, None)
    return stream
