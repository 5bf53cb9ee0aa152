"""The feed comes back from everything: cut streams, gaps, restarts, strangers and nonsense."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

import msgspec
import pytest

from engine.protocol import Durations, Gap, PoolTotals, Preempted, Queue, Row, WasteLedger
from tui import feed as feed_module
from tui.engine_api import Down, Locked, NotAnEngine, Unreachable
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


def born_again(stream, seconds=3.0):
    """The same engine's next life: its first snapshot and records, `seconds` after the last of the life before."""
    records, states = stream
    began = records[-1].time + seconds
    engine = msgspec.structs.replace(states[0].engine, started=began, restarts=1)
    first = msgspec.structs.replace(states[0], engine=engine, time=began)
    later = [
        msgspec.structs.replace(
            record,
            time=record.time + began,
            arrived=tuple(msgspec.structs.replace(one, time=one.time + began) for one in record.arrived),
        )
        for record in records
    ]
    return first, later


class Dying(Script):
    """An engine that dies, and tells why."""

    async def failure(self):
        return "the core was killed by SIGKILL"


async def test_an_engine_that_was_started_again_is_told_and_its_lives_are_not_joined(stream):
    records, states = stream
    first, later = born_again(stream)
    down = [Down("the engine is starting again: the core was killed")] * 2
    feed, phases = await follow(Dying([states[0], *down, first], [records, later]))
    assert [phase for phase, _ in phases] == ["live", "reconnecting", "down", "down", "live"]
    assert phases[2][1] == "the engine is starting again: the core was killed"
    in_flight = len(states[60].requests)
    assert in_flight
    assert feed.link.news == (
        f"engine restarted (1); away 0.0 ms; lost {in_flight} requests at step 60: the core was killed by SIGKILL"
    )
    assert (feed.fold.seq, feed.link.lost) == (60, 0)
    assert [step.seq for step in feed.history.steps] == [record.seq for record in later if record.rows]
    # Figures over time stay, and what nobody saw counts for nothing.
    both = feed.history.window(states[0].time, later[-1].time)
    sampled = sum(row.sampled for record in records for row in record.rows)
    assert both.output_tokens == 2 * sampled
    assert both.observed == pytest.approx(later[-1].time - states[0].time - 3.0)
    assert feed.history.window(records[-1].time + 0.5, first.time - 0.5).observed == 0.0
    assert feed.history.restarts == [first.time]
    assert feed.history.until(0).window(first.time, first.time + 9.0).output_tokens == 0
    assert feed.history.until(0).window(0.0, records[-1].time).output_tokens == sampled


def test_how_long_an_engine_is_away_is_told_from_when_it_was_lost():
    """Whatever has been found out of it since."""
    clock = [0.0]
    feed = Feed(None, lambda: clock[0])
    for phase in ("live", "reconnecting", "down", "reconnecting"):
        clock[0] += 1.0
        feed._enter(phase)
    assert feed.link.seconds == 2.0
    feed._enter("live")
    clock[0] = 9.0
    assert feed.link.seconds == 5.0


def test_news_of_a_restart_stand_where_keys_do_for_ten_seconds(stream):
    clock = [0.0]
    feed = Feed(None, lambda: clock[0])
    feed._read(stream[1][0])
    feed._enter("live")
    feed._tell_restart(feed.fold, born_again(stream)[0], "it was killed")
    clock[0] = 9.9
    assert feed.link.news.startswith("engine restarted (1)")
    clock[0] = 10.0
    assert feed.link.news == ""


async def test_a_comparison_is_of_one_life(simulated):
    first, *records = simulated.simulate(60, {20: simulated.STATIC_RESERVED}, blocks=700, max_model_len=2048, rate=6.0)
    feed = Feed(None, lambda: 0.0)
    feed._read(first)
    for record in records:
        feed._take(record)
    assert feed.history.comparison(records[-1].time) is not None
    second, later = born_again((records, [first]))
    feed._read(second)
    for record in later[:10]:
        feed._take(record)
    assert feed.history.comparison(later[9].time) is None  # what was before the death is no side of it
    for record in later[10:]:
        feed._take(record)
    compared = feed.history.comparison(later[-1].time)
    assert compared.before.start >= second.time


async def test_an_engine_of_another_kind_begins_anew(stream):
    records, states = stream
    first, later = born_again(stream)
    smaller = msgspec.structs.replace(first.engine, max_model_len=1024)
    feed, _ = await follow(Dying([states[0], msgspec.structs.replace(first, engine=smaller)], [records, later]))
    assert feed.history.start == first.time
    assert feed.link.news.startswith("engine restarted (1); away ")


async def test_one_that_refuses_the_key_is_named_and_asked_again_soon(stream, monkeypatch):
    records, states = stream
    waits = []
    sleep = asyncio.sleep

    async def noting(seconds):
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(feed_module.asyncio, "sleep", noting)
    feed, phases = await follow(Script([Locked("needs an admin key: --admin-key"), states[0]], [records]))
    assert phases[0] == ("locked", "needs an admin key: --admin-key")
    assert waits[0] == feed_module.LOCKED_AGAIN <= 2.0  # another may stand there by then
    assert feed.link.phase == "live"


