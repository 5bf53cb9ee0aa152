"""The feed of the memory benchmark is sound, and what is kept of it has an end."""

from __future__ import annotations

from itertools import pairwise

from benchmarks import screen_memory
from tui import log, steps
from tui import tape as tape_module


async def test_a_long_feed_keeps_no_more_than_its_bounds(monkeypatch):
    monkeypatch.setattr(log, "MAX_POINTS", 500)
    monkeypatch.setattr(log, "MAX_EVENTS", 200)
    monkeypatch.setattr(steps, "MAX_CELLS", steps.STEP_COST * 300)
    monkeypatch.setattr(tape_module, "BUDGET", 150_000)
    monkeypatch.setattr(tape_module, "CHUNK", 16_000)
    monkeypatch.setattr(tape_module, "SPACING", range(1_000, 2_000))
    monkeypatch.setattr(screen_memory, "TEMPLATE", 400)
    feed, view = await screen_memory.feed_all(3_000, 8)
    assert feed.records == feed.tape.last == view.seq == 3_000
    assert len(view.requests) < 20  # all but the last turn's are gone
    assert feed.history.points <= 550
    assert len(feed.history.steps) <= 330
    assert feed.tape.bytes < 200_000
    assert feed.tape.first > 1_000
    assert (len(feed.fold.ordinals), len(feed.history.lanes)) == (
        len(view.requests),
        sum(state.status != "waiting" for state in view.requests.values()),
    )
    assert feed.view(feed.tape.first).seq == feed.tape.first


def test_the_records_are_played_anew_under_other_names():
    first, made = screen_memory.template(100, 4)
    records = list(screen_memory.played(made, 2 * len(made)))
    assert [record.seq for record in records] == list(range(1, 2 * len(made) + 1))
    assert all(one.time <= other.time for one, other in pairwise(records))
    names = {arrived.request for record in records for arrived in record.arrived}
    assert len(names) == sum(len(record.arrived) for record in records)
    assert records[-1].pool.free == first.engine.num_blocks
    assert records[-1].sharing.looked_up_tokens == 2 * made[-1].sharing.looked_up_tokens
