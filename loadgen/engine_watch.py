"""Follow an engine's step stream during a run. A server without `/engine` is no error: there are no figures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from engine.protocol import Control, Gap, Record, Snapshot, decode_item, decode_snapshot
from loadgen.client import reason
from loadgen.engine_figures import EngineFigures, Figure
from loadgen.sse import EventParser

RECONNECT_AFTER = 0.5  # seconds
CATCH_UP_TIMEOUT = 15.0  # seconds after the last response for the rest of the stream
CALL_TIMEOUT = aiohttp.ClientTimeout(total=30)


class EngineError(Exception):
    """The server answered an `/engine` call with something unusable; the message is for a person."""


async def read_snapshot(http: aiohttp.ClientSession, url: str) -> Snapshot | None:
    """GET /engine/snapshot; None if the server has no such route. Raises `EngineError`."""
    try:
        async with http.get(f"{url}/engine/snapshot", timeout=CALL_TIMEOUT) as reply:
            if reply.status in (404, 405, 501):
                return None
            body = await reply.read()
            if reply.status != 200:
                raise EngineError(f"GET {url}/engine/snapshot answered {reply.status}")
            return decode_snapshot(body)
    except msgspec.MsgspecError as error:
        raise EngineError(f"GET {url}/engine/snapshot: not a snapshot of this protocol: {error}") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"GET {url}/engine/snapshot: {reason(error)}") from None


async def set_control(
    http: aiohttp.ClientSession, url: str, changes: Mapping[str, str | int | float | bool]
) -> Control:
    """PATCH /engine/control and check that the changes hold. Raises `EngineError`."""
    where = f"PATCH {url}/engine/control"
    try:
        async with http.patch(f"{url}/engine/control", json=dict(changes), timeout=CALL_TIMEOUT) as reply:
            body = await reply.read()
            if reply.status in (404, 405, 501):
                raise EngineError(f"{where}: the server has no such route; only a paged-engine can be set")
            if reply.status != 200:
                raise EngineError(f"{where} answered {reply.status}: {body.decode('utf-8', 'replace')[:300]}")
            answer = msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        raise EngineError(f"{where}: {error}") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"{where}: {reason(error)}") from None
    held = answer.get("control", answer) if isinstance(answer, dict) else {}
    wrong = {name: held.get(name) for name, value in changes.items() if held.get(name) != value}
    if wrong:
        raise EngineError(f"{where}: asked for {changes}, but the control is {wrong}")
    known = {name: value for name, value in held.items() if name in Control.__struct_fields__}
    return msgspec.convert(known, Control)


@dataclass(slots=True)
class EngineWatch:
    """Reads records from a first snapshot on, through lost connections, until `finish`."""

    http: aiohttp.ClientSession
    url: str
    first: Snapshot
    ledger: EngineFigures = field(init=False)
    _task: asyncio.Task[None] = field(init=False)
    _progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        self.ledger = EngineFigures(self.first)
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                await self._read_stream()
            await asyncio.sleep(RECONNECT_AFTER)

    async def _read_stream(self) -> None:
        params = {"from": str(self.ledger.next_seq)}
        async with self.http.get(f"{self.url}/engine/steps", params=params) as reply:
            if reply.status != 200:
                return
            parser = EventParser()
            async for received in reply.content.iter_any():
                events = parser.feed(received)
                for event in events:
                    item = decode_item(event)
                    if isinstance(item, Record):
                        self.ledger.add(item)
                    elif isinstance(item, Gap):
                        continue  # each record holds whole ledgers: its number tells what was lost
                if events:
                    async with self._progress:
                        self._progress.notify_all()

    async def _caught_up(self, seq: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: self.ledger.next_seq > seq)

    async def finish(self) -> dict[str, Figure]:
        """Read up to the engine's present state, stop, and give the figures. Raises `EngineError`."""
        try:
            last = await read_snapshot(self.http, self.url)
            if last is None:
                raise EngineError(f"{self.url}/engine/snapshot is gone")
            rest = asyncio.create_task(self._caught_up(last.seq))
            try:
                await asyncio.wait([rest, self._task], timeout=CATCH_UP_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            finally:
                rest.cancel()
        finally:
            await self.close()
        if not self._task.cancelled() and (problem := self._task.exception()):
            raise EngineError(f"GET {self.url}/engine/steps: not the protocol of this loadgen: {problem}")
        try:
            return self.ledger.figures(last)
        except ValueError as error:
            raise EngineError(str(error)) from None

    async def close(self) -> None:
        """Stop reading."""
        self._task.cancel()
        await asyncio.wait([self._task])
