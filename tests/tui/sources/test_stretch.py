"""Looks at many servers: spread over time, and rarer where they cost too much of this machine."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter

from tests.servers.stand_in import StandIn
from tests.tui.sources.waiting import until
from tui.sources import watch as watch_module
from tui.sources.items import Scrape, SourceHead
from tui.sources.poller import Poller
from tui.sources.stretch import MOST_TIMES, Stretch, shift
from tui.sources.targets import HttpSettings, target
from tui.sources.watch import Watch
from tui.together import ended


def test_looks_are_rarer_where_they_cost_too_much_and_come_back():
    now, used = [0.0], [0.0]
    stretch = Stretch(lambda: now[0], lambda: used[0])

    def spend(share):
        now[0] += 5.0
        used[0] += share * 5.0
        stretch.reckon()
        return stretch.times

    assert [spend(0.9), spend(0.6), spend(0.4), spend(0.4)] == [2, 4, 4, 4]
    assert [spend(0.1), spend(0.1), spend(0.1)] == [2, 1, 1]
    assert [spend(2.0) for _ in range(10)][-1] == MOST_TIMES
    stretch.reckon()  # no time has passed
    assert stretch.times == MOST_TIMES


async def test_servers_are_told_how_often_they_are_looked_at(monkeypatch):
    async with StandIn("vllm") as server:
        watch = Watch([target(server.url)], HttpSettings(), every=0.05)
        items = []
        watch.sources[0].listener = items.append
        watch._stretch.times = 2
        watching = asyncio.create_task(watch.run())
        try:
            await until(lambda: any(isinstance(item, SourceHead) and item.every == 0.1 for item in items))
        finally:
            await ended([watching])


def test_looks_at_many_are_spread_over_the_time_between_two():
    for times in (1, 2, 8, MOST_TIMES):
        tenths = Counter(int(shift(number, 1.5) % (1.5 * times) / (1.5 * times) * 10) for number in range(1_000))
        assert sorted(tenths) == list(range(10))
        assert max(tenths.values()) < 120
    assert shift(0, 1.0) == 0  # one alone is looked at when it should be


async def test_a_shifted_poller_looks_at_once_and_then_at_its_part_of_the_time():
    async with StandIn("vllm") as server:
        heard = []
        poller = Poller(target(server.url), HttpSettings(), heard.append, 0, every=60.0, shift=55.0)
        looking = asyncio.create_task(poller.run())
        try:
            await until(lambda: sum(isinstance(item, Scrape) for item in heard) == 2)  # after 5 s, not after 60
        finally:
            await ended([looking])


def test_a_fleet_may_have_as_many_connections_open(monkeypatch):
    set_to = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    watch_module._allow_files(200)
    assert set_to == []
    watch_module._allow_files(2_000)
    watch_module._allow_files(20_000)
    assert set_to == [(2_128, 4_096), (4_096, 4_096)]
