"""The sharing panel: what it shows is the fold's and the tree's, and it can be walked."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from engine.protocol import Block, BlockText
from tui import figures, prefix_tree, scene
from tui.block_columns import CACHED
from tui.focus import Focus, SharingFocus
from tui.look import ASCII, UNICODE, Look
from tui.panels import sharing, sharing_tree
from tui.panels.line import length, text_of
from tui.texts import Texts
from tui.themes import THEMES
from tui.view import Frame, Link, Status

LOOK = Look()
WIDE = (120, 40)


def lines_of(frame, width, height, look=LOOK):
    return [text_of(line) for line in scene.panel("sharing", frame, width, height, look)]


@pytest.fixture(scope="module")
def busy(recording, fold, frame):
    """The end of the recording: forks, copies and hits."""
    return frame(fold(recording))


@pytest.fixture(scope="module")
def walked(busy):
    return replace(busy, focus=Focus(panel="sharing", expanded=True))


@pytest.fixture(scope="module")
def tree(busy):
    return prefix_tree.build(busy.view)


def node_rows(shown):
    """Rows of nodes: (blocks, hits, saved, bytes), whether selected, and the requests."""
    out = []
    for line in shown:
        found = re.search(r"(×([\d,]+)|cached).*? ([\d,]+) +([\d,]+) +([\d,]+) +([\d.,]+ (?:B|.iB)) ", line)
        if found and "held" not in line and "tokens" not in line:
            numbers = [int(found[at].replace(",", "")) for at in (3, 4, 5)]
            requests = int(found[2].replace(",", "")) if found[2] else 0
            out.append((requests, *numbers, found[6], UNICODE.live in line))
    return out


def expected(node):
    return (node.references, len(node.blocks), node.hits, node.saved_blocks, figures.size(node.saved_bytes))


def test_every_row_is_a_node_of_the_tree(walked, tree):
    assert len(tree) > 3
    rows = node_rows(lines_of(walked, 120, 40 + len(tree)))
    assert [row[:5] for row in rows] == [expected(tree.node(index)) for index in range(len(tree))]
    assert sum(row[3] for row in rows) == walked.view.sharing.saved_blocks
    assert not any(row[5] for row in rows)


def test_in_front_it_has_the_totals(walked):
    ledger, shown = walked.view.sharing, "\n".join(lines_of(walked, *WIDE))
    assert re.search(rf"block tables hold +{ledger.logical_blocks:,} ", shown)
    assert re.search(rf"blocks in memory +{ledger.physical_blocks:,} ", shown)
    assert re.search(rf"blocks of the pool +{walked.view.engine.num_blocks:,} ", shown)
    assert f"{ledger.saved_blocks:,} blocks, {figures.size(ledger.saved_bytes)}" in shown
    assert f"found {ledger.found_tokens:,} of {ledger.looked_up_tokens:,} prompt tokens" in shown
    small = "\n".join(lines_of(walked, 60, 16))
    assert f"{ledger.physical_blocks:,} blocks for {ledger.logical_blocks:,}" in small


def test_copies_on_write_are_told_one_by_one(walked):
    shown = "\n".join(lines_of(walked, *WIDE))
    view = walked.view
    events = [(step.seq, copy) for step in reversed(view.steps) for copy in reversed(step.copies)]
    assert f"copied on write {figures.plural(view.counters.copied_blocks, 'block')}" in shown
    for seq, copy in events[: sharing_tree.COPIES_LISTED]:
        told = f"step {seq:,}  {copy.source:,} → {copy.target:,}  {figures.plural(copy.tokens, 'token')}  for "
        assert told + copy.request.removeprefix("chatcmpl-") in shown
    assert f"forks {view.counters.forks}" in shown


def test_on_the_dashboard_the_top_of_the_tree_is_under_the_bars(busy, tree):
    rows = node_rows(lines_of(busy, 80, 14))
    assert [row[:5] for row in rows] == [expected(tree.node(index)) for index in range(3)]
    assert "block tables hold" in "\n".join(lines_of(busy, 80, 14))


def walk(frame, *keys, size=WIDE):
    for key in keys:
        reaction = sharing.press(frame, key, *size)
        assert isinstance(reaction, Focus), key
        frame = replace(frame, focus=reaction)
    return frame


def selected(frame, size=WIDE):
    return [row[5] for row in node_rows(lines_of(frame, *size))].index(True)


def test_keys_walk_the_rows(walked, tree):
    assert selected(walk(walked, "down")) == selected(walk(walked, "up")) == 0
    one = walk(walked, "down", "down")
    assert selected(one) == 1
    assert one.focus.sharing.node == tree.node(1).last
    assert selected(walk(one, "down", "down", "up")) == 2
    assert walk(one, "end").focus.sharing.node == tree.node(len(tree) - 1).last
    assert walk(one, "end", "home").focus.sharing.node == tree.node(0).last
    assert walk(one, "home", "up").focus.sharing.node == tree.node(0).last
    for size in ((120, 12), (40, 8), (24, 5)):
        for key in ("end", "pagedown"):
            far = walk(one, key, size=size)
            assert UNICODE.live in "\n".join(lines_of(far, *size))


def test_left_and_right_are_not_taken(walked):
    for key in ("left", "right", "comma", "full_stop", "x"):
        assert sharing.press(walked, key, *WIDE) is None


def test_a_node_closes_and_opens(walked, tree):
    home = walk(walked, "home")
    below = tree.node(0).below
    assert below
    closed = walk(home, "minus")
    assert closed.focus.sharing.closed == {tree.node(0).last}
    rows = node_rows(lines_of(closed, *WIDE))
    assert rows[0][5]
    assert len(node_rows(lines_of(home, 120, 80))) - len(node_rows(lines_of(closed, 120, 80))) == below
    assert f"+{below}" in "\n".join(lines_of(closed, *WIDE))
    assert sharing.press(closed, "minus", *WIDE) is None
    assert walk(closed, "plus").focus.sharing.closed == frozenset()


def test_what_is_gone_is_not_selected(walked):
    gone = replace(walked, focus=walked.focus.but(sharing=SharingFocus(node=99_999, closed=frozenset({99_999}))))
    assert not any(row[5] for row in node_rows(lines_of(gone, *WIDE)))
    assert selected(walk(gone, "down")) == 0
    assert sharing.detail(gone, 60, LOOK)[1]


def test_a_click_selects_and_the_wheel_scrolls(walked, tree):
    size = (120, 16)
    shown = lines_of(walked, *size)
    first = next(y for y, line in enumerate(shown) if re.search(r"×\d", line))
    reaction = sharing.point(walked, 20, first + 1, *size)
    assert isinstance(reaction, Focus)
    assert reaction.sharing.node == tree.node(1).last
    for y in (0, 1, size[1] - 1):
        assert sharing.point(walked, 20, y, *size) is None
    down = replace(walked, focus=sharing.wheel(walked, 5, 5, False, *size))
    before, after = node_rows(shown), node_rows(lines_of(down, *size))
    if len(tree) > len(before) + 3:
        assert after[0][:5] == expected(tree.node(3))
    up = replace(down, focus=sharing.wheel(down, 5, 5, True, *size))
    assert lines_of(up, *size) == shown


def test_the_inspector_tells_a_node_in_full(walked, tree):
    frame = walk(walked, "home", "enter")
    assert frame.focus.inspecting
    node = tree.node(0)
    title, lines = sharing.detail(frame, 60, LOOK)
    shown = "\n".join(text_of(line) for line in lines)
    assert title == f"prefix of {figures.plural(len(node.blocks), 'block')}"
    assert re.search(rf"requests that hold it +{node.references} ", shown)
    assert f"{node.hits:,} times" in shown
    assert figures.size(node.saved_bytes) in shown
    for name in prefix_tree.holders(walked.view, node):
        assert name.removeprefix("chatcmpl-") in shown
    told = [int(at) for at in re.findall(r"\d+", shown.split("blocks ", 2)[-1].split("held by")[0].replace(",", ""))]
    assert node.blocks[0] in told
    assert max(map(length, lines)) <= 60


def test_texts_are_shown_where_they_were_read(walked, tree):
    node = tree.node(0)
    text = BlockText(
        seq=1, block=node.blocks[0], hash=None, parent_hash=None, tokens=(1, 2), texts=("You are", " kïnd\n")
    )
    frame = replace(walk(walked, "home"), texts=Texts(blocks={node.blocks[0]: text}))
    row = next(line for line in lines_of(frame, *WIDE) if UNICODE.live in line)
    assert "You are k" in row
    assert "You are" in "\n".join(text_of(line) for line in sharing.detail(frame, 60, LOOK)[1])
    assert "You are" not in "\n".join(lines_of(walked, *WIDE))
    end = replace(frame, texts=Texts(blocks={node.last: text}))
    assert "  ...You are k" in next(line for line in lines_of(end, *WIDE) if UNICODE.live in line)
    silent = replace(frame, texts=Texts(unknown="a recording holds no text"))
    assert "a recording holds no text" in "\n".join(text_of(line) for line in sharing.detail(silent, 60, LOOK)[1])


def test_blocks_are_told_as_ranges():
    assert sharing_tree.ranges((5, 6, 7, 9, 1200, 1201)) == ["5-7", "9", "1,200-1,201"]


def test_blocks_whose_place_is_not_known_are_one_line(recording, fold, frame):
    """A screen that begins late does not know what the cached blocks go on from."""
    snapshot = fold(recording[:60]).fold.to_snapshot()
    free = set(range(snapshot.engine.num_blocks)) - {block.block for block in snapshot.blocks}
    idle = [Block(at, "cached", 0, 16, True) for at in sorted(free)[:3]]
    blocks = tuple(sorted((*snapshot.blocks, *idle), key=lambda block: block.block))
    pool = msgspec.structs.replace(snapshot.pool, free=snapshot.pool.free - 3, cached=snapshot.pool.cached + 3)
    late = frame(fold([msgspec.structs.replace(snapshot, blocks=blocks, pool=pool)]))
    count = (late.view.blocks.state == CACHED).sum()
    shown = "\n".join(lines_of(replace(late, focus=Focus(panel="sharing")), 80, 24))
    assert f"{count} cached blocks: what they go on from was not seen" in shown


def test_an_older_tree_says_so(walked, monkeypatch):
    monkeypatch.setattr(prefix_tree, "LARGE_POOL", 1)
    lines_of(walked, *WIDE)
    newer = replace(walked, view=replace(walked.view, seq=walked.view.seq + 1))
    assert f"as of step {walked.view.seq:,}" in lines_of(newer, *WIDE)[-1]
    assert "as of step" not in lines_of(walked, *WIDE)[-1]


@pytest.mark.parametrize("look", [LOOK, Look(ASCII)])
def test_every_size_fits(walked, busy, look, recording, fold, frame):
    start = replace(frame(fold(recording[:1])), focus=walked.focus)
    blank = Frame(Status(Link("live")), None, walked.focus)
    for shown in (walk(walked, "down"), busy, start, blank):
        for width in (24, 30, 40, 52, 66, 80, 120, 400):
            for height in (5, 6, 9, 14, 20, 24, 48, 100):
                lines = scene.panel("sharing", shown, width, height, look)
                assert len(lines) == height
                assert {length(line) for line in lines} == {width}
                if look.glyphs.ascii:
                    assert all(text_of(line).isascii() for line in lines)


def test_nothing_heard_means_no_keys():
    blank = Frame(Status(Link("live")), None, Focus(panel="sharing"))
    assert sharing.press(blank, "down", 80, 20) is None
    assert sharing.point(blank, 3, 3, 80, 20) is None
    assert sharing.wheel(blank, 3, 3, True, 80, 20) is None


@pytest.mark.parametrize("theme", THEMES)
def test_every_theme_has_the_roles(walked, theme):
    look = Look(theme=THEMES[theme])
    frame = walk(walked, "down")
    lines = [*scene.panel("sharing", frame, *WIDE, look), *sharing.detail(frame, 60, look)[1]]
    assert all(isinstance(look.style(role), str) for line in lines for _, role in line)


def test_keys_are_told_for_the_help():
    assert {"enter", "+ -", "up down"} <= {key.keys for key in sharing.KEYS}