async def test_a_fault_is_told_for_a_while_and_is_an_event(stream):
    records, states = stream
    now = [0.0]
    feed = Feed(None, lambda: now[0])
    feed._read(states[0])
    feed._enter("live")
    for record in records[:5]:
        feed._take(record)
    feed._take(msgspec.structs.replace(records[5], fault="out of memory: computed in 2 parts"))
    assert feed.link.news == "fault in step 6: out of memory: computed in 2 parts"
    seq, words = feed.tape.event_after(5)
    assert (seq, "fault" in words) == (6, True)
    now[0] = 11.0
    assert feed.link.news == ""


async def test_a_snapshot_from_before_what_is_known_starts_anew(stream):
    records, states = stream
    back = msgspec.structs.replace(states[30], time=states[10].time - 0.01)
    feed, _ = await follow(Script([states[0], back], [[*records[:10], Gap(11, 25)], records[30:]]))
    assert feed.fold.seq == 60
    assert feed.history.start == back.time  # no time before that: figures over time go one way only
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


def broken(stream, field, change):
    """The records up to the first that has any of `field`, and that one changed."""
    records, states = stream
    at = next(at for at, record in enumerate(records) if getattr(record, field) and at > 5)
    return at, msgspec.structs.replace(records[at], **change(records[at])), records, states


def first_changed(field, **changes):
    return lambda record: {
        field: (msgspec.structs.replace(getattr(record, field)[0], **changes), *getattr(record, field)[1:])
    }


@pytest.mark.parametrize(
    ("field", "change", "words"),
    [
        ("rows", first_changed("rows", request="nobody"), "rows has 'nobody', which is not there"),
        ("rows", first_changed("rows", context=-3), "rows has .* context -3"),
        ("rows", first_changed("rows", tokens=1 << 40), "rows has 1099511627776 tokens"),
        ("rows", lambda record: {"rows": record.rows * 2}, "rows cannot be the same one twice"),
        ("blocks", first_changed("blocks", block=-1), "blocks.block cannot be -1"),
        ("blocks", first_changed("blocks", block=700), "blocks.block cannot be 700"),
        ("blocks", first_changed("blocks", block=10**30), "blocks has a number that is larger"),
        ("blocks", first_changed("blocks", filled=17), "blocks.filled cannot be 17"),
        ("blocks", first_changed("blocks", references=-1), "blocks.references cannot be -1"),
        ("blocks", first_changed("blocks", state="cached"), "pool.[a-z]+ is [0-9]+, and [0-9]+ blocks are"),
        ("tables", first_changed("tables", request="nobody"), "tables has 'nobody'"),
        ("tables", first_changed("tables", start=10**6), "tables.start cannot be 1000000"),
        ("tables", first_changed("tables", start=-1), "tables.start cannot be -1"),
        ("tables", first_changed("tables", blocks=(-5,)), "tables.blocks cannot be -5"),
        ("tables", first_changed("tables", blocks=(700,)), "tables.blocks cannot be 700"),
        ("tables", first_changed("tables", blocks=()), "sharing.logical_blocks cannot be"),
        ("arrived", lambda record: {"arrived": record.arrived * 2}, "arrived cannot be the same one twice"),
        ("arrived", first_changed("arrived", time=float("nan")), "arrived.time cannot be nan"),
        ("arrived", first_changed("arrived", prompt_tokens=-1), "arrived.prompt_tokens cannot be -1"),
        ("joined", first_changed("joined", cached_tokens=1 << 30), "joined.cached_tokens cannot be"),
        ("left", first_changed("left", request="nobody"), "left has 'nobody'"),
        ("rows", lambda record: {"time": float("nan")}, "time cannot be nan"),
        ("rows", lambda record: {"time": record.time - 9.0}, "time cannot be"),
        ("rows", lambda record: {"durations": Durations(0, 0, -1.0, 0, 0)}, "durations.forward cannot be -1.0"),
        ("rows", lambda record: {"pool": PoolTotals(free=-1)}, "pool.free cannot be -1"),
        ("rows", lambda record: {"pool": PoolTotals(free=700)}, "pool.free is 700"),
        ("rows", lambda record: {"waste": WasteLedger(held=-4)}, "waste.held cannot be -4"),
        ("rows", lambda record: {"queue": Queue(length=-4)}, "queue.length cannot be -4"),
        ("rows", lambda record: {"released": ("nobody",)}, "released cannot be nobody"),
        ("rows", lambda record: {"unreserved": ("nobody",)}, "unreserved cannot be nobody"),
    ],
)
async def test_a_malformed_record_is_told_and_the_state_read_again(stream, field, change, words):
    at, wrong, records, states = broken(stream, field, change)
    feed, phases = await follow(Script([states[0], states[at + 1]], [[*records[:at], wrong], records[at + 1 :]]))
    assert feed.fold.to_snapshot() == states[60]
    told = [detail for phase, detail in phases if phase == "reconnecting" and "contradicts itself" in detail]
    assert len(told) == 1
    assert re.search(words, told[0])
    assert re.search(words, feed.link.found)
    assert feed.link.phase == "live"
    assert feed.link.lost == 1
    # Nothing of it was taken: figures and steps are those of the sound records.
    assert at + 1 not in [step.seq for step in feed.history.steps]
    assert feed.tape.gaps == ((at + 1, at + 1),)


