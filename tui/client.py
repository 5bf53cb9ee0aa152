"""The engine over HTTP: snapshots, the step stream, and control. Errors say what was found, in words for a person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from engine.protocol import (
    PROTOCOL_VERSION,
    BlockText,
    Control,
    Gap,
    LiveLoad,
    Record,
    RequestText,
    Snapshot,
    decode_block_text,
    decode_item,
    decode_loads,
    decode_request_text,
    decode_snapshot,
)
from tui.engine_api import Accepted, ACluster, Down, Locked, Missing, NotAnEngine, Refused, Unreachable
from tui.sources.http import open_client, why
from tui.sources.targets import NO_SETTINGS, HttpSettings, Target

Answer = TypeVar("Answer")
UNDECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: brackets in brackets in brackets

CONNECT_TIMEOUT = 3.0
READ_TIMEOUT = 10.0  # of an answer; the step stream may be silent for as long as the engine is idle
WHOLE_TIMEOUT = 60.0  # of a whole snapshot, however steadily it comes
MAX_ANSWER = 1 << 28  # bytes; a snapshot of a million blocks has about 80 million
MAX_REASON = 200  # characters of an engine's own words
NO_KEY = "needs an admin key: --admin-key or --admin-key-file"
_NOT_FOUND = ("request_not_found", "block_not_found")  # the codes of a 404 that an engine with texts gives


class HttpEngine:
    """A paged-engine at `url`, asked as `http` says, with its admin key; `user` is of the address."""

    def __init__(self, url: str, http: HttpSettings = NO_SETTINGS, user: str = "") -> None:
        self.url = url.rstrip("/")
        headers = http.headers_for(Target("", self.url, user), ours=True)
        self._has_key = any(name.lower() == "authorization" for name in headers)
        self._http = open_client(self.url, headers, http, httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT))

    async def snapshot(self) -> Snapshot:
        """The engine's state now. Raises Unreachable or NotAnEngine."""
        content = await self._get("/engine/snapshot")
        try:
            snapshot = decode_snapshot(content)
        except UNDECODED as error:
            _check_version(content)
            raise NotAnEngine(
                f"{self._at('/engine/snapshot')} answers, but not with an engine's snapshot ({error})"
            ) from None
        _require_version(snapshot.engine.protocol)
        return snapshot

    async def steps(self, first: int) -> AsyncIterator[Record | Gap]:
        """Records from `first` on, as they come. Raises Unreachable when the stream ends, NotAnEngine on nonsense."""
        timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT, read=None)
        try:
            async with self._http.stream("GET", "/engine/steps", params={"from": first}, timeout=timeout) as response:
                if response.status_code != 200:
                    raise await self._unexpected(response, "/engine/steps")
                async for data in events_of(response.aiter_bytes()):
                    item = _decode(data)
                    if isinstance(item, Record | Gap):
                        yield item
        except httpx.HTTPError as error:
            raise Unreachable(_reason(error)) from None
        raise Unreachable("the engine closed the stream")

    async def request_text(self, request: str, first: int) -> RequestText:
        """A live request's tokens from place `first` on. Raises Missing if it has ended, Unreachable or NotAnEngine."""
        path = f"/engine/requests/{quote(request, safe='')}?from={first}"
        return await self._read(path, decode_request_text, "text", f"request {request} has ended")

    async def block_text(self, block: int) -> BlockText:
        """A block's tokens. Raises Missing if the pool has no such block, Unreachable or NotAnEngine."""
        return await self._read(f"/engine/blocks/{block}", decode_block_text, "text", f"there is no block {block}")

    async def loads(self) -> tuple[LiveLoad, ...]:
        """What load generators tell of their runs against it. Raises as the others do; Missing if it is too old."""
        return (await self._read("/engine/loads", decode_loads, "load")).loads

    async def cancel(self, request: str) -> tuple[str, ...]:
        """End a live request, and whoever cannot go on without it; returns who ended. Raises as `change` does."""
        response = await self._asked("DELETE", f"/engine/requests/{quote(request, safe='')}")
        try:
            return msgspec.json.decode(response.content, type=dict[str, tuple[str, ...]])["cancelled"]
        except (*UNDECODED, KeyError) as error:
            raise Refused(f"the answer does not say who ended ({error})") from None

    async def change(self, changes: dict[str, Any]) -> Accepted:
        """Change control; raises Refused with the engine's own words, or Unreachable."""
        response = await self._asked("PATCH", "/engine/control", json=changes)
        try:
            answer = msgspec.json.decode(response.content, type=dict[str, Any])
            step = int(answer.pop("step"))
            return Accepted(msgspec.convert(answer, Control), step)
        except (*UNDECODED, KeyError, TypeError, ValueError) as error:
            raise Refused(f"the answer was not a control ({error})") from None

    async def failure(self) -> str:
        """Why the engine failed the last time, as its /health tells; empty where it tells none. Raises nothing."""
        try:
            return _words((await self._health())["last_failure"]["reason"])
        except (LookupError, TypeError):
            return ""

    async def unready(self) -> str:
        """Why it takes no requests now, as its /health tells; empty where it does, or tells nothing. Raises nothing."""
        return _words((await self._health()).get("reason"))

    async def close(self) -> None:
        await self._http.aclose()

    async def _health(self) -> dict[str, Any]:
        try:
            told = msgspec.json.decode((await self._http.get("/health")).content)
        except (httpx.HTTPError, *UNDECODED):
            return {}
        return told if isinstance(told, dict) else {}

    async def _read(self, path: str, decode: Callable[[bytes], Answer], what: str, missing: str = "") -> Answer:
        """`what` there is to tell at a path; `missing` says why it is not there where an engine does not know it."""
        try:
            response = await self._http.get(path)
        except httpx.HTTPError as error:
            raise Unreachable(_reason(error)) from None
        if response.status_code == 404:
            is_known = _error(response.content).get("code") in _NOT_FOUND
            raise Missing(missing if is_known else f"this engine does not tell {what}s")
        if response.status_code == 403 and _error(response.content).get("code") == "text_off":
            raise Missing("the engine tells no text (--no-text)")
        if response.status_code != 200:
            raise await self._unexpected(response, path)
        try:
            return decode(response.content)
        except UNDECODED as error:
            raise NotAnEngine(f"{self._at(path)} answers, but not with a {what} ({error})") from None

    async def _asked(self, method: str, path: str, **body: Any) -> httpx.Response:
        """The answer to what changes something; raises Refused or Unreachable."""
        try:
            response = await self._http.request(method, path, **body)
        except httpx.HTTPError as error:
            raise Unreachable(_reason(error)) from None
        if response.status_code != 200:
            raise Refused(f"HTTP {response.status_code}: {_error_message(response.content)}")
        return response

    async def _get(self, path: str) -> bytes:
        """What is there: at once no more than an engine would say, whatever stands there, and in a bounded time."""
        content = bytearray()
        try:
            async with asyncio.timeout(WHOLE_TIMEOUT), self._http.stream("GET", path) as response:
                if response.status_code != 200:
                    raise await self._unexpected(response, path)
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > MAX_ANSWER or bytes(content[:64]).lstrip()[:1] not in (b"", b"{"):
                        break
        except httpx.HTTPError as error:
            raise Unreachable(_reason(error)) from None
        except TimeoutError:
            raise Unreachable(f"no whole answer within {WHOLE_TIMEOUT:.0f} s") from None
        if len(content) > MAX_ANSWER:
            raise NotAnEngine(f"{self._at(path)} answers with more than {MAX_ANSWER:,} bytes")
        return bytes(content)

    async def _unexpected(self, response: httpx.Response, path: str) -> Unreachable | NotAnEngine:
        """What an answer other than 200 means, with the engine's own words where it has any."""
        status = response.status_code
        try:
            error = _error(await response.aread()) if status in (403, 404, 502, 503, 504) else {}
        except httpx.HTTPError:
            error = {}
        told = _words(error.get("message"))
        if status in (401, 403):
            refused = f"it refuses the key: HTTP {status}"
            return Locked(told or (refused if self._has_key else NO_KEY))
        if status in (502, 503, 504):
            return Down(told) if told else Unreachable(f"HTTP {status}: not ready to serve")
        if status == 404 and error.get("code") == "cluster":
            return ACluster(told or "engines of a cluster answer there")
        return NotAnEngine(f"{self._at(path)} answers HTTP {status}; a paged-engine answers 200")

    def _at(self, path: str) -> str:
        return f"{self.url}{path}"


