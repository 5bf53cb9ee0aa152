"""A recording plays as an engine would: on its own clock, stepwise, forward and back, and to the same state."""

from __future__ import annotations

import asyncio
import gzip
import math
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import msgspec
import pytest

from engine.crash_file import write_crash_file
from engine.protocol import Copy, Left, Preempted, encode
from tui import controls
from tui.engine_api import Missing, NotAnEngine, Refused
from tui.feed import Feed
from tui.fold import EngineFold
from tui.player import Player, Position
from tui.recording import RecordingError


class Time:
    """A clock that moves only when told; sleepers wake in order, each at its own moment."""

    def __init__(self):
        self.now = 5000.0
        self.sleepers = []

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        waiter = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.now + seconds, waiter))
        await waiter

    async def pass_by(self, seconds):
        end = self.now + seconds
        await settle()
        while due := sorted((at for at, waiter in self.sleepers if not waiter.done() and at <= end)):
            self.now = max(self.now, due[0])
            for at, waiter in self.sleepers:
                if at <= self.now and not waiter.done():
                    waiter.set_result(None)
            await settle()
            self.sleepers = [one for one in self.sleepers if not one[1].done()]
        self.now = end
        await settle()


async def settle():
    for _ in range(60):
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
def items(simulated):
    """A snapshot and 80 records, with one switch."""
    return list(simulated.simulate(80, {40: simulated.STATIC_RESERVED}, blocks=700, max_model_len=2048, rate=6.0))


@pytest.fixture(scope="module")
def states(items):
    fold = EngineFold.from_snapshot(items[0])
    found = [items[0]]
    for record in items[1:]:
        fold.apply(record)
        found.append(fold.to_snapshot())
    return found


@pytest.fixture
def file(items, tmp_path):
    return written(tmp_path / "a.jsonl", items)


def written(path, items):
    data = b"".join(encode(item) + b"\n" for item in items)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@asynccontextmanager
async def playing(path, **options):
    """A player, its time, and a feed that follows it."""
    time = Time()
    player = Player(path, clock=time, sleep=time.sleep, scan_after=0.0, **options)
    feed = Feed(player, player.now, wall=player.wall)
    task = asyncio.create_task(feed.run())
    try:
        await settle()
        yield player, feed, time
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await player.close()
        player.index.join()


async def test_the_first_picture_is_there_at_once(file, states):
    async with playing(file) as (player, feed, _):
        assert feed.fold.to_snapshot() == states[0]
        assert player.position == Position(0, 0.0)
        assert (player.first, player.ended) == (0, False)


@pytest.mark.parametrize("speed", [0.1, 1.0, 7.0, 1000.0])
async def test_each_record_comes_at_its_time(file, items, speed):
    async with playing(file, speed=speed) as (player, feed, time):
        began = time.now
        for record in items[1:30]:
            due = began + (record.time - items[0].time) / speed
            await time.pass_by(due - time.now - 1e-5)
            assert feed.fold.seq == record.seq - 1
            await time.pass_by(2e-5)
            assert feed.fold.seq == record.seq
            assert player.position.seq == record.seq
            assert player.position.seconds == pytest.approx(record.time - items[0].time, abs=2e-5 * speed)


async def test_it_does_not_drift(file, items):
    """A reader that is late for every record is not later for the last one."""
    async with playing(file) as (_, feed, time):
        while feed.fold.seq < 60:
            await time.pass_by(0.037)
        assert time.now - 5000.0 < items[60].time - items[0].time + 0.037


async def test_nothing_wakes_between_records(file):
    async with playing(file) as (_, feed, time):
        await time.pass_by(2.0)
        made, slept = feed.fold.seq, 0
        original = time.sleep

        async def counting(seconds):
            nonlocal slept
            slept += 1
            await original(seconds)

        feed.engine._sleep = counting
        await time.pass_by(1.5)
        assert feed.fold.seq > made + 10
        assert slept <= feed.fold.seq - made + 1


