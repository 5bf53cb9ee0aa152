"""The block map: what is drawn is the pool, at every zoom; the cursor, the mouse and what is lit agree with it."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from itertools import groupby

import msgspec
import numpy as np
import pytest
from rich.cells import cell_len

from engine.protocol import Control
from tui import map_paths
from tui.block_columns import BlockColumns
from tui.cells import CACHED, FILLING, FREE, FULL, GREW, HOLE, RESERVED, SHARED, SOURCE, TARGET, Cells, copied
from tui.commands import Say
from tui.focus import Focus, MapFocus, SharingFocus
from tui.look import ASCII, UNICODE, Look
from tui.map_geometry import geometry
from tui.map_paths import chain, owners
from tui.panels import block_map
from tui.panels.block_paint import map_glyphs
from tui.panels.line import text_of
from tui.themes import MONO
from tui.view import Frame, Link, Status

LOOKS = {"unicode": Look(), "ascii": Look(ASCII), "mono": Look(theme=MONO)}
DOTS = {chr(code) for code in range(0x2800, 0x2900)}


def drawn(frame, width, height, look=LOOKS["unicode"]):
    return [text_of(line) for line in block_map.draw(frame, width, height, look)]


def body(frame, width, height, look=LOOKS["unicode"]):
    """The characters of the cells, in the order of their blocks."""
    shape = geometry(len(frame.view.blocks), width - 2, height - 2, frame.focus.map)
    rows = drawn(frame, width, height, look)[1:-1]
    inside = "".join(row[1 + shape.margin :][: shape.columns * shape.wide] for row in rows)
    return inside[: -(-(shape.last - shape.first) // shape.per_cell) * shape.wide]


def looking(frame, **focus):
    """The frame with the focus in the map; `zoom`, `block`, `top`, `colour_by` are the map's."""
    mine = {name: focus.pop(name) for name in ("zoom", "block", "top", "colour_by") if name in focus}
    return replace(frame, focus=Focus(map=MapFocus(**mine), **focus))


def pool_of(frame, states):
    """The frame over other blocks, which nothing has just happened to."""
    blocks = BlockColumns(len(states))
    blocks.state[:] = states
    blocks.references[:] = np.where(np.isin(states, (FREE, CACHED)), 0, np.where(np.equal(states, SHARED), 2, 1))
    blocks.filled[:] = np.select([np.isin(states, (FREE, RESERVED)), np.equal(states, FILLING)], [0, 5], 16)
    waste = msgspec.structs.replace(frame.view.waste, external=0)
    return replace(frame, view=replace(frame.view, blocks=blocks, waste=waste, steps=(), record=None, requests={}))


@pytest.fixture(scope="module")
def frames(simulated, fold, frame):
    controls = {0: simulated.STATIC_RESERVED, 60: Control(), 100: Control(prefix_cache=False)}
    items = list(simulated.simulate(120, controls, blocks=900, max_model_len=3000, rate=6, aborts=0.05))
    return [frame(fold(items[:end])) for end in (1, 40, 59, 61, 90, 121)]


@pytest.fixture(scope="module")
def busy(recording, fold, frame):
    return frame(fold(recording))


def test_the_legend_is_the_pool(frames):
    for frame in frames:
        shown, pool = drawn(frame, 100, 20)[-1], frame.view.pool
        for state in ("free", "cached", "reserved", "filling", "full", "shared"):
            assert re.search(rf" {state} ([\d,]+) ", shown)[1] == f"{getattr(pool, state):,}"


