"""Time travel in the running app: any kept record comes back as it was shown, live and over a recording."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from engine.protocol import encode
from tui import scene
from tui.feed import Feed
from tui.look import Look
from tui.panels.line import text_of
from tui.player import Player
from tui.session import Session

SIZE = (200, 60)
PANELS = ("blocks", "batch", "sharing-open", "waste-joint", "speed", "requests")
AREA = (92, 24)  # of each panel, when one is drawn alone


def step(screen):
    return int(re.search(r"step ([\d,]+)", screen.text("header")).group(1).replace(",", ""))


def pictures(frame):
    """Every panel of a frame as drawn, colours included."""
    return {name: scene.panel(name, frame, *AREA, Look()) for name in PANELS}


@pytest.fixture(scope="module")
def seqs(recording):
    """Forty records, the first and the last among them."""
    last = recording[-1].seq
    return sorted({0, 1, last - 1, last, *random.Random(4).sample(range(last), 36)})


@pytest.fixture(scope="module")
def as_it_was(recording, seqs, frame):
    """What a feed showed that was at these records when they were the newest."""
    feed, out = Feed(None, lambda: 0.0), {}
    feed._read(recording[0])
    feed._enter("live")
    for item in recording:
        if item.seq:
            feed._take(item)
        if item.seq in seqs:
            shown = frame(feed)
            out[item.seq] = (pictures(shown), shown.view.pool, shown.view.waste, shown.view.sharing)
    return out


def differing(now, then):
    """Names of panels that read or look otherwise, with the first line of each that does."""
    return {
        name: next(
            ((text_of(a), text_of(b)) for a, b in zip(now[name], then[name], strict=True) if a != b), ("length", "")
        )
        for name in PANELS
        if now[name] != then[name]
    }


async def test_every_record_comes_back_as_it_was_shown_live(running, seqs, as_it_was):
    async with running(SIZE) as screen:
        order = list(seqs)
        random.Random(5).shuffle(order)
        for seq in order:
            screen.app.scrub.to(seq)
            shown = screen.app.frame()
            then, pool, waste, sharing = as_it_was[seq]
            assert shown.view.seq == seq
            assert (shown.view.pool, shown.view.waste, shown.view.sharing) == (pool, waste, sharing)
            assert differing(pictures(replace(shown, status=replace(shown.status, past=None))), then) == {}


async def test_the_screen_of_a_record_shows_its_figures(running, recording, seqs):
    by_seq = {item.seq: item for item in recording}
    async with running(SIZE) as screen:
        for seq in seqs[::3]:
            await screen.press("g")
            screen.app.screen.focused.value = str(seq)
            await screen.press("enter")
            item = by_seq[seq]
            assert step(screen) == seq
            assert f"{recording[-1].seq - seq} record" in screen.text("header")
            assert f" step {seq} " in " ".join(screen.text("scrub").split()) + " "
            legend = screen.text("blocks").splitlines()[-1]
            states = ("free", "reserved", "filling", "full", "shared", "cached")
            assert re.findall(r"\d[\d,]*", legend) == [f"{getattr(item.pool, name):,}" for name in states]
            assert re.search(rf"held +{item.waste.held:,} ", screen.text("waste"))
            painted = "\n".join(screen.painted())
            assert screen.text("blocks").splitlines()[5] in painted


async def test_the_batch_s_last_column_is_the_step_that_is_shown(running, recording):
    async with running(SIZE) as screen:
        for seq in (20, 90, 131, 160):
            screen.app.scrub.to(seq)
            view = screen.app.frame().view
            assert view.steps[-1].seq <= seq
            record = next(item for item in recording if item.seq == view.steps[-1].seq)
            rows = {row.request: row.kind for row in record.rows}
            assert {cell.request: cell.kind for cell in view.steps[-1].cells.values()} == rows
            assert not [one for one in recording[1:] if view.steps[-1].seq < one.seq <= seq and one.rows]


async def test_keys_walk_record_by_record_and_stop_at_both_ends(running, recording):
    last = recording[-1].seq
    async with running() as screen:
        await screen.press("comma")
        assert step(screen) == last - 1
        await screen.press("left", "left", "comma", "right", "full_stop")
        assert step(screen) == last - 2
        await screen.press("full_stop", "full_stop", "full_stop", "full_stop")
        assert step(screen) == last
        await screen.press("shift+left", "shift+left")
        assert step(screen) == last - 20
        screen.app.scrub.to(2)
        await screen.press("left", "left", "left", "left")
        assert step(screen) == 0
        await screen.press("shift+left", "right")
        assert step(screen) == 1
        await screen.press("space")
        assert step(screen) == last
        assert "live" in screen.text("header")


@pytest.mark.parametrize("key", ["comma", "full_stop", "left", "shift+left"])
async def test_what_was_said_of_a_step_goes_when_another_is_shown(running, key):
    async with running() as screen:
        await screen.press("N", "N")
        assert f"step {step(screen)}: " in screen.text("footer")
        await screen.press(key)
        assert "step" not in screen.text("footer")


async def test_events_are_what_the_records_say(running, recording):
    """Each of them has a switch, a preemption, a copy or another thing to tell, and none is left out."""
    before = recording[0].control
    wanted = set()
    for item in recording[1:]:
        if item.preempted or item.copies or item.control != before:
            wanted.add(item.seq)
        before = item.control
    async with running() as screen:
        screen.app.scrub.to(0)
        seen = []
        for _ in range(len(recording)):
            await screen.app.press("n")
            if "no event is known" in screen.text("footer"):
                break
            seen.append(screen.app.scrub.seq)
            assert f"step {seen[-1]:,}: " in screen.text("footer")
        assert seen == sorted(set(seen))
        assert wanted <= set(seen)
        back = []
        for _ in range(len(recording)):
            await screen.app.press("N")
            if "no event is known" in screen.text("footer"):
                break
            back.append(screen.app.scrub.seq)
        assert back == seen[-2::-1]


async def test_the_feed_goes_on_behind_a_frozen_picture(running, recording):
    async with running(SIZE, items=recording[:-20]) as screen:
        await screen.press("space", "comma", "comma", "comma")
        at = step(screen)
        frozen = {name: screen.text(name) for name in ("blocks", "batch", "sharing", "waste", "speed", "requests")}
        for record in recording[-20:]:
            screen.app.session.feed._take(record)
        screen.app.draw_frame()
        assert {name: screen.text(name) for name in frozen} == frozen
        assert step(screen) == at
        assert "23 records since" in screen.text("header")
        await screen.press("full_stop")
        assert step(screen) == at + 1


# Over a recording


async def settle():
    for _ in range(80):
        await asyncio.sleep(0)


@pytest.fixture
def playing(recording, tmp_path, clock, showing):
    """The app over a recording in a file, played up to a record; the clock moves when told."""
    path = tmp_path / "recording.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"".join(encode(item) + b"\n" for item in recording))

    @asynccontextmanager
    async def run(at, size=SIZE):
        player = Player(path, clock=clock, sleep=lambda _: asyncio.Event().wait(), scan_after=0.0)

        async def played():
            while player.position.seq < at:
                await passes(clock, player, 0.05)
            await asyncio.to_thread(player.index.join)

        async with showing(Session(player=player, clock=clock), None, clock, played, size) as screen:
            yield screen, player

    return run


async def passes(clock, player, seconds):
    """Time, and what comes of it."""
    clock.time += seconds
    for _ in range(40):
        player._pacing.wake()
        await asyncio.sleep(0)


async def arrives(screen, player):
    """What was asked of the player is on the screen."""
    for _ in range(2000):
        if player.arrived and screen.app.session.feed.fold.seq == player.position.seq:
            break
        await asyncio.sleep(0)
    screen.app.draw_frame()
    await screen.settle()


async def test_a_recording_plays_pauses_and_goes_on(playing, clock):
    async with playing(30) as (screen, player):
        at = step(screen)
        assert at >= 30
        assert " playing " in screen.text("scrub")
        assert "playback" in screen.text("header")
        await screen.press("space")
        await passes(clock, player, 2.0)
        screen.app.draw_frame()
        assert step(screen) == at
        assert " stopped " in screen.text("scrub")
        await screen.press("space")
        await passes(clock, player, 1.0)
        await arrives(screen, player)
        assert step(screen) > at
        assert " playing " in screen.text("scrub")


async def test_a_recording_goes_on_and_back_by_records(playing, recording):
    async with playing(30) as (screen, player):
        at = step(screen)
        await screen.press("comma")
        assert step(screen) == at - 1
        assert not player.playing
        await screen.press("full_stop")
        assert step(screen) == at
        for on in range(1, 4):
            await screen.press("full_stop")
            await arrives(screen, player)
            assert step(screen) == at + on
        await screen.press("g", *"150", "enter")
        await arrives(screen, player)
        assert step(screen) == 150
        item = next(item for item in recording if item.seq == 150)
        assert screen.app.frame().view.pool == item.pool
        await screen.press("g", *"3", "enter")
        assert step(screen) == 3
        await screen.press("g", *"99999", "enter")
        await arrives(screen, player)
        assert step(screen) == recording[-1].seq
        assert player.ended


async def test_a_record_that_was_jumped_to_looks_as_it_did_live(playing, as_it_was, seqs):
    async with playing(10) as (screen, player):
        for seq in (seqs[20], seqs[8], seqs[30], seqs[5]):
            screen.app.scrub.to(seq)
            await arrives(screen, player)
            shown = screen.app.frame()
            assert shown.view.seq == seq
            then = as_it_was[seq][0]
            for name in ("blocks", "sharing-open", "waste-joint"):
                assert [text_of(line) for line in pictures(shown)[name]] == [text_of(line) for line in then[name]]


async def test_what_the_tape_has_dropped_is_read_from_the_file_again(playing, recording):
    async with playing(120) as (screen, player):
        feed = screen.app.session.feed
        feed.tape.begin(feed.fold, feed.history.held_lanes)
        feed.tape._reels = feed.tape._reels[-1:]  # as a budget drops what is old
        assert feed.tape.first > 60
        await screen.press("g", *"60", "enter")
        await arrives(screen, player)
        assert step(screen) == 60
        item = next(item for item in recording if item.seq == 60)
        assert screen.app.frame().view.pool == item.pool


async def test_events_beyond_what_was_played_are_found_in_the_file(playing, recording):
    async with playing(30) as (screen, player):
        await screen.press("n")
        await arrives(screen, player)
        found = step(screen)
        assert found > 30
        at = next(i for i, item in enumerate(recording) if item.seq == found)
        item = recording[at]
        assert item.preempted or item.copies or item.control != recording[at - 1].control
        await screen.press("N")
        assert step(screen) < found or "no event is known" in screen.text("footer")


async def test_the_speed_of_a_recording(playing, clock):
    async with playing(30) as (screen, player):
        await screen.press("right_square_bracket", "right_square_bracket")
        assert player.speed == 4.0
        assert "4 times as fast" in screen.text("footer")
        assert "4 times as fast" in screen.text("scrub")
        at = step(screen)
        await passes(clock, player, 1.0)
        await arrives(screen, player)
        assert screen.app.session.feed.fold.time - at > 0
        seconds = player.position.seconds
        await passes(clock, player, 0.1)
        assert player.position.seconds - seconds <= 0.4 + 1e-9
        await screen.press(*["left_square_bracket"] * 12)
        assert player.speed == 0.1
        await screen.press(*["right_square_bracket"] * 20)
        assert player.speed == 1000.0


async def test_a_recording_cannot_be_changed(playing):
    async with playing(30) as (screen, _):
        for key in ("m", "a", "l", "b", "y", "u", "R"):
            screen.app.say("")
            await screen.press(key)
            assert "a recording cannot be changed" in screen.text("footer")
        await screen.press("r")
        assert "this is a recording already" in screen.text("footer")