async def test_the_clock_is_the_recordings(file, items, states):
    async with playing(file, speed=10.0) as (player, feed, time):
        await time.pass_by(0.2)
        assert feed.now == player.now()
        assert feed.now <= items[feed.fold.seq + 1].time
        assert feed.view().uptime == pytest.approx(player.now() - items[0].engine.started)
        player.pause()
        before = (feed.now, feed.view().uptime, feed.link.silent)
        await time.pass_by(100.0)
        assert (feed.now, feed.view().uptime, feed.link.silent) == before


async def test_an_engine_that_told_its_unix_time_is_as_old_as_it_was(items, tmp_path):
    engine = msgspec.structs.replace(items[0].engine, started_unix=1e9)
    later = msgspec.structs.replace(items[0], engine=engine, time=items[0].engine.started + 30.0)
    records = [msgspec.structs.replace(record, time=record.time + 30.0) for record in items[1:]]
    async with playing(written(tmp_path / "a.jsonl", [later, *records])) as (player, feed, _):
        assert player.wall() == 1e9 + 30.0
        assert feed.view().uptime == 30.0


async def test_pause_and_resume(file, items):
    async with playing(file) as (player, feed, time):
        await time.pass_by(1.0)
        player.pause()
        seq, at = player.position.seq, player.now()
        await time.pass_by(50.0)
        assert (player.position.seq, player.now(), player.playing) == (seq, at, False)
        player.resume()
        await time.pass_by(items[seq + 1].time - at + 1e-5)
        assert feed.fold.seq == seq + 1


async def test_step_is_one_record_further(file, states):
    async with playing(file) as (player, feed, time):
        await time.pass_by(1.0)
        seq = feed.fold.seq
        for count in (1, 2, 3):
            player.step()
            await settle()
            assert feed.fold.seq == seq + count
            assert not player.playing
            assert player.now() == feed.fold.time
        player.step()
        player.step()
        await settle()
        assert feed.fold.to_snapshot() == states[seq + 5]
        player.resume()
        await time.pass_by(100.0)
        assert feed.fold.seq == 80


@pytest.fixture
def two_lives(items, tmp_path):
    """40 records, then the engine was started again, and 60 records."""
    engine = msgspec.structs.replace(items[0].engine, restarts=1, started=items[40].time + 2.0)
    again = msgspec.structs.replace(items[0], engine=engine, time=engine.started)
    later = [msgspec.structs.replace(item, time=item.time + engine.started) for item in items[1:61]]
    return written(tmp_path / "two.jsonl", [*items[:41], again, *later])


async def test_a_restart_plays_on_with_the_next_life(two_lives, items):
    async with playing(two_lives) as (player, feed, time):
        await time.pass_by(items[40].time - items[0].time + 1e-4)
        assert (feed.fold.seq, feed.fold.engine.restarts, player.earlier) == (40, 0, False)
        await time.pass_by(2.0)
        assert (feed.fold.seq, feed.fold.engine.restarts, player.earlier) == (0, 1, True)
        assert feed.link.news.startswith("engine restarted (1)")
        await time.pass_by(1e6)
        assert (feed.fold.seq, player.ended, player.complete, feed.link.lost) == (60, True, True, 0)
        assert feed.link.found == ""


@pytest.mark.parametrize("indexed", [True, False])
async def test_numbers_are_those_of_the_life_that_is_shown(two_lives, states, indexed):
    async with playing(two_lives) as (player, feed, time):
        player.seek(30)
        await settle()
        assert feed.fold.to_snapshot() == states[30]
        await time.pass_by(1e6)
        assert feed.fold.seq == 60  # nothing of the second life was passed over at once, or left out
        if indexed:
            player.index.join()
        player.pause()
        for seq, shown in ((50, (50, 1)), (20, (20, 1)), (0, (0, 1)), (-1, (40, 0)), (10, (10, 0)), (-5, (0, 0))):
            player.seek(seq)
            await settle()
            assert (feed.fold.seq, feed.fold.engine.restarts) == shown
        player.seek(40)
        player.resume()
        await time.pass_by(1e6)
        assert (feed.fold.seq, feed.fold.engine.restarts) == (60, 1)


