"""A server's picture is what was heard of it, and any kept moment of it is as it was."""

from __future__ import annotations

import random

import pytest

from servers.kv_events import AllBlocksCleared, Batch, BlockStored, Heard, to_builtins
from servers.looks import KEPT
from servers.reading import lines_known
from servers.slots import Slot
from tests.servers.pages import EngineFigures, page
from tests.tui.sources.heard import BEGIN, Chance, fold, take, told
from tui.sources import kv_tape
from tui.sources.items import (
    Failed,
    KvLink,
    KvMessage,
    KvState,
    Scrape,
    Slots,
    SourceHead,
    decode_item,
    encode_item,
)
from tui.sources.report import server_report
from tui.sources.source import NEWS_SHOWN
from tui.sources.tape import NotKept

HEAD = SourceHead(0, "a", "http://127.0.0.1:8000", "vllm", "0.11", time=BEGIN, every=1.0)


def scrape(engine, time, took=0.01, kind="vllm"):
    return Scrape(0, BEGIN + time, took, lines_known(page(kind, [engine])))


@pytest.mark.parametrize("seed", range(3))
def test_every_moment_is_as_it_was(seed, monkeypatch):
    """The picture after each item, asked for later and in any order, equals that of a source which heard no more."""
    monkeypatch.setattr(kv_tape, "SPACING", 2_000)  # keyframes come all the time
    monkeypatch.setattr(kv_tape, "CHUNK", 500)
    items = Chance(seed).items(160)
    whole, _ = fold(items)
    assert len(whole.tape.endpoints[0].keyframes) > 3
    now = {}
    source, clock = fold(())
    for item in items:
        take(source, clock, item)
        now[source.items] = told(source.view())
    order = [*range(1, len(items) + 1)]
    random.Random(seed).shuffle(order)
    for seq in (*order[:30], *range(len(items), len(items) - 15, -1), *range(80, 95)):
        assert told(whole.view(seq)) == now[seq], seq


def test_every_moment_is_as_it_was_where_pages_are_so_large_that_few_looks_are_kept(monkeypatch):
    items = Chance(4, kinds=("vllm",), kv=0).items(160)
    monkeypatch.setattr("servers.looks.MOST_BYTES", 60_000)
    whole, _ = fold(items, budget=150_000)
    source, clock = fold(())
    for item in items:
        take(source, clock, item)
        assert sum(look.bytes for look in source.view().looks._looks) <= 60_000
        if source.items >= whole.tape.first:
            assert told(whole.view(source.items)) == told(source.view())
    assert 0 < whole.tape.first < 140
    assert 0 < whole.tape.size < 160_000


