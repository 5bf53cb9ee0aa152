"""Recording from the screen: started and ended by a key, and what is written plays back to the same state."""

from __future__ import annotations

import asyncio
import errno

import msgspec
import pytest

from engine.protocol import encode
from tui import figures
from tui.feed import Feed
from tui.player import Player
from tui.recorder import Recorder
from tui.recorder_switch import RecorderSwitch
from tui.session import Session


def state(fold):
    """All of it; the order of requests that arrived at the same moment is not told by a snapshot."""
    snapshot = fold.to_snapshot()
    return encode(
        msgspec.structs.replace(snapshot, requests=tuple(sorted(snapshot.requests, key=lambda one: one.request)))
    )


async def record_to(screen, path):
    await screen.press("r")
    screen.app.screen.focused.value = str(path)
    await screen.press("enter")


async def played_back(path):
    """A feed that has followed a recording to its end."""
    player = Player(path, speed=float("inf"))
    feed = Feed(player, player.now)
    feed._read(await player.snapshot())
    async for record in player.steps(0):
        feed._take(record)
        if player._peek() is None:
            break
    await player.close()
    return feed


async def test_what_is_recorded_plays_back_to_the_same_state(running, recording, tmp_path):
    async with running((200, 24), items=recording[:-30]) as screen:
        feed, path = screen.app.session.feed, tmp_path / "kept.jsonl.gz"
        await record_to(screen, path)
        for record in recording[-30:-10]:
            feed._take(record)
        screen.app.draw_frame()
        assert "; r ends it" in screen.text("footer")
        while "20 records" not in screen.app.recorder.words:  # a thread writes
            await asyncio.sleep(0.01)
        screen.app.say("")
        assert "recording kept.jsonl.gz: 20 records" in screen.text("footer")
        then = state(feed.fold)
        await screen.press("r")
        assert f"recorded 20 records, {figures.size(path.stat().st_size)}, to" in screen.text("footer")
        for record in recording[-10:]:
            feed._take(record)
        screen.app.say("")
        assert "recording" not in screen.text("footer")
    again = await played_back(path)
    assert again.records == 20
    assert state(again.fold) == then


async def test_an_existing_file_is_not_written_over(running, tmp_path):
    path = tmp_path / "there.jsonl"
    path.write_text("mine")
    async with running((160, 24)) as screen:
        await record_to(screen, path)
        assert "there.jsonl" in screen.text("footer")
        assert not screen.app.recorder.running
        assert path.read_text() == "mine"


async def test_where_no_file_can_be_made_it_is_told_and_nothing_recorded(running, tmp_path):
    async with running((160, 24)) as screen:
        for path, said in (
            (tmp_path / "no" / "such" / "folder.jsonl", "folder.jsonl"),
            (tmp_path, str(tmp_path)[:20]),
            ("", "no file was named"),
        ):
            await record_to(screen, path)
            assert said in screen.text("footer")
            assert not screen.app.recorder.running
            assert screen.app.recorder.words == ""


async def test_a_gap_is_recorded_as_one(running, recording, fold, tmp_path):
    async with running(items=recording[:-30]) as screen:
        feed, path = screen.app.session.feed, tmp_path / "gap.jsonl"
        await record_to(screen, path)
        feed._take(recording[-30])
        feed._distrust = True
        feed._read(fold(recording[:-10]).fold.to_snapshot())
        for record in recording[-10:]:
            feed._take(record)
        then = state(feed.fold)
        await screen.press("r")
    player = Player(path, speed=float("inf"))
    session = Session(player=player)
    await session.feed.engine.snapshot()
    items = [item async for item in player.steps(0) if item is not None]
    assert [type(item).__name__ for item in items] == ["Record", "Gap"]
    session.feed._read(await player.snapshot())
    async for record in player.steps(0):
        session.feed._take(record)
        if player._peek() is None:
            break
    await player.close()
    assert state(session.feed.fold) == then


@pytest.mark.parametrize("seq", [0, 10_000])
async def test_another_engine_ends_the_recording(running, recording, tmp_path, seq):
    async with running() as screen:
        feed = screen.app.session.feed
        await record_to(screen, tmp_path / "one.jsonl")
        first = recording[0]
        other = msgspec.structs.replace(first, engine=msgspec.structs.replace(first.engine, started=999.0), seq=seq)
        feed._read(other)
        assert not screen.app.recorder.running
        assert "recording ended: the engine is another one now" in screen.text("footer")
        assert feed.listener is None


async def test_an_engine_that_was_started_again_is_recorded_on_and_plays(running, recording, tmp_path):
    first, path = recording[0], tmp_path / "two.jsonl.gz"
    began = recording[-1].time + 2.0
    engine = msgspec.structs.replace(first.engine, started=began, restarts=1)
    again = msgspec.structs.replace(first, engine=engine, time=began)
    later = [msgspec.structs.replace(record, time=record.time - first.time + began) for record in recording[1:40]]
    async with running(items=recording[:-30]) as screen:
        feed = screen.app.session.feed
        await record_to(screen, path)
        for record in recording[-30:]:
            feed._take(record)
        feed._read(again)
        for record in later:
            feed._take(record)
        then = state(feed.fold)
        await screen.press("r")
        assert "recorded 69 records" in screen.text("footer")
    player = Player(path, speed=float("inf"))
    session = Session(player=player)
    following = asyncio.create_task(session.run())
    while not player.ended:
        await asyncio.sleep(0.005)
    assert player.complete
    assert state(session.feed.fold) == then
    assert session.link.news.startswith("engine restarted (1)")
    assert "away" not in session.link.news  # nobody saw how long
    following.cancel()
    await session.close()


async def test_a_disk_that_gets_full_is_told_at_once_and_the_screen_goes_on(running, recording, tmp_path, monkeypatch):
    path = tmp_path / "full.jsonl"

    def full(recorder, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running((200, 24), items=recording[:-30]) as screen:
        feed = screen.app.session.feed
        await record_to(screen, path)
        monkeypatch.setattr(Recorder, "_send", full)
        feed._take(recording[-30])
        recorder = screen.app.recorder._recorder
        while not recorder.error:
            await asyncio.sleep(0.005)
        screen.app.tick()  # no record comes: the clock's tick tells
        screen.app.draw_frame()
        assert "No space left on device; the recording has ended" in screen.text("footer")
        assert not screen.app.recorder.running
        assert screen.app.recorder.finished == [recorder.error]
        for record in recording[-29:]:
            feed._take(record)
        assert feed.fold.seq == recording[-1].seq


def test_a_recording_is_not_recorded_again_and_nothing_is_before_a_stream(tmp_path, recording):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"".join(encode(item) + b"\n" for item in recording[:3]))
    told = []
    for session, words in (
        (Session(player=Player(path)), "this is a recording already"),
        (Session(url="http://127.0.0.1:1"), "there is nothing to record yet"),
    ):
        switch = RecorderSwitch(session, lambda text, bad: told.append((text, bad)))
        assert not switch.able()
        assert told.pop() == (words, True)
        switch.start(str(tmp_path / "new.jsonl"))
        assert not switch.running
        assert not (tmp_path / "new.jsonl").exists()
        told.clear()
