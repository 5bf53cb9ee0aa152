"""A fleet is frozen as a whole: what was shown then is shown again, while the watching goes on."""

from __future__ import annotations

import asyncio

import pytest

from tests.tui.sources.heard import Chance, Clock, take, told
from tests.tui.sources.test_player import playing, until, write
from tui.sources.items import Failed, Scrape
from tui.sources.past import SourcesScrub
from tui.sources.source import Source

SERVERS = 3


class Watched:
    """Servers that hear things, and what was told of the scrub."""

    def __init__(self, seed=2, count=80, servers=SERVERS, budget=1 << 30):
        self.clock = Clock()
        self.sources = [Source("", "", self.clock, number, budget) for number in range(servers)]
        self.front = None
        self.said = []
        self.scrub = SourcesScrub(self.sources, self.tell, self.clock, front=lambda: self.front)
        chances = [Chance(seed, number, kv=1) for number in range(servers)]
        self.items = sorted((item for one in chances for item in one.items(count)), key=lambda item: item.time)
        self.shown = {}  # the whole picture, after each item, by its moment

    def tell(self, words, bad):
        self.said.append((words, bad))

    def hear(self, count=None, noting=False):
        for item in self.items[:count]:
            take(self.sources[item.source], self.clock, item)
            if noting:
                self.shown[self.clock.time] = self.fleet()
        self.items = self.items[len(self.items) if count is None else count :]

    def fleet(self):
        """All that can be asked for: the row of a server has no KV trees, and is like its own picture else."""
        alone = [told(self.scrub.server(source)) for source in self.sources]
        rows = [told(view) for view in self.scrub.fleet.servers]
        assert [{**row, "kv": ()} for row in rows] == [{**one, "kv": ()} for one in alone]
        return alone


def test_a_frozen_fleet_stays_and_its_moments_are_as_they_were():
    watched = Watched()
    watched.hear(100, noting=True)
    scrub = watched.scrub
    scrub.pause()
    frozen = watched.fleet()
    assert frozen == watched.shown[watched.clock.time]
    watched.shown, then = {}, watched.shown
    items, watched.items = watched.items, []
    for item in items:
        take(watched.sources[item.source], watched.clock, item)
    assert watched.fleet() == frozen
    assert scrub.past.behind == pytest.approx(watched.clock.time - scrub.fleet.now)
    for step in (-1, -1, -10, 5, -3, -20, 1, 1):
        seq = scrub.seq
        scrub.by(step)
        assert scrub.seq == max(1, seq + step)
        assert watched.fleet() == then[scrub.fleet.now], scrub.seq
    scrub.pause()
    assert scrub.past is None
    assert scrub.fleet.now == watched.clock.time


def test_steps_are_looks_of_the_server_in_front():
    watched = Watched()
    watched.hear()
    scrub, front = watched.scrub, watched.sources[1]
    watched.front = front
    times = [item.time for item in Watched().items if isinstance(item, Scrape | Failed) and item.source == 1]
    highest = 0.0
    moments = [highest := max(highest, time) for time in times]
    seen = front.tape.looks_seen
    scrub.by(-1)
    assert (scrub.seq, scrub.past.last, scrub.past.unit) == (seen - 1, seen, "look")
    assert scrub.server(front).looks.newest.time == scrub.fleet.now
    scrub.goto("7")
    assert scrub.seq == 7
    assert scrub.fleet.now >= moments[6]
    assert scrub.server(front).looks.newest == front.view(front.tape.look_seq(7)).looks.newest
    before = scrub.fleet.now
    watched.front = watched.sources[2]
    tape = watched.sources[2].tape  # another server is opened: the moment is the same, and its looks are counted
    assert scrub.past.seq == scrub.seq == tape.look_number(tape.seq_at(before))
    assert (scrub.past.last, scrub.fleet.now) == (tape.looks_seen, before)
    number = scrub.seq
    scrub.by(-1)
    assert scrub.seq == number - 1


def test_events_of_all_servers_in_order():
    watched = Watched()
    watched.hear()
    scrub = watched.scrub
    expected = []
    for source in watched.sources:
        seq = 0
        while (event := source.tape.event_after(seq)) is not None:
            seq = event.seq
            expected.append((event.time, f"{source.name}: {event.words}"))
    moments = sorted({time for time, _ in expected})
    back = []
    while True:
        scrub.event(on=False)
        if watched.said[-1][1]:
            break
        back.append(scrub.fleet.now)
        assert (scrub.fleet.now, watched.said[-1][0]) in expected
    assert back == moments[::-1]
    assert watched.said[-1] == ("no event is known before this", True)
    on = []
    while True:
        scrub.event(on=True)
        if watched.said[-1][1]:
            break
        on.append(scrub.fleet.now)
    assert on == moments[1:]


def test_what_is_not_kept_any_more_is_told():
    watched = Watched(count=300, servers=1, budget=20_000)
    watched.hear(30)
    scrub, (source,) = watched.scrub, watched.sources
    scrub.pause()
    frozen = watched.fleet()
    for item in watched.items:
        take(source, watched.clock, item)
    assert source.tape.first > 30
    assert watched.fleet() == frozen  # it was drawn, and stands
    scrub.goto("3")
    first = scrub.past.first
    assert scrub.seq == first > 3
    assert watched.said[-1] == ("look 3 is not kept: this is the nearest", True)
    scrub.by(-5)
    assert scrub.seq == first
    for nonsense in ("", "x", "-1", "1.5"):
        scrub.goto(nonsense)
        assert watched.said[-1] == (f"a look is a whole number, not {nonsense!r}", True)


def test_before_anything_was_heard():
    watched = Watched()
    for ask in (watched.scrub.pause, lambda: watched.scrub.by(-1), lambda: watched.scrub.event(True)):
        ask()
        assert watched.said.pop() == ("there is nothing to pause yet", True)
    watched.scrub.faster(2)
    assert watched.said.pop() == ("only a recording has a speed", True)
    assert watched.scrub.past is None
    assert [view.link.phase for view in watched.scrub.fleet.servers] == ["finding"] * SERVERS


async def test_a_recording_is_paused_stepped_and_read_on(tmp_path):
    """Within what was played its tape is asked; after it the file is read on, and before it read again."""
    chances = [Chance(6, number, kv=1) for number in range(2)]
    made = [chance.items(90) for chance in chances]
    items = [own[0] for own in made]
    items += sorted((item for own in made for item in own[1:]), key=lambda item: item.time)
    async with playing(write(tmp_path / "r.jsonl", items)) as player:
        said = []
        scrub = SourcesScrub(player.sources, lambda *words: said.append(words), player.now, player)
        player.pause()
        player.seek(20)
        await until(lambda: player.arrived)
        scrub.by(-4)
        assert (scrub.seq, player.playing, player.looks) == (16, False, 20)
        then = [told(scrub.server(source)) for source in player.sources]
        scrub.to(25)
        await until(lambda: player.arrived)
        assert (scrub.seq, 25 in [source.tape.looks_seen for source in player.sources]) == (None, True)
        scrub.to(16)
        assert [told(scrub.server(source)) for source in player.sources] == then
        scrub.pause()
        assert (scrub.seq, player.playing) == (None, True)
        scrub.pause()
        assert not player.playing
        scrub.faster(3)
        assert (player.speed, said[-1]) == (3.0, ("3 times as fast as recorded", False))
        looks = player.looks
        while scrub.past is None and not player.ended:
            scrub.event(on=True)
            await until(lambda: player.arrived)
        assert player.looks > looks
        assert player.ended
        await asyncio.sleep(0)
