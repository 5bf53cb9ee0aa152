"""Follow an engine's step stream during a run. A server without `/engine` is no error: there are no figures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from engine.protocol import Control, Gap, Record, Snapshot, decode_item, decode_snapshot
from loadgen.access import hidden
from loadgen.client import error_code, error_text, reason
from loadgen.engine_figures import EngineFigures, Figure
from loadgen.sse import EventParser

RECONNECT_AFTER = 0.5  # seconds
SAME_CLOCK = 1.0  # seconds that two lives' Unix times may be apart, on one clock
DOWN_TIMEOUT = 15.0  # seconds after the last response for an engine that is down to be there again
CATCH_UP_TIMEOUT = 15.0  # seconds after the last response for the rest of the stream
CALL_TIMEOUT = aiohttp.ClientTimeout(total=30)


class EngineError(Exception):
    """The server answered an `/engine` call with something unusable; the message is for a person."""


class KeyRefused(EngineError):
    """The engine's own routes want a key, or another one. `told`: the server's words where it forbids what it knows."""

    def __init__(self, message: str, told: str = "") -> None:
        super().__init__(message)
        self.told = told


class EngineDown(EngineError):
    """The server answers that its engine cannot serve now."""


def refused(http: aiohttp.ClientSession, what: str, status: int, body: bytes) -> KeyRefused:
    """What an answer of 401 or 403 means: by whether a key was sent, unless the server says."""
    told = hidden(http.headers, error_text(body)) if status == 403 and error_code(body) else ""
    if told:
        return KeyRefused(f"{what}: {told}", told)
    give = "--admin-key or --admin-key-file"
    if "Authorization" in http.headers:
        return KeyRefused(f"{what}: the engine's own routes refuse the key; give the admin key with {give}")
    return KeyRefused(f"{what}: the engine's own routes want an admin key; give it with {give}")


async def read_snapshot(http: aiohttp.ClientSession, url: str) -> Snapshot | None:
    """GET /engine/snapshot; None if the server has no such route, or sends elsewhere.

    Raises `EngineError`, or one of its kinds.
    """
    try:
        async with http.get(f"{url}/engine/snapshot", timeout=CALL_TIMEOUT, allow_redirects=False) as reply:
            if reply.status in (404, 405, 501) or 300 <= reply.status < 400:
                return None
            body = await reply.read()
            what = f"GET {url}/engine/snapshot answered {reply.status}"
            if reply.status in (401, 403):
                raise refused(http, what, reply.status, body)
            if reply.status == 503:
                raise EngineDown(f"{what}: {hidden(http.headers, error_text(body))}")
            if reply.status != 200:
                raise EngineError(what)
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
        async with http.patch(
            f"{url}/engine/control", json=dict(changes), timeout=CALL_TIMEOUT, allow_redirects=False
        ) as reply:
            body = await reply.read()
            if reply.status in (404, 405, 501):
                raise EngineError(f"{where}: the server has no such route; only a paged-engine can be set")
            if reply.status in (401, 403):
                raise refused(http, f"{where} answered {reply.status}", reply.status, body)
            if reply.status != 200:
                raise EngineError(f"{where} answered {reply.status}: {hidden(http.headers, error_text(body))}")
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
    """Reads records from a first snapshot on, through lost connections and restarts of the engine, until `finish`.

    Each life of the engine has a ledger of its own: `ledger` is that of the last one, `ended` has those before. `began`
    is the beginning of the first one's window, on the engine's clock.
    """

    http: aiohttp.ClientSession
    url: str
    first: Snapshot
    ledger: EngineFigures = field(init=False)
    ended: list[EngineFigures] = field(default_factory=list)
    _first_ledger: EngineFigures = field(init=False)
    _task: asyncio.Task[None] = field(init=False)
    _progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        self.ledger = self._first_ledger = EngineFigures(self.first)
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                await self._read_stream()
            await asyncio.sleep(RECONNECT_AFTER)
            with contextlib.suppress(EngineError):  # what is wrong for good is told at the end
                self._see(await read_snapshot(self.http, self.url))

    @property
    def began(self) -> float | None:
        """Where the first life's window begins, on the clock of the present life; None: it cannot be told."""
        first, now = self._first_ledger, self.ledger.first.engine
        apart = (now.started_unix - now.started) - (first.first.engine.started_unix - first.first.engine.started)
        return first.began if abs(apart) < SAME_CLOCK else None

    def _see(self, snapshot: Snapshot | None) -> None:
        """Begin a new ledger where the engine is in another life."""
        if snapshot is not None and snapshot.engine.started_unix != self.ledger.first.engine.started_unix:
            self.ended.append(self.ledger)
            self.ledger = EngineFigures(snapshot)

    async def _read_stream(self) -> None:
        params = {"from": str(self.ledger.next_seq)}
        async with self.http.get(f"{self.url}/engine/steps", params=params, allow_redirects=False) as reply:
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

    async def _last(self) -> Snapshot | None:
        """The engine's present state; None where it is down and stays so. Raises `EngineError`."""
        deadline = asyncio.get_running_loop().time() + DOWN_TIMEOUT
        while True:
            try:
                last = await read_snapshot(self.http, self.url)
            except EngineDown:
                if asyncio.get_running_loop().time() > deadline:
                    return None
                await asyncio.sleep(RECONNECT_AFTER)
                continue
            if last is None:
                raise EngineError(f"{self.url}/engine/snapshot is gone")
            return last

    async def finish(self) -> dict[str, Any]:
        """Read up to the engine's present state, stop, and give the figures. Raises `EngineError`.

        They are of the engine's last life; where it was started again, `restarts` says how often, and `earlier_lives`
        has the figures of those before.
        """
        try:
            last = await self._last()
            self._see(last)
            if last is None:
                return self.so_far()
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
            return self._with_lives(self.ledger.figures(last))
        except ValueError as error:
            raise EngineError(str(error)) from None

    def so_far(self) -> dict[str, Any]:
        """The figures by the records that came, of an engine that nobody can ask any more."""
        return self._with_lives(self.ledger.so_far())

    def lives(self) -> list[EngineFigures]:
        """The ledger of each of its lives."""
        return [*self.ended, self.ledger]

    def _with_lives(self, figures: dict[str, Figure]) -> dict[str, Any]:
        if not self.ended:
            return {**figures}
        return {**figures, "restarts": len(self.ended), "earlier_lives": [life.so_far() for life in self.ended]}

    async def close(self) -> None:
        """Stop reading."""
        self._task.cancel()
        await asyncio.wait([self._task])
