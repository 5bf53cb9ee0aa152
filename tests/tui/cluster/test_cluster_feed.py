"""Following a cluster over real HTTP: by its stream or by looks, while it comes and goes; and what is kept of it."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import msgspec
import pytest

from engine.cluster.protocol import encode_cluster
from tests.tui.cluster.clusters import BEGIN, Front, busy, early, many, worker, wounded
from tests.tui.sources.waiting import until
from tui.cluster import client as client_module
from tui.cluster import feed as feed_module
from tui.cluster.client import HttpCluster, read_state
from tui.cluster.events import happened
from tui.cluster.feed import ClusterFeed
from tui.cluster.states import ClusterStates
from tui.cluster.tape import ClusterTape
from tui.engine_api import Refused, Unreadable
from tui.together import ended


@asynccontextmanager
async def following(front, clock=time.monotonic):
    cluster = HttpCluster(front.url)
    feed = ClusterFeed(cluster, clock)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        await ended([task])
        await cluster.close()


async def test_every_state_of_a_stream_is_taken_in_order():
    async with Front(early()) as front, following(front) as feed:
        await until(lambda: feed.states.heard == 1)
        assert feed.link.phase == "live"
        assert feed.states.state == early()
        for state in (busy(), wounded()):
            front.tell(state)
            await until(lambda state=state: feed.states.state == state)
        assert feed.states.heard == 3
        assert "GET /engine/cluster" not in front.asked


async def test_a_stream_that_tells_nothing_new_is_silent_since_its_last_state():
    now = [100.0]
    async with Front(early()) as front, following(front, lambda: now[0]) as feed:
        await until(lambda: feed.states.heard == 1)
        now[0] = 107.5
        assert feed.silent == 7.5
        front.tell(busy())
        await until(lambda: feed.states.heard == 2)
        assert feed.silent == 0


async def test_a_cluster_without_a_stream_is_looked_at(monkeypatch):
    monkeypatch.setattr(feed_module, "POLL_SECONDS", 0.05)
    async with Front(early(), streams=False) as front, following(front) as feed:
        await until(lambda: feed.states.heard >= 3)
        assert feed.silent == 0  # between looks anything may have happened
        front.tell(busy())
        await until(lambda: feed.states.state == busy())


async def test_the_server_goes_away_and_comes_back():
    front = Front(early())
    await front.start()
    async with following(front) as feed:
        await until(lambda: feed.states.heard)
        await front.stop()
        await until(lambda: feed.link.phase == "reconnecting")
        assert feed.states.newest() is not None  # the last picture stays
        await front.start()
        front.tell(busy())
        await until(lambda: feed.link.phase == "live" and feed.states.state == busy())
        assert "the cluster answers again, after" in feed.link.news
        found = feed.states.tape.event_after(1)
        assert found is not None
        assert "the cluster answers again" in found[1]
        await front.stop()


async def test_what_is_no_cluster_is_told():
    async with Front(early()) as front, following(front) as feed:
        await until(lambda: feed.states.heard)
        front.is_cluster = False
        for queue in front._told:
            queue.put_nowait(None)
        await until(lambda: feed.link.phase == "foreign")
        assert feed.link.detail == "no cluster answers there any more"
        assert not feed.unreadable


def test_a_state_of_another_version_is_not_believed():
    with pytest.raises(Unreadable, match="tells version 99 of its state; this paged-top knows 1"):
        read_state(encode_cluster(msgspec.structs.replace(early(), version=99)))
    with pytest.raises(Unreadable, match="tells version 99 of its state; this paged-top knows 1"):
        read_state(b'{"type":"cluster","version":99}')
    with pytest.raises(Unreadable, match="tells no state of a cluster"):
        read_state(b'{"type":"snapshot"}')


async def test_a_front_that_stands_still_is_told_and_asked_again(monkeypatch):
    monkeypatch.setattr(client_module, "SILENT_TIMEOUT", 0.2)
    async with Front(early()) as front, following(front) as feed:
        await until(lambda: feed.link.phase == "reconnecting")
        assert feed.link.detail == "the cluster sent nothing for 0.2 s"
        await until(lambda: "the cluster answers again" in feed.link.news)


async def test_large_states_are_taken_as_often_as_their_size_allows_and_the_newest_in_the_end(monkeypatch):
    monkeypatch.setattr(feed_module, "BYTES_PER_SECOND", 2_000_000)  # half a second for each
    async with Front(many()) as front, following(front) as feed:
        await until(lambda: feed.states.heard)
        for number in range(100, 130):
            front.tell(msgspec.structs.replace(many(), number=number))
        await until(lambda: feed.states.state.number == 129)
        assert feed.states.heard < 20  # in ten seconds


async def test_changes_are_sent_and_refusals_told_in_its_own_words():
    async with Front(early()) as front:
        cluster = HttpCluster(front.url)
        control = await cluster.change_cluster({"separate": False})
        assert control.separate is False
        assert control.decode == 2
        front.refusal = "decode: nobody would be left to serve"
        with pytest.raises(Refused, match="HTTP 400: decode: nobody would be left to serve"):
            await cluster.change_cluster({"decode": 0})
        await cluster.close()


def test_what_happened_between_two_states():
    assert happened(early(), early()) == ""
    assert happened(early(), busy()) == (
        "decode-1 is started again: exit code -9, a transfer to decode-1 failed: the process of prefill-0 is no more"
    )
    assert happened(busy(), busy()) == ""
    told = happened(busy(), wounded())
    assert told.startswith("prefill and decode: separate, now colocated, routing: prefix, now round robin")
    assert told.endswith("and 3 more")
    again = msgspec.structs.replace(busy(), workers=busy().workers[:2])
    assert happened(busy(), again) == "decode-1 is gone"
    assert happened(again, busy()) == "decode-1 is new"
    dead = msgspec.structs.replace(
        again, workers=(worker("prefill-0", phase="dead", engine=None, reason="out of memory"), again.workers[1])
    )
    assert happened(again, dead) == "prefill-0 is dead: out of memory"


def test_the_tape_drops_the_oldest_and_gives_back_what_it_keeps():
    tape = ClusterTape(budget=100_000)
    states = [msgspec.structs.replace(busy(), number=number, time=BEGIN + number) for number in range(3_000)]
    for state in states:
        tape.keep(encode_cluster(state), state.time, "something" if state.number % 500 == 0 else "")
    assert tape.last == 3_000
    assert tape.first > 1
    assert tape.size < 100_000 + 300_000
    for seq in (tape.first, (tape.first + 3_000) // 2, 2_999, 3_000):
        assert tape.state(seq) == states[seq - 1]
        assert tape.time(seq) == states[seq - 1].time
    assert tape.nearest(1) == tape.first
    assert tape.earlier(3_000, 5.0) == 2_995
    assert tape.earlier(tape.first, 5.0) is None
    assert tape.event_before(3_000) == (2_501, "something")
    assert tape.event_after(tape.first) is not None
    assert tape.event_after(2_501) is None


def test_rates_of_the_past_are_what_they_were_then():
    states = ClusterStates()
    for state in (early(), busy()):
        states.take(state, encode_cluster(state))
    now, then, first = states.newest(), states.past(2), states.past(1)
    prefill = busy().workers[0]
    assert now.rate(prefill, "prefill_tokens") == then.rate(prefill, "prefill_tokens") == 1_200
    assert now.decisions_rate() == 12
    assert first.rate(early().workers[0], "prefill_tokens") is None
    assert states.newest(silent=2.5).rate(prefill, "prefill_tokens") == 6_000 / 7.5
    assert states.newest(silent=60).rate(prefill, "prefill_tokens") == 0