async def test_what_a_life_does_not_have_is_looked_for_in_the_next(two_lives):
    async with playing(two_lives) as (player, feed, _):
        player.pause()
        player.seek(55)
        await settle()
        assert (feed.fold.seq, feed.fold.engine.restarts) == (55, 1)


async def test_before_the_first_event_of_a_life_lies_the_one_before(two_lives):
    async with playing(two_lives) as (player, feed, _):
        player.pause()
        player.seek(55)
        await settle()
        player.index.join()
        seq = player.event(1, False)
        assert seq == player.first - 1
        player.seek(seq)
        await settle()
        assert (feed.fold.seq, feed.fold.engine.restarts) == (40, 0)
        assert player.event(0, False) is None


async def test_seek_forward_hands_everything_over_at_once(file, states):
    async with playing(file) as (player, feed, time):
        player.seek(50)
        await settle()
        assert feed.fold.to_snapshot() == states[50]
        assert len(feed.history.steps) == 50
        assert time.now == 5000.0
        player.pause()
        player.seek(60)
        await settle()
        assert feed.fold.to_snapshot() == states[60]
        await time.pass_by(5.0)
        assert feed.fold.seq == 60


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("paused", [True, False])
async def test_seek_back_reads_the_nearest_snapshot_and_what_follows(items, states, tmp_path, name, paused):
    kept = [*items[:21], states[40], *items[41:]]
    async with playing(written(tmp_path / name, kept)) as (player, feed, time):
        await time.pass_by(1000.0)
        assert player.ended
        player.index.join()
        if paused:
            player.pause()
        for seq, shown in ((70, 70), (45, 45), (20, 20), (30, 20), (41, 41), (0, 0), (80, 80)):
            player.seek(seq)
            await settle()
            assert feed.fold.to_snapshot() == states[shown]
            assert player.position.seq == shown
            assert player.ended == (seq == 80)
        assert len(feed.history.steps) > 0


async def test_a_record_after_a_seek_comes_at_its_time(file, items):
    async with playing(file) as (player, feed, time):
        await time.pass_by(3.0)
        player.seek(10)
        await settle()
        assert player.now() == items[10].time
        await time.pass_by(items[11].time - items[10].time - 1e-5)
        assert feed.fold.seq == 10
        await time.pass_by(2e-5)
        assert feed.fold.seq == 11


async def test_pause_stops_a_seek_on_its_way(file):
    async with playing(file) as (player, feed, _):
        player.seek(80)
        await asyncio.sleep(0)
        player.pause()
        await settle()
        assert feed.fold.seq < 40


async def test_speed_changes_from_now_on(file, items):
    async with playing(file) as (player, feed, time):
        await time.pass_by(1.0)
        at = player.now()
        player.speed = 4.0
        assert player.now() == at
        await time.pass_by(0.5)
        assert player.now() == pytest.approx(min(at + 2.0, items[feed.fold.seq + 1].time))
        player.speed = math.inf
        await settle()
        await settle()
        assert (feed.fold.seq, player.ended) == (80, True)


@pytest.mark.parametrize("speed", [0.0, -1.0, 0.09, 1001.0, math.nan, -math.inf])
def test_other_speeds_are_refused(file, speed):
    with pytest.raises(ValueError, match=r"speed: must be from 0\.1 to 1000, or inf"):
        Player(file, speed=speed)
    player = Player(file)
    with pytest.raises(ValueError, match="speed"):
        player.speed = speed
    assert player.speed == 1.0


