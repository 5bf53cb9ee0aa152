"""The block map's cells against the engine's own totals."""

from __future__ import annotations

import numpy as np
import pytest

from engine.protocol import Block, Control, Copy, EngineInfo
from tui.cells import (
    CACHED,
    FILLING,
    FREE,
    FULL,
    HOLE,
    NOBODY,
    RESERVED,
    SHARED,
    SOURCE,
    TARGET,
    UNMARKED,
    Cells,
)


def cells(states, levels=None, hues=None):
    count = len(states)
    return Cells(
        np.array(states, np.uint8),
        np.array(levels or [8 if s in (FULL, SHARED) else 0 for s in states], np.uint8),
        np.array(hues or [NOBODY] * count, np.uint8),
        np.zeros(count, np.uint8),
        np.zeros(count, np.uint8),
    )


@pytest.mark.parametrize("allocation", ["paged", "reserved"])
@pytest.mark.parametrize("seed", [1, 2])
def test_cells_by_state_are_the_pool_totals_at_every_step(simulated, fold, allocation, seed):
    controls = {0: Control(allocation=allocation), 60: Control(batching="static"), 90: simulated.STATIC_RESERVED}
    items = list(simulated.simulate(150, controls, blocks=700, max_model_len=2048, rate=6, seed=seed, aborts=0.1))
    holes_seen = 0
    for end in range(5, len(items) + 1, 9):
        view = fold(items[:end]).view()
        counts = np.bincount(Cells.of(view).state, minlength=7)
        pool = view.pool
        assert counts[HOLE] * view.engine.block_size == view.waste.external
        assert counts[FREE] + counts[CACHED] + counts[HOLE] == pool.free + pool.cached
        assert list(counts[[RESERVED, FILLING, FULL, SHARED]]) == [pool.reserved, pool.filling, pool.full, pool.shared]
        holes_seen += counts[HOLE]
        for state in view.requests.values():
            for block in state.table:
                assert Cells.of(view).hue[block] != NOBODY
    assert holes_seen > 0


def test_several_blocks_in_a_cell_show_their_commonest_state():
    pool = cells([CACHED, CACHED, FREE, SHARED, SHARED, FULL, RESERVED, RESERVED, FULL, FREE, FREE, FREE])
    small = pool.zoomed(4)
    assert small.blocks_per_cell == 3
    assert list(small.state) == [CACHED, SHARED, RESERVED, FREE]
    assert pool.zoomed(12) is pool


def test_a_cell_of_several_is_as_high_as_its_slots_are_filled():
    pool = cells([FULL, FULL, FULL, FREE, FILLING, FREE, FREE, FREE, FREE], [8, 8, 8, 0, 4, 0, 0, 0, 0], [3] * 9)
    small = pool.zoomed(3)
    assert list(small.state) == [FULL, FILLING, FREE]
    assert list(small.level) == [8, 2, 0]
    nearly = cells([FULL, FULL, FULL, FILLING], [8, 8, 8, 7]).zoomed(1)
    assert (nearly.state[0], nearly.level[0]) == (FILLING, 7)


def test_a_last_cell_that_is_not_whole_counts_only_its_blocks():
    assert list(cells([FULL, FULL, FULL]).zoomed(2).state) == [FULL, FULL]


def test_copies_are_marked_while_their_blocks_are_in_use():
    info = EngineInfo("m", "float32", "cpu", 16, 6, 100, 64, "0")
    blocks = {
        0: Block(0, "shared", 2, 16, True),
        1: Block(1, "filling", 1, 3, False),
        3: Block(3, "cached", 0, 16, True),
    }
    copies = [Copy("a", 0, 1, 3), Copy("b", 3, 4, 5)]  # b has let its copy go since
    marked = Cells.of(info, blocks, (), {}, holes=False, copies=copies)
    assert list(marked.mark) == [SOURCE, TARGET, UNMARKED, SOURCE, UNMARKED, UNMARKED]
    assert list(marked.zoomed(2).mark) == [TARGET, SOURCE]
    later = Cells.of(info, blocks, (), {}, holes=False, copies=[Copy("a", 3, 0, 3), Copy("c", 0, 1, 2)])
    assert list(later.mark) == [SOURCE, TARGET, UNMARKED, SOURCE, UNMARKED, UNMARKED]
