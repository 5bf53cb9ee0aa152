"""The feed comes back from everything: cut streams, gaps, restarts, strangers and nonsense."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest

from engine.protocol import Gap, Preempted
from tui import feed as feed_module
from tui.client import NotAnEngine, Unreachable
from tui.feed import Feed


class Script:
    """An engine whose snapshots and streams are given one after the other; exceptions are raised in their place."""

    def __init__(self, snapshots, streams):
        self.snapshots, self.streams = list(snapshots), list(streams)
        self.asked = []
        self.over = asyncio.Event()

    async def snapshot(self):
        if not self.snapshots:
            self.over.set()
            await asyncio.Event().wait()
        item = self.snapshots.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    async def steps(self, first):
        self.asked.append(first)
        for item in self.streams.pop(0) if self.streams else ():
            if isinstance(item, Exception):
                raise item
            yield item
        if not self.streams and not self.snapshots:
            self.over.set()
            await asyncio.Event().wait()
        raise Unreachable("the engine closed the stream")

    async def close(self):
        pass


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(feed_module, "BACK_OFF", (0.0,))


async def follow(script):
    feed = Feed(script, lambda: 0.0)
    phases = []
    enter = feed._enter

    def noting(phase, detail=""):
        phases.append((phase, detail))
        enter(phase, detail)

    feed._enter = noting
    task = asyncio.create_task(feed.run())
    await asyncio.wait_for(script.over.wait(), 20)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return feed, phases


@pytest.fixture(scope="module")
def stream(simulated):
    """A snapshot and 60 records, and the engine's snapshot after each of them, by folding."""
    from tui.fold import EngineFold

    first, *records = simulated.simulate(60, blocks=700, max_model_len=2048, rate=6.0)
    fold = EngineFold(first)
    states = [first]
    for record in records:
        fold.apply(record)
        states.append(fold.to_snapshot())
    return records, states


async def test_a_cut_stream_goes_on_where_it_was_and_loses_nothing(stream):
    records, states = stream
    script = Script([states[0], states[35]], [records[:20], records[20:]])
    feed, phases = await follow(script)
    assert script.asked == [1, 21]
    assert feed.fold.to_snapshot() == states[60]
    assert feed.link.lost == 0
    assert len(feed.history.steps) == sum(bool(record.rows) for record in records)
    assert ("reconnecting", "the engine closed the stream") in phases
    assert feed.link.phase == "live"


async def test_a_gap_reads_a_snapshot_and_is_told(stream):
    records, states = stream
    script = Script([states[0], states[30]], [[*records[:10], Gap(11, 25), *records[25:27]], records[30:]])
    feed, _ = await follow(script)
    assert script.asked == [1, 31]
    assert feed.fold.to_snapshot() == states[60]
    assert feed.link.lost == 20
    assert any(step.missing == 20 for step in feed.history.steps)


async def test_records_out_of_order_are_a_gap_and_old_ones_are_passed_over(stream):
    records, states = stream
    script = Script([states[0], states[30]], [[*records[:10], records[20]], [*records[25:30], *records[30:]]])
    feed, _ = await follow(script)
    assert feed.fold.to_snapshot() == states[60]
    assert feed.link.lost == 20


async def test_another_engine_at_the_same_place_starts_anew(stream, simulated):
    records, states = stream
    other, *later = simulated.simulate(10, blocks=700, max_model_len=2048, rate=6.0, seed=9)
    other = msgspec.structs.replace(other, engine=msgspec.structs.replace(other.engine, started=5000.0))
    script = Script([states[0], other], [records, later])
    feed, _ = await follow(script)
    assert feed.fold.engine.started == 5000.0
    assert feed.fold.seq == 10
    assert feed.history.steps[-1].seq == 10
    assert feed.link.lost == 0


async def test_it_waits_for_an_engine_that_is_not_up_yet(stream):
    records, states = stream
    script = Script([Unreachable("nothing answers there")] * 3 + [states[0]], [records])
    feed, phases = await follow(script)
    assert phases[:3] == [("connecting", "nothing answers there")] * 3
    assert feed.fold.seq == 60


async def test_a_stranger_is_named_and_asked_again(stream):
    records, states = stream
    script = Script([NotAnEngine("HTTP 404"), states[0]], [records])
    feed, phases = await follow(script)
    assert phases[0] == ("foreign", "HTTP 404")
    assert feed.link.phase == "live"


async def test_a_record_that_contradicts_the_state_is_not_believed(stream):
    records, states = stream
    wrong = msgspec.structs.replace(records[10], preempted=(Preempted("nobody", 3),))
    script = Script([states[0], states[40]], [[*records[:10], wrong], records[40:]])
    feed, phases = await follow(script)
    assert any(phase == "reconnecting" and "contradicts" in detail for phase, detail in phases)
    assert feed.fold.to_snapshot() == states[60]


async def test_the_clock_stands_still_while_the_connection_is_lost(stream):
    _, states = stream
    clock = [0.0]
    feed = Feed(None, lambda: clock[0])
    feed._read(states[0])
    feed._enter("live")
    clock[0] = 5.0
    assert feed.now == pytest.approx(states[0].time + 5.0)
    feed._enter("reconnecting")
    assert feed.now == states[0].time
    clock[0] = 9.0
    assert feed.link.seconds == 4.0


async def test_silence_while_requests_run_is_told_and_that_of_an_idle_engine_is_not(stream):
    records, states = stream
    clock = [0.0]
    feed = Feed(None, lambda: clock[0])
    feed._read(states[0])
    feed._enter("live")
    clock[0] = 7.0
    assert feed.link.silent == 0.0
    running = next(index for index, state in enumerate(states) if state.requests)
    for record in records[:running]:
        feed._take(record)
    assert feed.link.silent == 0.0
    clock[0] = 27.0
    assert feed.link.silent == 20.0
    feed._enter("reconnecting")
    assert feed.link.silent == 0.0


async def test_an_idle_engine_is_as_old_as_it_is(stream):
    _, states = stream
    engine = msgspec.structs.replace(states[0].engine, started_unix=50_000.0)
    feed = Feed(None, lambda: 3.0, wall=lambda: 50_600.0)
    feed._read(msgspec.structs.replace(states[0], engine=engine))
    feed._enter("live")
    assert feed.view().uptime == pytest.approx(600.0)
