"""Request bodies as bytes: bounded in size, in time, and in what all of them together hold of memory.

What a body may need is charged to one budget as it comes, and given back at the end of its request: not its bytes
alone, but what its values take once they are parsed, of which a small body can have very many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from engine.server.errors import ApiError
from engine.server.settings import Limits

BODY_BYTES = 2048  # that a body takes with nothing in it
# What values take in Python at most, told by the marks that are between and around them.
MARK_BYTES = {b",": 60, b":": 60, b"[": 90, b"{": 180}
MAX_GROWTH = 4  # times --max-body: what one body may take when it is parsed

# One character that needs them makes all of its text take four bytes each: emoji, as they are or escaped.
_BEYOND_16_BITS = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4", b"\\ud", b"\\uD")
_CHARGED: web.RequestKey[int] = web.RequestKey("body_charged", int)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Bodies:
    """The budget that all bodies share. A request's part of it comes back when `middleware` sees its end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.charged = 0  # bytes

    async def read(self, request: web.Request, most: int | None = None) -> bytes:
        """A body of at most `most` bytes (None: --max-body).

        Raises:
            ApiError: 413 for one that is too large, 415 for a compressed one, 408 for one that does not come to its
                end in time, 429 where other bodies hold the memory.
        """
        where = " here"
        if most is None or most > self._limits.max_body:
            most, where = self._limits.max_body, " (--max-body)"
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
        if encoding.strip().lower() != "identity":
            what = f"Content-Encoding: bodies are taken as they are, not compressed; got {encoding[:40]!r}"
            raise ApiError(what, status=415, code="unsupported_encoding")
        if (request.content_length or 0) > most:
            raise _too_large(most, where)
        await _send_continue(request)
        seconds = self._limits.body_timeout
        try:
            async with asyncio.timeout(seconds or None):
                body = await self._collect(request, most, where)
        except TimeoutError:
            what = f"the body did not come to its end within {seconds:g} s"
            raise ApiError(what, status=408, code="request_timeout") from None
        return body

    async def _collect(self, request: web.Request, most: int, where: str) -> bytes:
        body = bytearray()
        while piece := await request.content.readany():
            if len(body) + len(piece) > most:
                raise _too_large(most, where)
            self._charge(request, values_bytes(piece))
            body += piece
        self._charge(request, BODY_BYTES + (_character_bytes(body) - 1) * len(body))
        return bytes(body)

    def _charge(self, request: web.Request, size: int) -> None:
        charged = request.get(_CHARGED, 0) + size
        most = min(self._limits.max_body * MAX_GROWTH, self._limits.max_body_memory)
        if charged > most:
            what = f"the body would take {charged:,} bytes once it is parsed, and {most:,} are allowed"
            raise ApiError(what, status=413, code="body_too_large")
        if self.charged + size > self._limits.max_body_memory:
            what = "the bodies of other requests hold all the memory that there is for them; try again"
            raise ApiError(what, status=429, code="too_many_bodies", headers={"Retry-After": "1"})
        request[_CHARGED] = charged
        self.charged += size

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Gives back what a request holds when it ends, however it does."""
        try:
            return await handler(request)
        finally:
            self.charged -= request.pop(_CHARGED, 0)


def parsed_bytes(body: bytes) -> int:
    """What JSON takes in Python at most, with all its values."""
    return BODY_BYTES + values_bytes(body) + (_character_bytes(body) - 1) * len(body)


def values_bytes(part: bytes) -> int:
    """The same of a part of a body, if its text were ASCII. Marks are counted in texts too, where they stand for
    nothing: prose takes about twice its size."""
    return len(part) + sum(size * part.count(mark) for mark, size in MARK_BYTES.items())


def _character_bytes(body: bytes | bytearray) -> int:
    if body.isascii() and b"\\u" not in body:
        return 1
    return 4 if any(high in body for high in _BEYOND_16_BITS) else 2


async def on_expect(request: web.Request) -> web.StreamResponse | None:
    """A route's answer to `Expect`: `Bodies.read` says `100 Continue`, when the body will be read indeed."""
    expected = request.headers.get(hdrs.EXPECT, "")
    if expected.lower() == "100-continue":
        return None
    return ApiError(f"Expect: only 100-continue is known, got {expected[:40]!r}", status=417).response(request)


async def _send_continue(request: web.Request) -> None:
    if hdrs.EXPECT in request.headers and request.version >= (1, 1) and not request.content.is_eof():
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun


def _too_large(most: int, where: str) -> ApiError:
    size = next(
        (f"{most >> shift} {unit}" for shift, unit in ((20, "MiB"), (10, "KiB")) if most % (1 << shift) == 0),
        f"{most:,} bytes",
    )
    return ApiError(f"the body is too large; at most {size} are taken{where}", status=413, code="body_too_large")