def engine_with(**changes):
    return lambda snapshot: {"engine": msgspec.structs.replace(snapshot.engine, **changes)}


def state_with(**changes):
    return lambda snapshot: {
        "requests": (msgspec.structs.replace(snapshot.requests[0], **changes), *snapshot.requests[1:])
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (engine_with(block_size=0), "engine.block_size cannot be 0"),
        (engine_with(num_blocks=-1), "engine.num_blocks cannot be -1"),
        (engine_with(num_blocks=10**9), "engine.num_blocks cannot be 1000000000"),
        (engine_with(num_blocks=0), "cannot be"),
        (engine_with(num_blocks=3), "cannot be"),
        (engine_with(num_blocks=800), "pool.free is"),
        (engine_with(max_model_len=0), "engine.max_model_len cannot be 0"),
        (engine_with(started=float("inf")), "engine.started cannot be inf"),
        (lambda snapshot: {"time": float("nan")}, "time cannot be nan"),
        (lambda snapshot: {"seq": -1}, "seq cannot be -1"),
        (lambda snapshot: {"pool": PoolTotals(free=700)}, "pool.free is 700"),
        (lambda snapshot: {"blocks": snapshot.blocks * 2}, "blocks cannot be the same one twice"),
        (lambda snapshot: {"requests": snapshot.requests * 2}, "requests cannot be the same one twice"),
        (state_with(table=(-1,)), "requests.table cannot be -1"),
        (state_with(table=(10**30,)), "requests.table cannot be 1000"),
        (state_with(num_tokens=-7), "requests.num_tokens cannot be -7"),
        (state_with(arrived=float("nan")), "requests.arrived cannot be nan"),
    ],
)
async def test_a_snapshot_that_cannot_be_true_is_refused_with_the_fields_name(stream, change, words):
    records, states = stream
    wrong = msgspec.structs.replace(states[40], **change(states[40]))
    feed, phases = await follow(Script([wrong, states[40]], [records[40:]]))
    assert phases[0][0] == "foreign"
    assert re.search(words, phases[0][1])
    assert feed.fold.to_snapshot() == states[60]
    assert feed.link.phase == "live"


async def test_an_engine_without_blocks_is_an_engine(stream):
    _, states = stream
    bare = msgspec.structs.replace(
        states[0], engine=msgspec.structs.replace(states[0].engine, num_blocks=0), pool=PoolTotals()
    )
    feed = Feed(None, lambda: 0.0)
    feed._read(bare)
    assert len(feed.view().blocks) == 0
    assert feed.view(0).seq == 0


async def test_repeated_records_change_nothing(stream):
    records, states = stream
    twice = [record for record in records for _ in range(2)]
    feed, _ = await follow(Script([states[0]], [[*twice, *records[:20]]]))
    assert feed.records == 60
    assert feed.fold.to_snapshot() == states[60]
    assert feed.history.window(0.0, 1e9).output_tokens == sum(row.sampled for r in records for row in r.rows)


async def test_a_view_of_the_past_while_the_feed_goes_on(stream):
    records, states = stream
    feed = Feed(None, lambda: 0.0)
    feed._read(states[0])
    assert feed.view(5).seq == 0
    for record in records[:30]:
        feed._take(record)
    held = feed.view(12)
    for record in records[30:]:
        feed._take(record)
    assert held.seq == 12
    assert tuple(held.requests.values()) == tuple(sorted(states[12].requests, key=lambda state: state.arrived))
    assert held.blocks.counts() == msgspec.structs.astuple(states[12].pool)
    assert held.record == records[11]
    assert feed.view(10**9).seq == feed.view().seq == 60


async def test_a_listener_hears_all_that_is_taken_and_nothing_else(stream):
    records, states = stream
    feed, heard = Feed(None, lambda: 0.0), []
    feed._read(states[0])
    feed.listener = heard.append
    for record in records[:5]:
        feed._take(record)
    feed._read(states[5])  # nothing is missing: the fold goes on by itself
    with pytest.raises(ValueError, match="rows has"):
        feed._take(msgspec.structs.replace(records[5], rows=(Row("nobody", "decode", 1, 1, 0, 1),)))
    feed._distrust = True
    feed._read(states[10])
    feed._take(records[10])
    assert heard == [*records[:5], states[10], records[10]]