@pytest.mark.parametrize("look", LOOKS)
def test_the_map_has_a_cell_for_each_block(frames, busy, look):
    glyphs = LOOKS[look].glyphs
    many = [*"23456789", "@"] if glyphs.ascii else [glyphs.shared]
    for frame, width in [*((frame, 80) for frame in frames), (busy, 62)]:
        cells, pool = Cells.of(frame.view), frame.view.pool
        shown = body(frame, width, 20, LOOKS[look])
        assert len(shown) == len(cells)
        plain = cells.mark <= GREW
        marked = np.bincount(cells.state[~plain], minlength=7)
        counts = {
            RESERVED: (pool.reserved, [glyphs.reserved]),
            SHARED: (pool.shared, many),
            FULL: (pool.full, [glyphs.fills[7]]),
            FILLING: (pool.filling, list(glyphs.fills[:7])),
            HOLE: (frame.view.waste.external // 16, [glyphs.hole]),
        }
        for state, (total, its_glyphs) in counts.items():
            assert sum(shown.count(glyph) for glyph in its_glyphs) == total - marked[state], state
        idle = shown.count(glyphs.free) + shown.count(glyphs.cached) + shown.count(glyphs.hole)
        assert idle == pool.free + pool.cached - marked[[FREE, CACHED, HOLE]].sum()
        changed = sum(shown.count(glyph) for glyph in (glyphs.taken, glyphs.released, glyphs.source, glyphs.target))
        assert changed == marked.sum()


def test_ascii_and_monochrome_tell_the_same_states(frames, busy):
    for frame in (*frames, busy):
        for zoom, height in ((0, 20), (1, 20), (0, 8), (1, 8), (0, 5)):
            near = looking(frame, zoom=zoom)
            unicode, ascii_, mono = (body(near, 62, height, look) for look in LOOKS.values())
            assert unicode == mono
            both = {(a, u) for a, u in zip(ascii_, unicode, strict=True) if u not in DOTS and not a.isdigit()}
            assert len({a for a, _ in both}) == len(both) == len({u for _, u in both}), both
            assert all((u in DOTS) == (a in "FCRPUSH") for a, u in zip(ascii_, unicode, strict=True))


@pytest.mark.parametrize("look", LOOKS)
def test_no_mix_looks_like_a_state(busy, look):
    pure = set(body(pool_of(busy, np.repeat(range(6), 20)), 62, 3, LOOKS[look]))
    assert len(pure) == 6
    mixes = [[a] * n + [b] * (20 - n) for a in range(6) for b in range(6) if a != b for n in (1, 7, 10, 19)]
    shown = body(pool_of(busy, np.concatenate(mixes)), 62, 4, LOOKS[look])  # 20 blocks a cell: one mix each
    assert "20 a cell" in drawn(pool_of(busy, np.concatenate(mixes)), 62, 4)[0]
    assert len(shown) == len(mixes)
    assert not pure & set(shown)


def test_a_map_with_less_room_says_how_many_blocks_a_cell_is(frames):
    assert "blocks, 3 a cell" in drawn(frames[-1], 40, 10)[0]
    key = drawn(frames[-1], 90, 8)[-1]
    assert "filled" in key
    assert "kept" in key


def test_a_near_map_says_which_blocks_it_shows_and_where_they_are(busy):
    rows = drawn(looking(busy, zoom=2, top=300), 110, 14)
    shape = geometry(560, 108, 12, MapFocus(zoom=2, top=300))
    assert f"blocks {shape.first} to {shape.last - 1} of 560" in rows[0]
    bar = [row[-1] == map_glyphs(UNICODE).thumb for row in rows[1:-1]]
    begin, end = bar.index(True), len(bar) - bar[::-1].index(True)
    assert all(bar[begin:end])
    assert begin == shape.first * 12 // 560
    assert end == -(-shape.last * 12 // 560)
    assert all(row[-1] == UNICODE.vertical for row in drawn(busy, 110, 14)[1:-1])


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(("width", "height"), [(24, 5), (40, 12), (80, 24), (400, 100)])
def test_any_pool_is_drawn_in_any_panel(busy, look, width, height):
    for states in ([], [FREE], [SHARED], np.arange(300) % 6, np.arange(1_000_000) // 7 % 6):
        for focus in ({}, {"zoom": 2, "block": len(states) // 2, "colour_by": "age"}, {"zoom": 30, "top": 10**7}):
            frame = looking(pool_of(busy, states), **focus)
            lines = block_map.draw(frame, width, height, LOOKS[look])
            assert [cell_len(text_of(line)) for line in lines] == [width] * height
            assert all(len(character) == cell_len(character) for line in lines for character in set(text_of(line)))
            assert look != "ascii" or all(text_of(line).isascii() for line in lines)


def test_equal_neighbours_are_one_span(busy):
    shown = looking(busy, block=300)
    for line in block_map.draw(shown, 100, 20, Look())[1:-1]:
        inside = [role for text, role in line[1:-1] if text.strip()]
        assert all(sum(1 for _ in run) == 1 for _, run in groupby(inside))


def test_copied_blocks_are_marked_and_counted(busy, recording):
    pairs = [(copy.source, copy.target) for copy in recording[-1].copies]
    shown = body(busy, 104, 8)
    assert [(shown[source], shown[target]) for source, target in pairs] == [(UNICODE.source, UNICODE.target)] * len(
        pairs
    )
    targets = list(copied(busy.view).values()).count(TARGET)
    assert shown.count(UNICODE.target) == targets
    assert f"{UNICODE.source}{UNICODE.target} copied {targets}" in drawn(busy, 104, 8)[0]
    assert list(copied(busy.view).values()).count(SOURCE) == shown.count(UNICODE.source)


@pytest.mark.parametrize("look", ["unicode", "ascii"])
def test_the_path_drawn_leads_through_the_block_table(frames, busy, look):
    way, names, seen = map_glyphs(LOOKS[look].glyphs).way, "123456789abcdefghijklmnopqrstuvwxyz", set()
    for frame, width in ((frames[1], 80), (frames[3], 80), (busy, 62)):
        moves = dict(zip(way[:4], (1, -1, width - 4, 4 - width), strict=True))
        for request, state in frame.view.requests.items():
            if not state.table:
                continue
            shown, stretches = body(looking(frame, request=request), width, 20, LOOKS[look]), 0
            for index, block in enumerate(state.table):
                glyph, follows = shown[block], state.table[index + 1] if index + 1 < len(state.table) else None
                seen.add(glyph)
                if index == 0 or shown[state.table[index - 1]] == way[4] or glyph in names:
                    stretches += 1
                    assert glyph == names[(stretches - 1) % 35] or follows is None
                if follows is None:
                    assert glyph == way[5]
                elif glyph in moves:
                    assert block + moves[glyph] == follows
                else:
                    assert glyph in names or abs(follows - block) not in (1, width - 4)
            rest = {shown[block] for block in range(len(shown)) if block not in state.table}
            assert not rest & {*way, *names}
    assert {way[0], way[1], way[4], way[5], "1", "9", "b"} <= seen


def test_a_path_goes_up_and_down_too():
    way, begins = map_paths.steps(np.array([5, 15, 25, 24, 14, 40, 41, 7]), 10)
    up, down, left, right = map_paths.UP, map_paths.DOWN, map_paths.LEFT, map_paths.RIGHT
    assert way.tolist() == [down, down, left, up, map_paths.JUMP, right, map_paths.JUMP, map_paths.TAIL]
    assert begins.tolist() == [1, 0, 0, 0, 0, 2, 0, 3]
    assert [part.tolist() for part in map_paths.steps(np.array([3]), 10)] == [[map_paths.TAIL], [1]]


def test_a_near_path_has_its_indices(busy):
    request = max(busy.view.requests.values(), key=lambda state: len(state.table))
    frame = looking(busy, request=request.request, zoom=1)
    shape = geometry(560, 308, 48, frame.focus.map)
    assert shape.wide == 8
    shown = body(frame, 310, 50)
    for index, block in enumerate(request.table):
        text = shown[block * 8 : block * 8 + 8]
        assert text[:7].strip() == str(index)
        assert text[7] in map_glyphs(UNICODE).way


def test_the_rest_is_dark_and_the_border_tells_of_the_path(busy):
    for request, state in busy.view.requests.items():
        shown = looking(busy, panel="batch", request=request)
        lines = block_map.draw(shown, 80, 12, Look())
        if not state.table:
            assert f"{request[-4:]}: holds no block" in text_of(lines[-1])
            continue
        lit = sum(len(text) for line in lines[1:-1] for text, role in line if role == "lit")
        unlit = sum(len(text) for line in lines[1:-1] for text, role in line if role == "unlit")
        assert (lit, unlit) == (len(state.table), 560 - len(state.table))
        references = [int(busy.view.blocks.references[block]) for block in state.table]
        shared = sum(count > 1 for count in references)
        words = f": {shared} shared {UNICODE.arrow} {len(references) - shared} own, tail "
        tail = state.computed_tokens - (len(state.table) - 1) * 16
        assert f"{words}{tail}/16" in text_of(lines[-1])


def test_lit_blocks_are_counted_where_a_cell_is_several(busy):
    request = next(state for state in busy.view.requests.values() if len(state.table) > 40)
    shown = body(looking(busy, request=request.request), 62, 5)
    per_cell = geometry(560, 60, 3, MapFocus()).per_cell
    counts = np.bincount(np.array(request.table) // per_cell, minlength=len(shown))
    assert [int(shown[cell]) for cell in np.flatnonzero(counts)] == counts[counts > 0].tolist()
    assert not any(shown[cell].isdigit() for cell in np.flatnonzero(counts == 0))


def test_a_prefix_is_lit_with_all_its_sharers(busy):
    view = busy.view
    table = max((state.table for state in view.requests.values()), key=len)
    node = max(block for block in table[20:] if view.blocks.references[block] > 2)
    prefix = table[: table.index(node) + 1]
    assert tuple(chain(view, node).tolist()) == prefix
    tables = [state.table for state in view.requests.values() if node in state.table]
    others = {block for one in tables for block in one} - set(prefix)
    frame = replace(busy, focus=Focus(panel="sharing", sharing=SharingFocus(node=node)))
    lines = block_map.draw(frame, 80, 12, Look())
    roles = [role for line in lines[1:-1] for text, role in line[1:-1] for _ in text]
    assert roles.count("lit") == len(prefix)
    assert roles.count("selected") == len(others)
    words = f"prefix of {len(prefix)} blocks, held by {len(tables)} requests, {len(others)} of their own"
    assert words in text_of(lines[-1])


def test_a_cached_prefix_goes_back_as_far_as_it_is_known(busy):
    view = replace(busy.view, blocks=deepcopy(busy.view.blocks), requests={})
    table = max((state.table for state in busy.view.requests.values()), key=len)[:40]
    view.blocks.references[list(table)], view.blocks.state[list(table)] = 0, CACHED
    assert tuple(chain(view, table[-1]).tolist()) == table
    view.blocks.hashed[table[20]] = False  # it has been evicted
    assert tuple(chain(view, table[-1]).tolist()) == table[21:]
    lines = drawn(replace(busy, view=view, focus=Focus(panel="sharing", sharing=SharingFocus(node=table[-1]))), 80, 12)
    assert "prefix of 19 blocks, held by nobody now" in lines[-1]


def test_the_cursor_is_told_in_the_border(busy):
    view = busy.view
    shared = int(view.blocks.references.argmax())
    told = drawn(looking(busy, block=shared), 100, 20)[-1]
    assert f"block {shared}: shared by {view.blocks.references[shared]}, 16/16, cached hash, taken " in told
    assert (
        f"block {shared}: shared by {view.blocks.references[shared]}" in drawn(looking(busy, block=shared), 40, 40)[-1]
    )
    per_cell = drawn(looking(busy, block=shared), 62, 5)[-1]
    cells = Cells.of(view, per_cell=4)
    first = shared - shared % 4
    assert f"blocks {first} to {first + 3}: " in per_cell
    assert f"{cells.counts[shared // 4][SHARED]} shared" in per_cell
    roles = [role for line in block_map.draw(looking(busy, block=9), 62, 12, Look())[1:-1] for _, role in line]
    assert roles.count("cursor") == 1
    assert "cursor" not in [
        role for line in block_map.draw(looking(busy, block=9, panel="batch"), 62, 12, Look()) for _, role in line
    ]


def test_keys_move_zoom_and_open(busy):
    frame = looking(busy)
    focus = block_map.press(frame, "right", 100, 20)
    assert focus.map.block == 0
    focus = block_map.press(replace(frame, focus=focus), "end", 100, 20)
    assert focus.map.block == 559
    near = block_map.press(replace(frame, focus=focus), "plus", 100, 20)
    assert (near.map.zoom, near.map.block) == (1, 559)
    assert block_map.press(replace(frame, focus=near), "minus", 100, 20) == focus
    assert block_map.press(replace(frame, focus=near), "enter", 100, 20).inspecting
    assert block_map.press(frame, "enter", 100, 20).map.block == 0
    assert block_map.press(frame, "z", 100, 20) is None
    assert block_map.press(replace(frame, view=None), "right", 100, 20) is None
    assert block_map.press(pool_of(frame, []), "right", 100, 20) is None


def test_o_selects_the_owners_of_a_block_one_after_the_other(busy):
    view = busy.view
    block = int(np.flatnonzero(view.blocks.references == 3)[0])
    names = [request for request, _ in owners(view, block)]
    assert len(names) == 3
    frame, seen = looking(busy, block=block), []
    for _ in range(4):
        focus = block_map.press(frame, "o", 100, 20)
        seen.append(focus.request)
        frame = replace(frame, focus=focus)
    assert seen == [*names, names[0]]
    free = int(np.flatnonzero(view.blocks.references == 0)[0])
    assert isinstance(block_map.press(looking(busy, block=free), "o", 100, 20), Say)


def test_v_goes_through_what_colour_means_and_the_legend_tells_the_scale(busy):
    frame, seen = looking(busy), []
    for _ in range(4):
        frame = replace(frame, focus=block_map.press(frame, "v", 100, 20))
        seen.append(frame.focus.map.colour_by)
        words = {"references": "held by 10+ 5-9 3-4 2 1", "age": "taken <1 s <10 s <1 min <10 min older"}
        assert words.get(seen[-1], "full 354") in drawn(frame, 100, 20)[-1]
    assert seen == ["references", "age", "kind", "owner"]


def test_references_are_digits_and_ages_are_where_there_is_no_colour(busy):
    references = Cells.of(busy.view).references
    shown = body(looking(busy, colour_by="references"), 62, 20)
    plain = Cells.of(busy.view).mark <= GREW
    for at in np.flatnonzero((references > 1) & plain):
        assert shown[at] == (str(references[at]) if references[at] < 10 else UNICODE.shared)
    tint = Cells.of(busy.view, colour_by="age").tint
    ages = body(looking(busy, colour_by="age"), 62, 20, LOOKS["mono"])
    known = np.flatnonzero((tint < 5) & plain)
    assert [ages[at] for at in known] == [str(tint[at]) for at in known]
    assert len(known) > 400


def test_the_mouse_hits_the_cell_that_is_drawn_there(busy):
    for width, height, focus in ((80, 24, {}), (62, 5, {}), (110, 14, {"zoom": 2, "top": 300}), (310, 50, {"zoom": 1})):
        frame = looking(busy, **focus)
        for x in range(0, width, 7):
            for y in range(0, height, 2):
                hit = block_map.point(frame, x, y, width, height)
                if hit is None:
                    continue
                lines = block_map.draw(replace(frame, focus=hit), width, height, Look())
                at = [
                    column
                    for column, role in enumerate(role for text, role in lines[y] for _ in text)
                    if role == "cursor"
                ]
                assert x in at, (x, y)
    assert block_map.point(looking(busy), 0, 0, 80, 24) is None
    assert block_map.point(replace(busy, view=None), 5, 5, 80, 24) is None


def test_a_second_click_opens_the_inspector(busy):
    focus = block_map.point(looking(busy, panel="batch"), 10, 3, 80, 12)
    assert (focus.panel, focus.inspecting) == ("blocks", False)
    assert block_map.point(replace(busy, focus=focus), 10, 3, 80, 12).inspecting


def test_the_wheel_zooms_at_the_mouse(busy):
    frame = looking(pool_of(busy, np.arange(100_000) % 6))
    hit = block_map.point(frame, 30, 8, 80, 24).map.block
    near = block_map.wheel(frame, 30, 8, True, 80, 24)
    assert (near.map.block, near.map.zoom) == (hit, 1)
    nearer = block_map.wheel(replace(frame, focus=near), 30, 8, True, 80, 24)
    back = block_map.wheel(replace(frame, focus=nearer), 30, 8, False, 80, 24)
    assert (back.map.zoom, back.map.top) == (1, near.map.top)
    assert block_map.wheel(frame, 0, 0, True, 80, 24) is None


def test_before_a_snapshot_the_map_says_what_is_waited_for():
    shown = drawn(Frame(Status(Link("foreign", "HTTP 404"), "http://x"), None), 60, 12)
    assert "http://x is not a paged-engine" in "\n".join(shown)
    assert "HTTP 404" in "\n".join(shown)
    assert {len(row) for row in shown} == {60}


def test_the_help_has_every_glyph_that_is_drawn(frames, busy):
    for look in LOOKS.values():
        known = "".join(glyph for glyph, _, _ in block_map.legend(look))
        for frame in (*frames, busy):
            shown = set(body(frame, 80, 20, look))
            assert not {glyph for glyph in shown if glyph not in known and not glyph.isdigit()}
