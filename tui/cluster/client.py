"""A cluster over HTTP: its states as they come, and its control. Errors are those of `tui.engine_api`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Protocol

import httpx
import msgspec

from engine.cluster.protocol import CLUSTER_VERSION, ClusterControl, ClusterState, decode_cluster
from tui.client import CONNECT_TIMEOUT, READ_TIMEOUT, UNDECODED, HttpEngine, events_of
from tui.engine_api import Missing, NotAnEngine, Refused, Unreachable, Unreadable

PATH = "/engine/cluster"
SILENT_TIMEOUT = 45.0  # seconds without even a comment, of which a front that is well sends one every 15


class Cluster(Protocol):
    """What a feed and the keys need of a cluster. States are bytes, for not all that come are read."""

    async def state(self) -> bytes: ...

    def states(self) -> AsyncIterator[bytes]:
        """As they come, the state of now first. Raises Missing where the server has no such stream."""
        ...

    async def change_cluster(self, changes: dict[str, Any]) -> ClusterControl: ...

    async def close(self) -> None: ...


class HttpCluster(HttpEngine):
    """The front of a cluster, asked as an engine is."""

    async def state(self) -> bytes:
        """Its state now. Raises Unreachable or NotAnEngine."""
        return await self._get(PATH)

    async def states(self) -> AsyncIterator[bytes]:
        """Raises Unreachable when the stream ends, Missing where none is to be had, NotAnEngine without cluster."""
        timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT, read=SILENT_TIMEOUT)
        path = f"{PATH}/events"
        try:
            async with self._http.stream("GET", path, timeout=timeout) as response:
                if response.status_code == 404:
                    await self.state()  # which tells if there is a cluster at all
                    raise Missing(f"{self._at(path)} is not there")
                if response.status_code == 429:  # as many follow it already as it takes
                    raise Missing(f"{self._at(path)} takes no more readers")
                if response.status_code != 200:
                    raise await self._unexpected(response, path)
                async for data in events_of(response.aiter_bytes()):
                    yield data
        except httpx.ReadTimeout:
            raise Unreachable(f"the cluster sent nothing for {SILENT_TIMEOUT:g} s") from None
        except httpx.HTTPError as error:
            raise Unreachable(str(error) or type(error).__name__) from None
        raise Unreachable("the cluster closed the stream")

    async def change_cluster(self, changes: dict[str, Any]) -> ClusterControl:
        """Change its control; raises Refused with the cluster's own words, or Unreachable."""
        response = await self._asked("PATCH", PATH, json=changes)
        try:
            told = msgspec.json.decode(response.content, type=dict[str, Any])
            return msgspec.convert(told.get("control", told), ClusterControl)
        except (*UNDECODED, msgspec.ValidationError) as error:
            raise Refused(f"the answer was not a cluster's control ({error})") from None

    async def _unexpected(self, response: httpx.Response, path: str) -> Unreachable | NotAnEngine:
        if response.status_code == 404 and path == PATH:
            return NotAnEngine("no cluster answers there any more")
        return await super()._unexpected(response, path)


class _Versioned(msgspec.Struct):
    """What a state of any version has."""

    version: int


def read_state(data: bytes) -> ClusterState:
    """Raises Unreadable where it is none, or of another version."""
    try:
        state = decode_cluster(data)
    except UNDECODED as error:
        with suppress(*UNDECODED):  # a state of another version may not decode: its version says why
            _require_version(msgspec.json.decode(data, type=_Versioned).version)
        raise Unreadable(f"what answers tells no state of a cluster ({error})") from None
    _require_version(state.version)
    return state


def _require_version(version: int) -> None:
    if version != CLUSTER_VERSION:
        raise Unreadable(f"it tells version {version} of its state; this paged-top knows {CLUSTER_VERSION}")
