"""The block map's cells against the engine's own totals."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from engine.protocol import Control, PoolTotals
from tui import cells as cells_module
from tui.block_columns import BlockColumns
from tui.cells import (
    CACHED,
    FILLING,
    FREE,
    FULL,
    GREW,
    HOLE,
    NOBODY,
    RELEASED,
    RESERVED,
    SHARED,
    SOURCE,
    TAKEN,
    TARGET,
    UNMARKED,
    Cells,
    copied,
)

IN_USE = [RESERVED, FILLING, FULL, SHARED]


@pytest.fixture(scope="module")
def streams(simulated):
    def stream(allocation, seed):
        controls = {0: Control(allocation=allocation), 40: Control(batching="static"), 60: simulated.STATIC_RESERVED}
        return list(simulated.simulate(90, controls, blocks=700, max_model_len=2048, rate=6, seed=seed, aborts=0.1))

    return {"paged": stream("paged", 1), "reserved": stream("reserved", 2)}


@pytest.fixture(scope="module")
def some_view(streams, fold):
    return fold(streams["reserved"][:90]).view()


def pool_of(view, states, filled=None, references=None):
    """The view over other blocks."""
    blocks = BlockColumns(len(states))
    blocks.state[:] = states
    held = np.isin(states, IN_USE)
    blocks.references[:] = np.where(held, 1 + (np.array(states) == SHARED), 0) if references is None else references
    blocks.filled[:] = np.where(np.isin(states, [FREE, RESERVED]), 0, 16) if filled is None else filled
    return replace(view, blocks=blocks, waste=replace_struct(view.waste, external=0), steps=(), record=None)


def replace_struct(struct, **changes):
    import msgspec

    return msgspec.structs.replace(struct, **changes)


@pytest.mark.parametrize("allocation", ["paged", "reserved"])
def test_cells_by_state_are_the_pool_totals_at_every_zoom(streams, fold, allocation):
    items = streams[allocation]
    holes_seen = 0
    for end in range(5, len(items) + 1, 9):
        view = fold(items[:end]).view()
        pool: PoolTotals = view.pool
        for per_cell in (1, 2, 3, 16, 300, 512, 700, 5000):
            cells = Cells.of(view, per_cell=per_cell)
            assert len(cells) == -(-700 // per_cell)
            counts = cells.counts.sum(axis=0)
            assert counts[HOLE] * view.engine.block_size == view.waste.external
            assert counts[FREE] + counts[CACHED] + counts[HOLE] == pool.free + pool.cached
            assert list(counts[IN_USE]) == [pool.reserved, pool.filling, pool.full, pool.shared]
            holes_seen += counts[HOLE]
        assert list(np.bincount(Cells.of(view).state, minlength=7)) == list(counts)
        tint = Cells.of(view).tint
        assert all(tint[block] != NOBODY for state in view.requests.values() for block in state.table)
    assert holes_seen > 0


def test_a_part_of_the_pool_has_the_cells_of_the_whole(streams, fold):
    for items in streams.values():
        view = fold(items).view()
        for per_cell in (1, 4):
            whole = Cells.of(view, per_cell=per_cell)
            for first, last in ((0, 64), (64, 200), (600, 700), (640, 5000)):
                part, at = (
                    Cells.of(view, first, last, per_cell),
                    slice(first // per_cell, -(-min(last, 700) // per_cell)),
                )
                for name in ("state", "level", "mixed", "references", "tint", "mark", "counts"):
                    assert np.array_equal(getattr(part, name), getattr(whole, name)[at]), (name, first, per_cell)


def test_only_a_cell_of_one_state_is_not_mixed(some_view):
    states = [CACHED, CACHED, FREE, SHARED, SHARED, FULL, RESERVED, RESERVED, RESERVED, FULL, FREE]
    cells = Cells.of(pool_of(some_view, states), per_cell=3)
    assert list(cells.state) == [CACHED, SHARED, RESERVED, FULL]  # of as many the fuller one
    assert list(cells.mixed) == [True, True, False, True]
    assert list(cells.used) == [0, 4, 0, 2]
    assert list(cells.kept) == [3, 0, 4, 0]


@pytest.mark.parametrize("full", [0, 1, 7, 50, 99, 100])
def test_quarters_are_none_or_all_only_when_there_are_none_or_all(some_view, full):
    cells = Cells.of(pool_of(some_view, [FULL] * full + [FREE] * (100 - full)), per_cell=100)
    expected = {0: 0, 1: 1, 7: 1, 50: 2, 99: 3, 100: 4}[full]
    assert (cells.used[0], cells.kept[0], cells.mixed[0]) == (expected, 0, full not in (0, 100))


def test_a_level_is_empty_or_full_only_when_its_slots_are(some_view):
    filled = [0, 1, 8, 15, 16]
    cells = Cells.of(pool_of(some_view, [FREE, FILLING, FILLING, FILLING, FULL], filled))
    assert list(cells.level) == [0, 1, 4, 7, 8]
    two = Cells.of(pool_of(some_view, [FILLING] * 4, [1, 15, 15, 15]), per_cell=2)
    assert list(two.level) == [4, 7]


def test_a_million_blocks_are_counted_whole(some_view):
    states = np.arange(1_000_000) % 6
    counts = Cells.of(pool_of(some_view, states), per_cell=400).counts.sum(axis=0)
    assert list(counts) == [*np.bincount(states), 0]
    assert list(Cells.of(pool_of(some_view, states), per_cell=65_536).counts.sum(axis=0)) == list(counts)


def test_what_the_last_record_took_and_let_go_of_is_marked(recording, fold, monkeypatch):
    monkeypatch.setattr(cells_module, "CHANGES_SHOWN", 0.0)
    seen, feed = set(), fold(recording[:120])
    for record in recording[120:]:
        before = copy.deepcopy(feed.view().blocks)
        feed._take(record)
        view = feed.view()
        marks, blocks, copies = Cells.of(view).mark.tolist(), view.blocks, copied(view)
        held, was_held = blocks.references > 0, before.references > 0
        grew = (blocks.state == FILLING) & (blocks.filled > before.filled)
        for at in range(len(blocks)):
            if at in copies:
                expected = copies[at]
            elif held[at] != was_held[at]:
                expected = TAKEN if held[at] else RELEASED
            else:
                expected = GREW if grew[at] else UNMARKED
            # One that went from a request to another within the record, or that the cache forgot, has changed as well.
            also = {GREW, RELEASED} if expected == UNMARKED and blocks.changed[at] == record.seq else {expected}
            also |= {TAKEN} if held[at] and blocks.since[at] == record.time else set()
            assert marks[at] in {expected, *also}, at
            seen.add(marks[at])
    assert seen == {UNMARKED, GREW, RELEASED, TAKEN, SOURCE, TARGET}


def test_marks_end_while_nothing_happens(recording, fold):
    view = fold(recording).view()
    assert {GREW, TAKEN} < set(Cells.of(view).mark.tolist())
    assert set(Cells.of(replace(view, now=view.now + 1.5)).mark.tolist()) == {UNMARKED, SOURCE, TARGET}
    assert not Cells.of(view, per_cell=8).mark.any()


def test_copies_are_marked_while_their_blocks_are_in_use(recording, fold):
    view = fold(recording).view()
    copies = recording[-1].copies
    mark = Cells.of(view).mark
    assert [(mark[copy.source], mark[copy.target]) for copy in copies] == [(SOURCE, TARGET)] * len(copies)
    view.blocks.state[copies[0].target] = FREE
    assert copies[0].target not in copied(view)
    assert Cells.of(view).mark[copies[0].target] not in (SOURCE, TARGET)


def test_tints_tell_references_ages_and_owners(some_view):
    references = [0, 1, 2, 3, 4, 5, 9, 10, 300]
    view = pool_of(some_view, [FREE, FULL, *[SHARED] * 7], references=references)
    assert list(Cells.of(view, colour_by="references").tint) == [NOBODY, 4, 3, 2, 2, 1, 1, 0, 0]
    assert list(Cells.of(view, per_cell=3, colour_by="references").tint) == [3, 1, 0]
    view.blocks.since[:] = view.now - np.array([np.nan, 0.5, 1.5, 30, 100, 1000, np.nan, 3, np.nan])
    assert list(Cells.of(view, colour_by="age").tint) == [NOBODY, 0, 1, 2, 3, 4, NOBODY, 1, NOBODY]
    assert list(Cells.of(view, per_cell=3, colour_by="age").tint) == [0, 2, 1]
    view.blocks.owner[:] = [7, 13, 4, 4, 4, 4, 4, 5, -1]
    assert list(Cells.of(view).tint) == [NOBODY, 3, 4, 4, 4, 4, 4, 5, NOBODY]
    assert list(Cells.of(view, per_cell=3).tint) == [NOBODY, 4, NOBODY]  # of several owners it is nobody's
    assert set(Cells.of(view, colour_by="kind").tint) == {NOBODY}


def test_no_blocks_are_no_cells(some_view):
    assert len(Cells.of(pool_of(some_view, []))) == 0