async def test_waits_says_how_long_is_left(items, tmp_path):
    late = [msgspec.structs.replace(record, time=record.time + 60.0) for record in items[2:]]
    async with playing(written(tmp_path / "a.jsonl", [*items[:2], *late])) as (player, feed, time):
        await time.pass_by(10.0)
        assert feed.fold.seq == 1
        assert player.waits == pytest.approx(late[0].time - items[0].time - 10.0)
        player.speed = 2.0
        assert player.waits == pytest.approx((late[0].time - items[0].time - 10.0) / 2)
        player.pause()
        assert player.waits == 0.0
        player.seek(80)
        await settle()
        assert player.waits == 0.0


async def test_a_machine_that_slept_does_not_rush(file, items):
    async with playing(file) as (_, feed, time):
        await time.pass_by(0.5)
        seq = feed.fold.seq
        time.now += 3600.0
        await time.pass_by(0.0)
        assert seq < feed.fold.seq <= seq + 2
        await time.pass_by(items[seq + 4].time - items[seq + 1].time)
        assert seq + 4 <= feed.fold.seq <= seq + 5


async def test_a_crash_file_ends_before_the_fault_and_says_so(items, tmp_path):
    file = write_crash_file(tmp_path, [encode(item) for item in items])
    async with playing(file) as (player, feed, time):
        await time.pass_by(1000.0)
        assert feed.fold.seq == 80
        assert (player.ended, player.note) == (True, "the last step before the fault")
        assert player.complete


async def test_the_end_keeps_the_last_picture_and_says_so(file, states):
    async with playing(file) as (player, feed, time):
        await time.pass_by(1000.0)
        assert feed.fold.to_snapshot() == states[80]
        assert (player.ended, player.note) == (True, "the recording ends here")
        assert player.complete
        assert player.position == Position(80, states[80].time - states[0].time)
        at = feed.now
        await time.pass_by(1000.0)
        player.step()
        await settle()
        assert feed.now == at
        assert feed.link.phase == "live"
        assert feed.link.lost == 0


async def test_a_gap_is_told_when_its_snapshot_comes(items, states, tmp_path):
    async with playing(written(tmp_path / "a.jsonl", [*items[:21], states[40], *items[41:]])) as (player, feed, time):
        player.pause()
        player.seek(30)
        assert not player.arrived
        await settle()
        assert (player.position.seq, player.arrived) == (20, True)
        player.seek(0)
        player.resume()
        await settle()
        await time.pass_by(items[40].time - items[0].time - 1e-5)
        assert (feed.fold.seq, feed.link.lost) == (20, 0)
        await time.pass_by(2e-5)
        assert feed.fold.to_snapshot() == states[40]
        assert feed.link.lost == 20
        await time.pass_by(1000.0)
        assert feed.fold.to_snapshot() == states[80]
        assert any(step.missing == 20 for step in feed.history.steps)


@pytest.mark.parametrize(
    ("spoil", "seq", "words"),
    [
        (lambda lines: [*lines[:30], lines[30][:40]], 29, "truncated at line 31"),
        (lambda lines: [*lines[:30], b"{}\n", *lines[30:]], 29, "line 31 does not decode"),
        (lambda lines: [*lines[:30], *lines[40:]], 29, "records 30 to 80 are missing, and no snapshot follows"),
        (lambda lines: [*lines, *lines], 80, "another recording begins at line 82"),
    ],
)
async def test_a_broken_file_plays_to_where_it_breaks(items, states, tmp_path, spoil, seq, words):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(spoil([encode(item) + b"\n" for item in items])))
    async with playing(path) as (player, feed, time):
        await time.pass_by(1000.0)
        assert feed.fold.to_snapshot() == states[seq]
        assert player.ended
        assert words in player.note
        assert not player.complete
        player.index.join()
        assert player.last == seq