async def events_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each server-sent event, its lines joined; comments and other fields are dropped.

    Raises NotAnEngine where one is longer than any record.
    """
    rest, half = bytearray(), b""
    async for chunk in chunks:
        at = max(0, len(rest) - 1)  # from here on an end may be new: one may be cut in its middle
        chunk = half + chunk
        half = b"\r" if chunk.endswith(b"\r") else b""  # perhaps of a line's end: the next chunk tells
        rest += chunk.removesuffix(half).replace(b"\r\n", b"\n")
        begin = 0
        while (end := rest.find(b"\n\n", max(at, begin))) >= 0:
            data = [line[5:].lstrip() for line in rest[begin:end].split(b"\n") if line.startswith(b"data:")]
            if data:
                yield bytes(b"\n".join(data))
            begin = end + 2
        del rest[:begin]
        if len(rest) > MAX_ANSWER:
            raise NotAnEngine(f"the step stream has a record of more than {MAX_ANSWER:,} bytes")


def _check_version(content: bytes) -> None:
    """An engine of another version may tell a snapshot that does not decode: its version says why."""
    try:
        version = msgspec.json.decode(content)["engine"]["protocol"]
    except (*UNDECODED, LookupError, TypeError):
        return
    if isinstance(version, int):
        _require_version(version)


def _require_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise NotAnEngine(f"the engine speaks protocol {version}; this paged-top knows {PROTOCOL_VERSION}")


def _decode(data: bytes) -> Record | Gap | Snapshot:
    try:
        return decode_item(data)
    except UNDECODED as error:
        raise NotAnEngine(f"the step stream has a record that does not decode ({error})") from None


def _reason(error: httpx.HTTPError) -> str:
    return why(error, READ_TIMEOUT)


def _error(content: bytes) -> dict[str, Any]:
    """An OpenAI-style error, or nothing."""
    try:
        error = msgspec.json.decode(content)["error"]
    except (*UNDECODED, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _words(told: object) -> str:
    """A sentence of the engine's, in one line; empty where it is none."""
    return " ".join(told.split())[:MAX_REASON] if isinstance(told, str) else ""


def _error_message(content: bytes) -> str:
    """An OpenAI-style error's message, or the start of whatever came."""
    message = _error(content).get("message")
    return content[:200].decode("utf-8", "replace") if message is None else str(message)
