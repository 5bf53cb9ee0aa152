"""The engine over HTTP: snapshots, the step stream, and control. Errors say what was found, in words for a person."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import msgspec

from engine.protocol import (
    PROTOCOL_VERSION,
    Control,
    Gap,
    Record,
    Snapshot,
    decode_item,
    decode_snapshot,
)

CONNECT_TIMEOUT = 3.0
READ_TIMEOUT = 10.0  # of an answer; the step stream may be silent for as long as the engine is idle


class Unreachable(Exception):
    """Nothing answers, or it cannot serve yet: worth trying again."""


class NotAnEngine(Exception):
    """Something answers, and it is not a paged-engine that this program knows."""


class Refused(Exception):
    """The engine did not take a change of control; the message is its own."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The whole control as it now is, and the step from which it holds."""

    control: Control
    step: int


class Engine(Protocol):
    """What the feed and the keys need of an engine."""

    async def snapshot(self) -> Snapshot: ...

    def steps(self, first: int) -> AsyncIterator[Record | Gap]: ...

    async def change(self, changes: dict[str, Any]) -> Accepted: ...

    async def close(self) -> None: ...


class HttpEngine:
    """A paged-engine at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        # No proxy and no environment: the engine is where the URL says.
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
            trust_env=False,
        )

    async def snapshot(self) -> Snapshot:
        """The engine's state now. Raises Unreachable or NotAnEngine."""
        response = await self._get("/engine/snapshot")
        try:
            snapshot = decode_snapshot(response.content)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise NotAnEngine(
                f"{self._at('/engine/snapshot')} answers, but not with an engine's snapshot ({error})"
            ) from None
        if snapshot.engine.protocol != PROTOCOL_VERSION:
            raise NotAnEngine(
                f"the engine speaks protocol {snapshot.engine.protocol}; this paged-top knows {PROTOCOL_VERSION}"
            )
        return snapshot

    async def steps(self, first: int) -> AsyncIterator[Record | Gap]:
        """Records from `first` on, as they come. Raises Unreachable when the stream ends, NotAnEngine on nonsense."""
        timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT, read=None)
        try:
            async with self._http.stream("GET", "/engine/steps", params={"from": first}, timeout=timeout) as response:
                if response.status_code != 200:
                    raise self._unexpected(response.status_code, "/engine/steps")
                async for data in _events(response.aiter_bytes()):
                    item = _decode(data)
                    if isinstance(item, Record | Gap):
                        yield item
        except httpx.HTTPError as error:
            raise Unreachable(_reason(error)) from None
        raise Unreachable("the engine closed the stream")

    async def change(self, changes: dict[str, Any]) -> Accepted:
        """Change control; raises Refused with the engine's own words, or Unreachable."""
        try:
            response = await self._http.patch("/engine/control", json=changes)
        except httpx.HTTPError as error:
            raise Unreachable(_reason(error)) from None
        if response.status_code != 200:
            raise Refused(f"HTTP {response.status_code}: {_error_message(response.content)}")
        try:
            answer = msgspec.json.decode(response.content, type=dict[str, Any])
            step = int(answer.pop("step"))
            return Accepted(msgspec.convert(answer, Control), step)
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
            raise Refused(f"the answer was not a control ({error})") from None

    async def close(self) -> None:
        await self._http.aclose()

    async def _get(self, path: str) -> httpx.Response:
        try:
            response = await self._http.get(path)
        except httpx.HTTPError as error:
            raise Unreachable(_reason(error)) from None
        if response.status_code != 200:
            raise self._unexpected(response.status_code, path)
        return response

    def _unexpected(self, status: int, path: str) -> Unreachable | NotAnEngine:
        if status in (502, 503, 504):
            return Unreachable(f"HTTP {status}: not ready to serve")
        return NotAnEngine(f"{self._at(path)} answers HTTP {status}; a paged-engine answers 200")

    def _at(self, path: str) -> str:
        return f"{self.url}{path}"


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each server-sent event, its lines joined; comments and other fields are dropped."""
    rest = b""
    async for chunk in chunks:
        *events, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            data = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if data:
                yield b"\n".join(data)


def _decode(data: bytes) -> Record | Gap | Snapshot:
    try:
        return decode_item(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise NotAnEngine(f"the step stream has a record that does not decode ({error})") from None


def _reason(error: httpx.HTTPError) -> str:
    match error:
        case httpx.ConnectTimeout() | httpx.ConnectError():
            return "nothing answers there"
        case httpx.TimeoutException():
            return f"no answer within {READ_TIMEOUT:.0f} s"
        case httpx.RemoteProtocolError():
            return "the connection was cut, or it does not speak HTTP"
        case _:
            return str(error) or type(error).__name__


def _error_message(content: bytes) -> str:
    """An OpenAI-style error's message, or the start of whatever came."""
    try:
        answer = msgspec.json.decode(content)
        return str(answer["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace")
