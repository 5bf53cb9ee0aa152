"""The step stream is followed through gaps and lost connections, and told apart from a server without one."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web
from golden import GoldenServer, answer
from steps import ENGINE, record, row, snapshot

from engine.protocol import Control, Counters, Gap, Record, WasteLedger, encode
from loadgen import engine_watch
from loadgen.access import Access
from loadgen.client import open_http
from loadgen.engine_watch import EngineError, EngineWatch, KeyRefused, read_snapshot, set_control


class GoldenEngine(GoldenServer):
    """Serves the given stream items; each connection gets at most `per_connection` of them, then is cut."""

    def __init__(self, items: list[Record | Gap], last_seq: int, per_connection: int = 1000) -> None:
        super().__init__(lambda _: answer(["x"]))
        self.items = items
        self.last_seq = last_seq
        self.per_connection = per_connection
        self.asked_from: list[int] = []
        self.snapshots = 0
        self.control: dict[str, Any] = {"batching": "continuous", "allocation": "paged", "step": 3}
        self.obeys = True
        self.app.router.add_get("/engine/snapshot", self._snapshot)
        self.app.router.add_get("/engine/steps", self._steps)
        self.app.router.add_patch("/engine/control", self._control)

    async def _snapshot(self, _: web.Request) -> web.Response:
        self.snapshots += 1
        seq = 0 if self.snapshots == 1 else self.last_seq
        body = encode(snapshot(seq, float(seq), counters=Counters(steps=seq)))
        return web.Response(body=body, content_type="application/json")

    async def _steps(self, request: web.Request) -> web.StreamResponse:
        first = int(request.query["from"])
        self.asked_from.append(first)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        sent = 0
        for item in self.items:
            if (item.seq if isinstance(item, Record) else item.last) < first:
                continue
            await reply.write(b": keep-alive\n\ndata: " + encode(item) + b"\n\n")
            sent += 1
            if sent == self.per_connection:
                assert request.transport is not None
                await asyncio.sleep(0.02)
                request.transport.abort()
                return reply
        await asyncio.sleep(3600)
        return reply

    async def _control(self, request: web.Request) -> web.Response:
        if self.obeys:
            self.control.update(await request.json())
        return web.json_response(self.control)


def records(*seqs: int) -> list[Record]:
    waste = WasteLedger(held=16, filled=8, internal=8)
    return [record(seq, float(seq), rows=(row("decode", 1),), waste=waste) for seq in seqs]


async def watch(engine: GoldenEngine) -> dict[str, Any]:
    async with engine, open_http() as http:
        first = await read_snapshot(http, engine.url)
        assert first is not None
        return await EngineWatch(http, engine.url, first).finish()


async def test_the_whole_window() -> None:
    engine = GoldenEngine([*records(1, 2, 3, 4)], last_seq=4)
    figures = await watch(engine)
    assert (figures["steps"], figures["records_lost"], engine.asked_from) == (4, 0, [1])
    assert figures["mean_internal_waste_share"] == 0.5


async def test_a_gap_is_counted() -> None:
    figures = await watch(GoldenEngine([*records(1), Gap(2, 5), *records(6, 7)], last_seq=7))
    assert (figures["records_lost"], figures["steps"], figures["mean_batch_rows"]) == (4, 7, 1.0)


async def test_a_lost_connection_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "RECONNECT_AFTER", 0.01)
    engine = GoldenEngine([*records(1, 2, 3, 4, 5)], last_seq=5, per_connection=2)
    figures = await watch(engine)
    assert (figures["records_lost"], engine.asked_from) == (0, [1, 3, 5])


async def test_a_stream_that_never_catches_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "CATCH_UP_TIMEOUT", 0.2)
    figures = await watch(GoldenEngine([*records(1, 2)], last_seq=5))
    assert figures["records_lost"] == 3


async def test_a_stream_that_is_not_understood_is_told_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "CATCH_UP_TIMEOUT", 3600.0)
    broken = msgspec.structs.replace(records(2)[0], time="x")  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="not the protocol of this loadgen"):
        await asyncio.wait_for(watch(GoldenEngine([*records(1), broken], last_seq=2)), 60)


async def test_no_engine_is_none() -> None:
    async with GoldenServer(lambda _: answer(["x"])) as server, open_http() as http:
        assert await read_snapshot(http, server.url) is None
        with pytest.raises(EngineError, match="no such route"):
            await set_control(http, server.url, {"batching": "static"})


async def test_an_unreadable_snapshot_is_an_error() -> None:
    async def nonsense(_: web.Request) -> web.Response:
        return web.json_response({"type": "snapshot", "seq": "x"})

    server = GoldenServer(lambda _: answer(["x"]))
    server.app.router.add_get("/engine/snapshot", nonsense)
    async with server, open_http() as http:
        with pytest.raises(EngineError, match="not a snapshot of this protocol"):
            await read_snapshot(http, server.url)


class Restarting(GoldenEngine):
    """Its engine dies after each of its lives but the last; each is the records that it tells, from 1 on."""

    def __init__(self, *lives: list[Record], stays_down: bool = False) -> None:
        super().__init__([], 0)
        self.lives, self.stays_down = lives, stays_down
        self.life = self.refusals = 0
        self.told = asyncio.Event()  # the last life's, or that there is none any more

    async def _snapshot(self, _: web.Request) -> web.Response:
        if self.refusals:
            self.refusals -= not self.stays_down
            if self.stays_down:
                self.told.set()
            return web.json_response({"error": {"message": "the engine is starting again"}}, status=503)
        began = 100.0 * self.life
        engine = msgspec.structs.replace(ENGINE, started=began, started_unix=1.0 + began, restarts=self.life)
        seq = len(self.lives[-1]) if self.told.is_set() else 0
        counters = Counters(steps=seq)
        return web.Response(body=encode(snapshot(seq, began + seq, engine=engine, counters=counters)))

    async def _steps(self, request: web.Request) -> web.StreamResponse:
        assert request.query["from"] == "1"
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for item in self.lives[self.life]:
            later = msgspec.structs.replace(item, time=item.time + 100.0 * self.life)
            await reply.write(b"data: " + encode(later) + b"\n\n")
        if self.life + 1 < len(self.lives) or self.stays_down:
            self.life += not self.stays_down
            self.refusals = 2
            return reply
        self.told.set()
        await asyncio.sleep(3600)
        return reply


async def seen_to_the_end(engine: Restarting) -> tuple[EngineWatch, dict[str, Any]]:
    async with engine, open_http() as http:
        first = await read_snapshot(http, engine.url)
        assert first is not None
        watch = EngineWatch(http, engine.url, first)
        await asyncio.wait_for(engine.told.wait(), 20)
        return watch, await watch.finish()


async def test_each_life_of_an_engine_has_its_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "RECONNECT_AFTER", 0.01)
    watch, figures = await seen_to_the_end(Restarting(records(1, 2, 3), records(1, 2), records(1, 2, 3, 4, 5)))
    # The event of the last life comes after its records are written, which the watch may read later: it catches up.
    assert (figures["steps"], figures["restarts"], figures["records_lost"]) == (5, 2, 0)
    assert [life["steps"] for life in figures["earlier_lives"]] == [3, 2]
    assert [life["window_s"] for life in figures["earlier_lives"]] == [2.0, 1.0]
    assert watch.began == 1.0


async def test_an_engine_that_stays_down_has_the_figures_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "RECONNECT_AFTER", 0.01)
    monkeypatch.setattr(engine_watch, "DOWN_TIMEOUT", 0.1)
    _, figures = await seen_to_the_end(Restarting(records(1, 2, 3), stays_down=True))
    assert (figures["steps"], figures["decode_tokens"], figures["window_s"]) == (3, 3, 2.0)
    assert "restarts" not in figures


@pytest.mark.parametrize(("key", "words"), [(None, "want an admin key; give it"), ("x", "refuse the key; give the")])
async def test_a_locked_engine_names_the_flag(key: str | None, words: str) -> None:
    async def locked(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no"}}, status=401)

    server = GoldenServer(lambda _: answer(["x"]))
    server.app.router.add_get("/engine/snapshot", locked)
    server.app.router.add_patch("/engine/control", locked)
    async with server, open_http(Access(key)) as http:
        with pytest.raises(KeyRefused, match=words):
            await read_snapshot(http, server.url)
        with pytest.raises(KeyRefused, match=f"PATCH .* answered 401: .*{words} .*--admin-key"):
            await set_control(http, server.url, {"batching": "static"})


async def test_control_is_set_and_checked() -> None:
    engine = GoldenEngine([], 0)
    async with engine, open_http() as http:
        wanted = {"batching": "static", "allocation": "reserved"}
        assert await set_control(http, engine.url, wanted) == Control(batching="static", allocation="reserved")
        engine.obeys = False
        with pytest.raises(EngineError, match="asked for"):
            await set_control(http, engine.url, {"batching": "continuous"})
