"""Server-sent events on one response, begun with the first of them."""

from __future__ import annotations

from aiohttp import web

from engine.server.errors import ApiError
from engine.server.request_ids import request_id
from engine.server.request_log import note_error

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

    async def data(self, body: bytes) -> None:
        await self.write(b"data: " + body + b"\n\n")

    async def write(self, events: bytes) -> None:
        """Whole events. Waits while the client reads slower than this writes."""
        await self.begin()
        await self.response.write(events)
        await self._request.writer.drain()  # aiohttp itself waits after each 64 KiB only

    async def fail(self, error: ApiError) -> None:
        """Tell of an error in a stream that has begun."""
        note_error(self._request, error)
        await self.data(error.body(request_id(self._request)))
        await self.done()

    async def done(self) -> None:
        await self.data(b"[DONE]")