def test_a_past_longer_than_a_window_of_looks_is_as_it_was():
    """Looks of twenty minutes before the moment belong to it, and what was found in those before them."""
    items = Chance(7, kinds=("llama.cpp", "tgi"), kv=0).items(KEPT * 9 // 4)
    whole, clock = fold(())
    then = {}
    for item in items:
        take(whole, clock, item)
        if whole.items in (10, KEPT, KEPT * 2 + 7, len(items)):
            then[whole.items] = told(whole.view())
    assert {seq: told(whole.view(seq)) for seq in then} == then
    short, _ = fold(items, budget=200_000)
    assert short.tape.first > 0
    assert short.tape.size < 210_000 < whole.tape.size
    assert short.tape.looks_seen == whole.tape.looks_seen
    for seq in (short.tape.first, short.tape.first + 1, short.items):
        assert told(short.view(seq)) == told(whole.view(seq))
        assert short.tape.look_number(seq) == whole.tape.look_number(seq)


def test_the_past_keeps_to_its_budget_and_what_is_kept_is_as_it_was(monkeypatch):
    monkeypatch.setattr(kv_tape, "SPACING", 2_000)
    items = Chance(3).items(1500)
    source, clock = fold((), budget=60_000)
    now = {}
    for item in items:
        take(source, clock, item)
        if source.items % 50 == 0:
            now[source.items] = told(source.view())
    tape = source.tape
    assert 0 < tape.first < tape.last
    assert tape.size < 70_000
    kept = [seq for seq in now if seq >= tape.first]
    assert len(kept) > 2
    for seq in (tape.first, *kept):
        assert told(source.view(seq)) == now.get(seq, told(source.view(seq)))
    for seq in (tape.first - 1, tape.last + 1, -1):
        with pytest.raises(NotKept):
            source.view(seq)


def test_the_newest_picture_shares_its_looks_until_the_next_one():
    source, clock = fold([HEAD, scrape(EngineFigures(), 0)])
    first = source.view()
    clock.time += 0.5
    assert source.view().looks is first.looks
    assert source.view().link.age == pytest.approx(0.5)
    take(source, clock, scrape(EngineFigures(), 1))
    assert len(first.looks) == 1
    assert len(source.view().looks) == 2


def test_counters_that_fall_are_a_restart_with_its_time():
    engine = EngineFigures()
    source, clock = fold([HEAD])
    for second in range(5):
        engine.serve(3)
        take(source, clock, scrape(engine, second))
    engine.restart()
    take(source, clock, scrape(engine, 5))
    assert source.view().restarts == (BEGIN + 5,)
    assert source.view(source.items - 1).restarts == ()
    assert "counters began anew" in source.view().link.detail
    assert source.view().link.phase == "live"
    for second in range(6, 8 + int(NEWS_SHOWN)):
        take(source, clock, scrape(engine, second))
    assert source.view().link.detail == ""
    assert source.view().restarts == (BEGIN + 5,)


def test_slots_are_of_now_or_not_told():
    engine = EngineFigures()
    source, clock = fold([HEAD, scrape(engine, 0, kind="llama.cpp"), Slots(0, BEGIN, (Slot(0, True),))])
    assert [slot["id"] for slot in server_report(source.view(), 10.0)["slots"]] == [0]
    take(source, clock, Failed(0, BEGIN + 1, "failing", "nothing answers there"))
    assert source.view().slots == (Slot(0, True),)  # which a screen dims, and
    assert server_report(source.view(), 10.0)["slots"] is None
    take(source, clock, scrape(engine, 2, kind="llama.cpp"))
    take(source, clock, decode_item(encode_item(Slots(0, BEGIN + 2, None))))
    assert source.view().slots is None
    assert source.view(4).slots == (Slot(0, True),)
    assert not [item for item in source.state(0.0) if isinstance(item, Slots)]


def test_another_server_at_the_same_place_takes_nothing_over():
    engine = EngineFigures()
    engine.serve()
    kv = KvMessage(0, BEGIN, "tcp://x:1", to_builtins(Heard(0, Batch(1.0, (BlockStored((5,), None, (1, 2), 2),)))))
    slots = Slots(0, BEGIN, (Slot(0, True),))
    source, clock = fold([HEAD, scrape(engine, 0), kv, slots])
    before = told(source.view())
    take(source, clock, SourceHead(0, "a", HEAD.url, "sglang", "0.5", time=BEGIN + 1, every=1.0))
    view = source.view()
    assert (view.kind, view.version, view.link.phase) == ("sglang", "0.5", "finding")
    assert (len(view.looks), view.slots, view.restarts) == (0, None, ())
    assert [(one.heard, one.tree.resident, one.phase) for one in view.kv] == [(0, 0, "connecting")]
    take(source, clock, scrape(engine, 2, kind="sglang"))
    assert len(source.view().looks) == 1
    assert "another server: sglang 0.5" in source.view().link.detail
    assert told(source.view(4)) == before | {"server": told(source.view(4))["server"]}
    assert source.view(4).kind == "vllm"


def test_the_same_server_told_of_again_keeps_all():
    source, clock = fold([HEAD, scrape(EngineFigures(), 0), scrape(EngineFigures(), 1)])
    take(source, clock, SourceHead(0, "a", HEAD.url, "vllm", "", time=BEGIN + 2))
    assert len(source.view().looks) == 2
    assert source.view().version == "0.11"


def test_a_page_of_another_kind_is_of_another_server():
    source, clock = fold([HEAD, scrape(EngineFigures(), 0)])
    take(source, clock, scrape(EngineFigures(), 1, kind="sglang"))
    assert source.view().kind == "sglang"
    assert len(source.view().looks) == 1


@pytest.mark.parametrize(
    ("text", "phase", "words"),
    [
        ("something_else 1\n", "foreign", "no server that is known"),
        ("", "foreign", "no server that is known"),
        ('vllm:num_requests_running{engine="0} 1\n', "failing", "its metrics cannot be read: "),
    ],
)
def test_what_cannot_be_read_is_a_failed_look(text, phase, words):
    source, clock = fold([HEAD, scrape(EngineFigures(), 0)])
    take(source, clock, Scrape(0, BEGIN + 1, 0.25, text))
    view = source.view()
    assert view.link.phase == phase
    assert words in view.link.detail
    assert view.looks.newest.reading is None
    assert words in view.looks.newest.failed
    assert view.link.age == 1.0
    assert not view.link.fresh
    take(source, clock, scrape(EngineFigures(), 2))
    assert (source.view().link.phase, source.view().link.detail) == ("live", "it answers again")


def test_phases():
    engine = EngineFigures()
    source, clock = fold([HEAD])
    assert (source.view().link.phase, source.view().link.age) == ("finding", None)
    take(source, clock, Failed(0, BEGIN + 1, "locked", "it wants a key"))
    assert (source.view().link.phase, source.view().link.detail) == ("locked", "it wants a key")
    take(source, clock, scrape(engine, 2))
    assert source.view().link.phase == "live"
    clock.time += 2.5
    assert (source.view().link.phase, source.view().link.detail) == ("slow", "no answer yet")
    take(source, clock, scrape(engine, 5, took=2.4))
    assert (source.view().link.phase, source.view().link.detail) == ("slow", "takes 2.4 s to answer")
    assert source.view().link.fresh
    with pytest.raises(ValueError, match="an item of server 1 was given to server 0"):
        source.take(Failed(1, 1.0, "failing", "x"))


def test_kv_endpoints_stand_as_they_were_told():
    one, other = "tcp://a:1", "tcp://a:2"
    source, clock = fold([HEAD, KvLink(0, BEGIN, one, "connecting"), KvLink(0, BEGIN, other, "failing", "no route")])
    assert [(kv.endpoint, kv.phase, kv.detail) for kv in source.view().kv] == [
        (one, "connecting", ""), (other, "failing", "no route"),
    ]  # fmt: skip
    for second, event in enumerate((BlockStored((5, 6), None, (), 2), AllBlocksCleared()), 1):
        message = to_builtins(Heard(second - 1, Batch(1.0, (event,))))
        take(source, clock, KvMessage(0, BEGIN + second, one, message))
    now, before = source.view(), source.view(4)
    assert [(kv.phase, kv.heard, kv.tree.resident) for kv in now.kv] == [("live", 2, 0), ("failing", 0, 0)]
    assert [(kv.phase, kv.heard, kv.tree.resident) for kv in before.kv] == [("live", 1, 2), ("failing", 0, 0)]
    assert now.kv[0].since == BEGIN + 1
    assert [(time, churn.stored, churn.cleared) for time, churn in now.kv[0].churned] == [
        (BEGIN + 1, 2, 0), (BEGIN + 2, 2, 1),
    ]  # fmt: skip
    heard = told(source.view())["kv"][0][5:]
    for payload in ({"kind": "of a later version"}, {"kind": "missed", "first": 1, "last": 1 << 70}):
        take(source, clock, KvMessage(0, BEGIN + 3, one, payload))
        assert told(source.view())["kv"][0][5:] == heard
    assert source.view().kv[0].phase == "failing"
    assert "a message cannot be read" in source.view().kv[0].detail
    take(source, clock, KvState(0, BEGIN + 4, one, 3, None, {"heard": "what"}))
    assert "its tree cannot be read" in source.view().kv[0].detail
    assert told(source.view())["kv"][0][5:] == heard


def test_what_a_person_would_stop_at():
    engine = EngineFigures()
    engine.serve()
    source, clock = fold([HEAD, scrape(engine, 0), Failed(0, BEGIN + 1, "failing", "refused"), scrape(engine, 2)])
    message = KvMessage(0, BEGIN + 3, "tcp://a:1", to_builtins(Heard(0, Batch(1.0, (AllBlocksCleared(),)))))
    take(source, clock, message)
    engine.restart()
    take(source, clock, scrape(engine, 4))
    seq, found = 0, []
    while (event := source.tape.event_after(seq)) is not None:
        seq = event.seq
        found.append((event.seq, event.time - BEGIN, event.words))
    assert found == [
        (3, 1.0, "refused"),
        (4, 2.0, "it answers again"),
        (5, 3.0, "its prefix cache was cleared"),
        (6, 4.0, "its counters began anew: it was started again"),
    ]
    back = []
    while (event := source.tape.event_before(seq + 1 if not back else seq)) is not None:
        seq = event.seq
        back.append(seq)
    assert back == [6, 5, 4, 3]
