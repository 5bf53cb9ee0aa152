"""HTTP to servers: one client for whatever is asked of them, with keys, own authorities, and bounds on what comes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tui.sources.clock import now
from tui.sources.targets import HttpSettings, Target

CONNECT_SECONDS = 3.0
MAX_ANSWER = 32 << 20  # bytes, unpacked
# Each makes a piece of an answer a thousand times as long at most. One inside another would fill the memory at once.
PACKED = ("gzip", "deflate")
IDLE_SECONDS = 3.0  # a connection is kept: servers of Python close one after 5, perhaps just when a request comes


class NoAnswer(Exception):
    """Nothing came that could be read; the message says why."""


class TooMuch(NoAnswer):
    """What came is longer than any page of metrics."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came, at `time` on the watcher's clock, `took` seconds after it was asked for. `moved`: to where it
    redirects, which nobody follows."""

    status: int
    body: bytes = field(repr=False)
    time: float
    took: float
    moved: str = ""

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Http:
    """A server, asked over one connection. Close it in any case."""

    def __init__(
        self, target: Target, settings: HttpSettings, timeout: float, clock: Callable[[], float] = now
    ) -> None:
        """`timeout`: seconds for a whole answer."""
        self._timeout = timeout
        self._clock = clock
        self._client = open_client(
            target.url,
            settings.headers_for(target),
            settings,
            httpx.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
        )

    def now(self) -> float:
        """The watcher's clock."""
        return self._clock()

    @property
    def has_key(self) -> bool:
        """Whether it says who it is."""
        return "authorization" in self._client.headers

    async def get(self, path: str, timeout: float | None = None) -> Answer:
        """What is at a path, whole and unpacked.

        Raises NoAnswer where nothing came, or too late, and TooMuch beyond `MAX_ANSWER` bytes.
        """
        return await self._ask("GET", path, self._timeout if timeout is None else timeout, MAX_ANSWER)

    async def post(self, path: str, body: Mapping[str, object], most: int) -> Answer:
        """What is answered to JSON. Raises NoAnswer, and TooMuch beyond `most` bytes."""
        return await self._ask("POST", path, self._timeout, most, body)

    async def _ask(
        self, method: str, path: str, limit: float, most: int, told: Mapping[str, object] | None = None
    ) -> Answer:
        began = self._clock()
        body = bytearray()
        try:
            async with (
                asyncio.timeout(limit),
                self._client.stream(method, path, json=told) as response,
            ):
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > most:
                        much = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
                        raise TooMuch(f"it answers with more than {much}")
        except TimeoutError:
            raise NoAnswer(f"no whole answer within {limit:g} s" if body else f"no answer within {limit:g} s") from None
        except httpx.HTTPError as error:
            raise NoAnswer(why(error, limit)) from None
        now = self._clock()
        moved = response.headers.get("location", "") if response.is_redirect else ""
        return Answer(response.status_code, bytes(body), now, now - began, moved[:200])

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def open_client(
    url: str, headers: Mapping[str, str], settings: HttpSettings, timeout: httpx.Timeout
) -> httpx.AsyncClient:
    """No proxy and no environment: a server is where its URL says. Redirects are not followed: they would take the
    keys along."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"Accept-Encoding": ", ".join(PACKED), **headers},
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
        limits=httpx.Limits(keepalive_expiry=IDLE_SECONDS),
        event_hooks={"response": [_check_packing]},
        verify=_context(settings.ca_file, settings.insecure, url.startswith("https:")),
    )


async def _check_packing(response: httpx.Response) -> None:
    """Before any of it is unpacked. Raises httpx.DecodingError for what was not asked for."""
    told = response.headers.get("content-encoding", "").strip().lower()
    if told not in ("", "identity", *PACKED):
        wanted = " or ".join(PACKED)
        raise httpx.DecodingError(f"it packs its answer as {ascii(told)[:40]}, and {wanted} was asked for")


def why(error: httpx.HTTPError, timeout: float) -> str:
    """What went wrong, in words for a person."""
    match error:
        case httpx.ConnectError() if "SSL" in str(error):
            told = str(error)[:200]
            unknown = "issuer" in told or "self-signed" in told  # and not one that is too old, or another's
            flags = ": --ca-file names who is to be believed" if unknown else ""
            return f"no TLS with what answers there ({told}){flags}"
        case httpx.ConnectTimeout() | httpx.ConnectError():
            return "nothing answers there"
        case httpx.TimeoutException():
            return f"no answer within {timeout:.0f} s"
        case httpx.RemoteProtocolError():
            return "the connection was cut, or it does not speak HTTP"
        case _:
            return str(error) or type(error).__name__


@lru_cache(maxsize=8)
def _context(ca_file: Path | None, insecure: bool, tls: bool) -> ssl.SSLContext:
    """One for all servers: reading the authorities takes longer than asking. Without `tls` none are needed."""
    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    if insecure or not tls:
        return httpx.create_ssl_context(verify=False, trust_env=False)
    return httpx.create_ssl_context(trust_env=False)
