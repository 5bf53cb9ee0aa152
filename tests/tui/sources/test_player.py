"""A recording of servers is played in its own time, and at any look of it the pictures are those that were live."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager, suppress

import pytest

from tests.tui.sources.heard import BEGIN, Chance, Clock, fold, take, told
from tui import cli
from tui.recording import RecordingError
from tui.sources.items import Failed, Scrape, encode_item
from tui.sources.player import SourcePlayer
from tui.sources.source import Source

SERVERS = 3


class Time:
    """Goes on while somebody sleeps, and not otherwise."""

    def __init__(self):
        self.now = 7.0

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        await asyncio.sleep(0)
        self.now += seconds


def write(path, items):
    path.write_bytes(b"".join(encode_item(item) + b"\n" for item in items))
    return path


@pytest.fixture(scope="module")
def items():
    chances = [Chance(6, number, kv=1) for number in range(SERVERS)]
    made = [chance.items(90) for chance in chances]
    heads = [own[0] for own in made]
    return heads + sorted((item for own in made for item in own[1:]), key=lambda item: item.time)


@pytest.fixture
def file(items, tmp_path):
    return write(tmp_path / "r.jsonl", items)


@asynccontextmanager
async def playing(path, **options):
    player = SourcePlayer(path, **options)
    task = asyncio.create_task(player.run())
    try:
        yield player
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await player.close()


async def until(done):
    for _ in range(200_000):
        if done():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


def live(items, now, upto):
    """The pictures of sources that heard the first items, at a moment."""
    clock = Clock()
    sources = [Source("", "", clock, number) for number in range(SERVERS)]
    for item in items[:upto]:
        take(sources[item.source], clock, item)
    return [told(source.view(now=now)) for source in sources]


async def test_it_plays_to_the_same_pictures_as_live(items, file):
    async with playing(file, speed=math.inf) as player:
        await until(lambda: player.ended)
        assert player.complete
        now = player.now()
        assert now == max(item.time for item in items)
        assert [told(source.view()) for source in player.sources] == live(items, now, len(items))
        assert player.looks == max(
            sum(isinstance(item, Scrape | Failed) and item.source == number for item in items)
            for number in range(SERVERS)
        )


@pytest.mark.parametrize("speed", [1.0, 10.0])
async def test_items_come_at_their_time(items, file, speed):
    time = Time()
    began = time.now
    async with playing(file, speed=speed, clock=time, sleep=time.sleep) as player:
        heard = []
        for source in player.sources:
            source.listener = lambda item: heard.append((item, time.now))
        await until(lambda: player.ended)
    latest = BEGIN
    for item, at in heard:
        latest = max(latest, item.time)
        assert (at - began) * speed == pytest.approx(latest - BEGIN, abs=1e-4)
    assert [item for item, _ in heard] == items[SERVERS:]


async def test_it_stands_still_and_goes_on(file):
    time = Time()
    async with playing(file, clock=time, sleep=time.sleep) as player:
        await until(lambda: player.looks >= 10)
        player.pause()
        looks, now, shown = player.looks, player.now(), [told(source.view()) for source in player.sources]
        time.now += 100
        for _ in range(50):
            await asyncio.sleep(0)
        assert (player.looks, player.now()) == (looks, now)
        assert [told(source.view()) for source in player.sources] == shown
        player.step()
        await until(lambda: player.arrived)
        assert player.looks == looks + 1
        assert not player.playing
        player.resume()
        await until(lambda: player.ended)


async def test_it_goes_to_any_look_and_back(items, file):
    """Forward at once, back by reading again: the pictures are the same each time."""
    async with playing(file) as player:
        player.pause()
        shown = {}
        for look in (20, 35, 5, 20, 35, 1, 5):
            player.seek(look)
            await until(lambda: player.arrived)
            assert player.looks == look
            found = [told(source.view()) for source in player.sources]
            assert found == shown.setdefault(look, found)
            heard = sum(source.items for source in player.sources)
            assert found == live(items, player.now(), heard)
        player.seek(10_000)
        await until(lambda: player.arrived)
        assert player.complete


async def test_it_goes_on_to_an_event(items, file):
    async with playing(file) as player:
        player.pause()
        before = {source.number: source.items for source in player.sources}
        player.seek_event()
        await until(lambda: player.arrived)
        found = [source.tape.event_after(before[source.number]) for source in player.sources]
        assert len([event for event in found if event is not None]) == 1
        event = next(event for event in found if event is not None)
        assert event.time == pytest.approx(player.now())


async def test_how_long_it_is_is_known_once_it_was_read_through(items, file):
    async with playing(file, speed=math.inf, scan_after=0.0) as player:
        player.span.start()
        player.span.join()
        assert player.duration == pytest.approx(max(item.time for item in items) - BEGIN)
        await until(lambda: player.ended)
        assert player.span.looks == player.looks
        status = player.status
        assert (status.position, status.ended, status.running) == (pytest.approx(player.duration), True, True)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: data[:-50], "truncated at line "),
        (lambda data: data + b'{"type":"slots","source":0,"time":1,"slots":4}\n', "line 274 does not decode"),
        (lambda data: data + b"what\n{}\n", "line 274 does not decode"),
    ],
)
async def test_a_broken_file_plays_to_where_it_breaks(items, file, spoil, words):
    file.write_bytes(spoil(file.read_bytes()))
    assert len(items) == 273
    async with playing(file, speed=math.inf) as player:
        await until(lambda: player.ended)
        assert words in player.note
        assert not player.complete
        heard = sum(source.items for source in player.sources)
        assert heard >= 272
        assert [told(source.view()) for source in player.sources] == live(items, player.now(), heard)


def test_what_cannot_be_played_is_said_at_once(tmp_path):
    with pytest.raises(RecordingError, match="is not a file"):
        SourcePlayer(tmp_path)
    with pytest.raises(RecordingError, match="cannot be read: No such file"):
        SourcePlayer(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(RecordingError, match="empty is empty"):
        SourcePlayer(tmp_path / "empty")


# The command line


def run(capsys, *arguments):
    code = cli.main(["play", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_once_and_json_of_a_fleet(file, items, capsys):
    code, out, err = run(capsys, file, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    shown = live(items, max(item.time for item in items), len(items))
    assert [(one["name"], one["url"], one["kind"]) for one in found["servers"]] == [
        view["server"][:3] for view in shown
    ]
    assert found["total"]["servers"] == SERVERS
    code, out, err = run(capsys, file, "--once")
    assert (code, err) == (0, "")
    assert all(f"server-{number}" in out for number in range(SERVERS))
    assert "the recording ends here" in out


def test_once_of_one_server_at_a_look(tmp_path, capsys):
    items = Chance(8, kinds=("vllm",)).items(120)
    path = write(tmp_path / "r.jsonl", items)
    code, out, err = run(capsys, path, "--json", "--step", 12)
    found = json.loads(out)
    source, clock = fold(())
    for item in items:
        take(source, clock, item)
        if source.tape.looks_seen == 12:
            break
    view = source.view()
    assert (code, err, found["phase"], found["age_seconds"]) == (0, "", view.link.phase, view.link.age)
    code, out, err = run(capsys, path, "--once", "--step", 100_000)
    assert code == 0
    assert f"look 100,000 is not in it: this is {fold(items)[0].tape.looks_seen}" in err
    assert "server-0" in out


def test_a_broken_recording_is_shown_and_told_of(tmp_path, capsys):
    items = Chance(8).items(30)
    path = write(tmp_path / "r.jsonl", items)
    path.write_bytes(path.read_bytes()[:-20])
    code, out, err = run(capsys, path, "--once")
    assert (code, err) == (0, "paged-top play: truncated at line 31\n")
    assert "server-0" in out
    path.write_bytes(b'{"type":"source","format":9}\n')
    code, out, err = run(capsys, path, "--once")
    assert (code, out) == (2, "")
    assert "recorded by a newer version: format 9, this paged-top knows 1" in err