async def test_a_scan_finds_the_end_and_the_events(items, states, tmp_path, file):
    changed = [*items]
    changed[12] = msgspec.structs.replace(items[12], copies=(Copy("a", 1, 2, 3),))
    changed[23] = msgspec.structs.replace(items[23], preempted=(Preempted("a", 3),))
    changed[15] = msgspec.structs.replace(items[15], left=(*items[15].left, Left("a", "error")))
    changed[17] = msgspec.structs.replace(items[17], fault="computing failed")
    changed[19] = msgspec.structs.replace(items[19], cleared=3)
    switch = next(after.seq for before, after in pairwise(items) if controls.changes(before.control, after.control))
    assert 24 < switch < 60
    path = written(tmp_path / "b.jsonl.gz", [*changed[:61], states[70], *changed[71:]])
    player = Player(path, scan_after=0.0)
    assert (player.last, player.duration, player.event(0, True)) == (None, None, None)
    player.index.start()
    player.index.join()
    assert player.last == 80
    assert player.duration == items[80].time - items[0].time
    wanted = [
        seq for seq in range(81) if seq in (12, 15, 17, 19, 23, switch, 70) or (items[seq].copies if seq else False)
    ]
    found, at = [], 0
    while (seq := player.event(at, True)) is not None:
        found.append(seq)
        at = seq
    assert found == wanted
    assert (player.event(wanted[-1], False), player.event(wanted[0], True)) == (wanted[-2], wanted[1])
    await player.close()


async def test_a_recording_that_contradicts_itself_goes_on_from_the_next_snapshot(items, states, tmp_path, monkeypatch):
    monkeypatch.setattr("tui.feed.BACK_OFF", (0.0,))
    wrong = msgspec.structs.replace(items[10], preempted=(Preempted("nobody", 3),))
    path = written(tmp_path / "a.jsonl", [*items[:10], wrong, *items[11:21], states[40], *items[41:]])
    async with playing(path) as (player, feed, time):
        await time.pass_by(1000.0)
        assert feed.fold.to_snapshot() == states[80]
    path = written(tmp_path / "b.jsonl", [*items[:10], wrong, *items[11:]])
    async with playing(path) as (player, feed, time):
        await time.pass_by(1000.0)
        assert feed.link.phase == "foreign"
        with pytest.raises(NotAnEngine, match="the recording contradicts itself"):
            await player.snapshot()


async def test_a_recording_takes_no_orders(file):
    player = Player(file)
    with pytest.raises(Refused, match="a recording cannot be changed"):
        await player.change({"batching": "static"})
    with pytest.raises(Refused, match="a recording cannot be changed"):
        await player.cancel("a")
    with pytest.raises(Missing, match="a recording holds no text"):
        await player.request_text("a", 0)
    with pytest.raises(Missing, match="a recording holds no text"):
        await player.block_text(1)
    await player.close()


def test_what_is_not_a_recording_is_told_when_opened(tmp_path, items):
    (tmp_path / "a").write_bytes(b"hello\n")
    with pytest.raises(RecordingError, match="is not a recording"):
        Player(tmp_path / "a")
    with pytest.raises(RecordingError, match="No such file"):
        Player(tmp_path / "none")
    for path in (tmp_path, tmp_path.__class__("-"), tmp_path.__class__("/dev/null")):
        with pytest.raises(RecordingError, match="is not a file"):
            Player(path)


async def test_a_file_that_is_gone_can_be_played_but_not_wound_back(file, states):
    async with playing(file) as (player, feed, time):
        await time.pass_by(1.0)
        file.unlink()
        player.seek(0)
        await settle()
        assert "No such file" in player.note
        assert feed.fold.seq > 0


async def test_real_time(file, items):
    """With the real clock and sleep, and a feed that keeps up."""
    player = Player(file, speed=1000.0)
    feed = Feed(player, player.now, wall=player.wall)
    task = asyncio.create_task(feed.run())
    for _ in range(1000):
        await asyncio.sleep(0.005)
        if player.ended:
            break
    assert feed.fold.seq == 80
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await player.close()
