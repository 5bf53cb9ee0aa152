"""The block map's zoom, pan and cursor: what is drawn where, at any size of pool and panel."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.focus import MapFocus
from tui.map_geometry import WIDEST, fitting, geometry, moved, zoomed

POOLS = st.one_of(st.integers(1, 3000), st.integers(1, 1_000_000))
WIDTHS, HEIGHTS = st.integers(22, 398), st.integers(1, 98)
KEYS = st.lists(
    st.sampled_from(["up", "down", "left", "right", "pageup", "pagedown", "home", "end", "plus", "minus"]), max_size=25
)


def after(keys, blocks, inner, rows):
    """The focus and the map after some keys, from a cursor on the first block."""
    focus = MapFocus(block=0)
    for key in keys:
        shown = geometry(blocks, inner, rows, focus)
        if key in ("plus", "minus"):
            focus = zoomed(shown, focus, key == "plus", focus.block)
        else:
            focus = moved(shown, focus, key)
    return focus, geometry(blocks, inner, rows, focus)


@given(POOLS, WIDTHS, HEIGHTS, KEYS)
def test_the_block_under_the_cursor_stays_on_the_screen(blocks, inner, rows, keys):
    focus, shown = after(keys, blocks, inner, rows)
    assert 0 <= focus.block < blocks
    x, y = shown.place_of(focus.block)
    assert 0 <= x <= inner - shown.wide
    assert 0 <= y < rows
    assert shown.block_at(x, y) <= focus.block < shown.block_at(x, y) + shown.per_cell
    assert shown.first == focus.top or shown.whole


@given(POOLS, WIDTHS, HEIGHTS, KEYS)
def test_in_and_out_again_shows_the_same(blocks, inner, rows, keys):
    focus, shown = after(keys, blocks, inner, rows)
    nearer = zoomed(shown, focus, True, focus.block)
    near = geometry(blocks, inner, rows, nearer)
    back = zoomed(near, nearer, False, focus.block)
    if nearer.zoom > focus.zoom:
        assert (back.zoom, back.block) == (focus.zoom, focus.block)
        assert geometry(blocks, inner, rows, back) == shown
        if focus.zoom and not near.whole:
            assert near.place_of(focus.block)[1] == shown.place_of(focus.block)[1]  # in the row it was in
    else:
        assert near == shown


@given(POOLS, WIDTHS, HEIGHTS)
def test_the_farthest_shows_every_block_and_each_scale_is_twice_as_near(blocks, inner, rows):
    whole = geometry(blocks, inner, rows, MapFocus())
    assert whole.whole
    assert whole == fitting(blocks, inner, rows)
    scales = [geometry(blocks, inner, rows, MapFocus(zoom=zoom)) for zoom in range(24)]
    near = [shown.wide / shown.per_cell for shown in scales]
    ahead = [b / a for a, b in pairwise(near) if b != a]
    assert ahead[1:] == [2.0] * len(ahead[1:])
    assert all(1 < factor <= 2 for factor in ahead[:1])
    assert scales[-1].wide == WIDEST
    assert all(shown.columns * shown.wide + shown.margin <= inner for shown in scales)


@given(POOLS, WIDTHS, HEIGHTS, KEYS, st.integers(0, 397), st.integers(0, 97))
def test_what_is_hit_is_what_is_drawn_there(blocks, inner, rows, keys, x, y):
    _, shown = after(keys, blocks, inner, rows)
    block = shown.block_at(x, y)
    if block is None:
        row = shown.first + y * shown.row_blocks
        inside = shown.margin <= x < shown.margin + shown.columns * shown.wide
        assert not inside or y >= rows or row + (x - shown.margin) // shown.wide * shown.per_cell >= blocks
    else:
        left, top = shown.place_of(block)
        assert top == y
        assert left <= x < left + shown.wide


@pytest.mark.parametrize(
    ("blocks", "inner", "rows", "per_cell", "wide"),
    [(300, 158, 20, 1, 4), (300, 78, 10, 1, 2), (1456, 98, 18, 1, 1), (1456, 38, 10, 4, 1), (1, 22, 3, 1, 4),
     (1_000_000, 118, 38, 224, 1)],
)  # fmt: skip
def test_a_small_pool_fills_a_wide_screen_and_a_large_one_fits(blocks, inner, rows, per_cell, wide):
    shown = fitting(blocks, inner, rows)
    assert (shown.per_cell, shown.wide) == (per_cell, wide)


def test_there_is_no_row_above_the_first_or_below_the_last():
    shown = geometry(100, 22, 10, MapFocus())
    for key, block in (("up", 3), ("left", 0), ("down", 99), ("right", 99)):
        assert moved(shown, MapFocus(block=block), key).block == block


def test_a_first_key_sets_the_cursor_where_the_map_begins():
    focus = MapFocus(zoom=3, top=50_000)
    shown = geometry(100_000, 78, 10, focus)
    assert shown.first > 0
    assert moved(shown, focus, "down").block == shown.first
    assert moved(shown, focus, "f9") is None


def test_the_end_of_the_pool_is_not_drawn_with_empty_space_after_it():
    shown = geometry(100_000, 78, 10, MapFocus(zoom=4, top=10**9))
    assert shown.last == 100_000
    assert 100_000 - shown.first > shown.row_blocks * 9


def test_no_blocks_are_no_error():
    shown = geometry(0, 78, 10, MapFocus(block=3))
    assert (shown.first, shown.last, shown.block_at(1, 1)) == (0, 0, None)
    assert moved(shown, MapFocus(), "down") is None
    assert replace(shown).whole
