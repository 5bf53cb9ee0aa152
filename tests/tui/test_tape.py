"""The past comes back exactly as it was: state, view and figures, under a budget."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from engine.protocol import Control
from tui import tape as tape_module
from tui.fold import EngineFold
from tui.keyframe import Keyframe
from tui.lanes import Lanes
from tui.tape import NotKept, Tape

COLUMNS = ("changed", "filled", "hashed", "hits", "owner", "parent", "references", "since", "state")


def random_load(simulated, steps, seed=3, **options):
    """Chats with forks, aborts, swaps and follow-ups, and a switch every 40 records."""
    chance = random.Random(seed)
    controls = {
        at: Control(
            batching=chance.choice(["static", "continuous"]),
            allocation=chance.choice(["paged", "reserved"]),
            prefix_cache=chance.random() < 0.8,
            max_num_seqs=chance.choice([6, 64]),
        )
        for at in range(0, steps, 40)
    }
    settings = {"blocks": 400, "max_model_len": 1920, "rate": 8.0, "aborts": 0.05, "host_blocks": 120, "follow": 0.4}
    return simulated.simulate(steps, controls, seed=seed, forked=0.2, **{**settings, **options})


@pytest.fixture(scope="module")
def load(simulated):
    return list(random_load(simulated, 300))


def same_state(one, other):
    assert one.to_snapshot() == other.to_snapshot()
    assert list(one.requests) == list(other.requests)
    assert (one.ordinals, one.seen, one.record) == (other.ordinals, other.seen, other.record)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(one.blocks, name), getattr(other.blocks, name), err_msg=name)


def figures(view):
    """All figures over time that a panel could ask for at a view's moment."""
    history, now = view.history, view.now
    windows = [history.window(now - span, now) for span in (0.5, 5.0, 30.0)]
    return windows, history.columns(now, 0.5, 40), history.comparison(now), list(history.switches)


@pytest.fixture
def small(monkeypatch):
    """Chunks and keyframes so small that a short stream has many."""
    monkeypatch.setattr(tape_module, "CHUNK", 8 << 10)
    monkeypatch.setattr(tape_module, "SPACING", range(400, 800))


def test_a_view_asked_later_is_the_one_that_was_shown_then(load, fold, small):
    items = load
    feed = fold(items[:1])
    shown = []
    for record in items[1:]:
        feed._take(record)
        view = feed.view()
        shown.append((replace(view, blocks=copy.deepcopy(view.blocks)), figures(view)))
    order = list(range(len(shown)))
    random.Random(1).shuffle(order)
    for at in [*order[:50], *range(100, 115), *range(290, 280, -1)]:
        then, had = shown[at]
        again = feed.view(then.seq)
        for name in type(then).__slots__:
            if name == "blocks":
                for column in COLUMNS:
                    np.testing.assert_array_equal(getattr(again.blocks, column), getattr(then.blocks, column))
            elif name == "steps":
                assert [(step, dict(step.cells)) for step in again.steps] == [
                    (step, dict(step.cells)) for step in then.steps
                ]
            elif name != "history":
                assert getattr(again, name) == getattr(then, name), name
        assert list(again.requests) == list(then.requests)
        assert figures(again) == had


@pytest.mark.parametrize("small_pool", [1, 100_000])
def test_every_state_comes_back_from_whole_keyframes_and_from_differences(load, small, monkeypatch, small_pool):
    monkeypatch.setattr(tape_module, "SMALL_POOL", small_pool)
    first, *records = load[:201]
    live, lanes, tape = EngineFold(first), Lanes(), Tape()
    tape.begin(live, lanes)
    for record in records:
        before = live.control
        lanes.open(record)
        live.apply(record)
        lanes.close(record)
        tape.keep(record, live, lanes, before)
    assert (tape.first, tape.last) == (0, 200)
    again, lanes_again = EngineFold(first), Lanes()
    for record in records:
        lanes_again.open(record)
        again.apply(record)
        lanes_again.close(record)
        if record.seq % 7 == 0:
            tape.at((record.seq * 31) % 200)  # from anywhere
        same_state(tape.at(record.seq), again)
        assert tape.moment(record.seq)[1].by_request == lanes_again.by_request
        assert tape.record(record.seq) == record
    assert tape.record(0) is None
    for wrong in (-1, 201, 10**20):
        with pytest.raises(NotKept):
            tape.at(wrong)


def test_a_keyframe_of_differences_holds_only_those(load):
    first, *records = load[:41]
    state = EngineFold(first)
    whole = Keyframe.of(state, Lanes(), whole=True)
    for record in records:
        state.apply(record)
    part = Keyframe.of(state, Lanes(), whole=False)
    touched = int(state.blocks.touched.sum())
    assert 0 < touched < len(state.blocks)
    assert part.blocks == touched + sum(len(request.table) for request in state.requests.values())
    same_state(part.restore(whole)[0], state)


def test_a_budget_drops_the_oldest_and_keeps_the_rest_exact(load, small):
    first, *records = load
    live, lanes, tape = EngineFold(first), Lanes(), Tape(budget=75_000)
    tape.begin(live, lanes)
    for record in records:
        before = live.control
        lanes.open(record)
        live.apply(record)
        lanes.close(record)
        tape.keep(record, live, lanes, before)
        assert tape.bytes < 75_000 + 2 * (8 << 10)
    assert 0 < tape.first < 300
    assert tape.last == 300
    assert tape.nearest(0) == tape.first
    assert tape.nearest(10_000) == 300
    with pytest.raises(NotKept):
        tape.at(tape.first - 1)
    again = EngineFold(first)
    for record in records:
        again.apply(record)
        if record.seq == tape.first:
            same_state(tape.at(tape.first), again)
    same_state(tape.at(300), again)
    found = tape.event_after(0)
    assert found is None or found[0] >= tape.first


def test_events_are_found_in_both_directions(load, fold):
    items = load
    feed = fold(items)
    expected, control = [], items[0].control
    for record in items[1:]:
        switched = tape_module.events(record, control)
        control = record.control
        if switched:
            expected.append((record.seq, tape_module.words(switched)))
    kinds = {kind for _, what in expected for kind in what.split(", ")}
    assert {"switch", "copy on write"} <= kinds
    forward, at = [], 0
    while (found := feed.tape.event_after(at)) is not None:
        forward.append(found)
        at = found[0]
    backward, at = [], 10**6
    while (found := feed.tape.event_before(at)) is not None:
        backward.insert(0, found)
        at = found[0]
    assert forward == backward == expected


def test_a_gap_is_told_and_what_lies_beside_it_is_exact(load, fold):
    first, *records = load[:121]
    states, state = [first], EngineFold(first)
    for record in records:
        state.apply(record)
        states.append(state.to_snapshot())
    feed = fold([first, *records[:50]])
    feed._distrust = True
    feed._read(states[80])
    for record in records[80:]:
        feed._take(record)
    tape = feed.tape
    assert tape.gaps == ((51, 80),)
    assert (tape.record(50), tape.record(51), tape.record(80), tape.record(81)) == (
        records[49],
        None,
        None,
        records[80],
    )
    assert [tape.nearest(seq) for seq in (49, 52, 79, 100)] == [49, 50, 80, 100]
    assert tape.event_after(79) == (80, "gap")
    for seq in (0, 30, 50, 80, 81, 120):
        assert tape.at(seq).to_snapshot() == states[seq]
    with pytest.raises(NotKept):
        tape.at(60)
    assert feed.view(60).seq == 50


def test_a_state_that_was_read_again_holds_from_there(load, fold):
    first, *records = load[:61]
    feed = fold([first, *records])
    snapshot = feed.fold.to_snapshot()
    feed.tape.at(60)
    feed._distrust = True
    feed._read(msgspec.structs.replace(snapshot, host_blocks=7))
    assert feed.tape.gaps == ()
    assert feed.tape.at(60).host_blocks == 7
    assert feed.tape.at(59).host_blocks == records[58].host_blocks


def test_another_engine_begins_another_tape(load, fold):
    first, *records = load[:31]
    feed = fold([first, *records])
    other = msgspec.structs.replace(first, engine=msgspec.structs.replace(first.engine, started=77.0))
    feed._read(other)
    assert (feed.tape.first, feed.tape.last, feed.tape.gaps) == (0, 0, ())
    assert feed.view(25).seq == 0


def test_records_in_a_row_come_back_and_end_at_a_gap(load, fold, small):
    tape = fold(load).tape
    assert [record.seq for record in tape.records(40, 250)] == list(range(40, 251))
    assert list(tape.records(7, 9)) == load[7:10]
    assert list(tape.records(9, 7)) == []
    feed = fold(load[:150])
    for record in load[150:181]:
        feed.fold.apply(record)  # what the feed misses
    feed.tape.begin(feed.fold, feed.history.held_lanes)
    for record in load[181:]:
        before = feed.fold.control
        feed.fold.apply(record)
        feed.tape.keep(record, feed.fold, feed.history.held_lanes, before)
    assert [record.seq for record in feed.tape.records(100, 200)] == list(range(181, 201))
    assert [record.seq for record in feed.tape.records(100, 140)] == list(range(100, 141))
