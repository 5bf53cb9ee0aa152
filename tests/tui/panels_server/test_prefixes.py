"""The tree and the map of resident prefix blocks: they are the tree's runs, and they can be walked."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from servers.kv_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, Heard, Missed
from servers.kv_tree import Churn, KvTree
from tests.tui.panels_server import watched
from tui import figures, scene
from tui.focus import Focus, ServerFocus
from tui.look import ASCII, Look
from tui.panels.line import text_of
from tui.panels.server import blocks, churn, prefix_map, prefix_runs, sharing
from tui.sources.view import KvView

LOOK = Look()
HERE = "tcp://127.0.0.1:5557"
IDS = re.compile(r"tokens \d")  # how a row begins that has them
SIZE = (110, 30)


def rows(name, frame, width=110, height=30, look=LOOK):
    return [text_of(line) for line in scene.panel(name, frame, width, height, look)]


def shown(name, frame, *size):
    return "\n".join(rows(name, frame, *size))


def of(tree, focus=None, **more):
    views = (watched.heard(tree),) if isinstance(tree, KvTree) else tree
    return watched.frame(watched.server("vllm", count=3, kv=views, **more), focus or Focus(panel="sharing"))


def table(lines):
    """The rows of runs: blocks, below, share, tokens."""
    found = [re.search(r" ([\d,]+) +([\d,]+) +([\d.,]+ %) +([\d,]+) *│$", line) for line in lines]
    return [(match[1], match[2], match[3], match[4]) for match in found if match]


def wanted(tree):
    return [
        (f"{run.blocks:,}", f"{run.below:,}", figures.percent(run.total / tree.resident), f"{run.tokens:,}")
        for run in tree.runs()
    ]


def tell(tree, number, event):
    message = Heard(number, Batch(float(number), (event,)))
    tree.take(message)
    tree.keep_openings(message)


def grown(seed=3, prompts=60):
    """A tree of many branches."""
    tree, rng = KvTree(), random.Random(seed)
    known = [None]
    for number in range(prompts):
        parent = rng.choice(known)
        hashes = range(1000 * number + 1, 1000 * number + 1 + rng.randrange(1, 6))
        tell(tree, number, watched.stored(list(hashes), parent, 10 * number))
        known += hashes
    return tree


def test_every_row_is_a_run_of_the_tree():
    for tree in (watched.forest(), grown()):
        frame = of(tree)
        assert table(rows("sharing", frame, 110, 200)) == wanted(tree)
        assert len(wanted(tree)) > 4


def test_rows_tell_the_first_tokens_and_what_is_not_known():
    lines = rows("sharing", of(watched.forest()))
    assert any("tokens 100 101 102 103" in line for line in lines)
    orphan = next(line for line in lines if "after blocks that were not seen" in line)
    assert "tokens 500" in orphan
    assert sum("prefix " in line and IDS.search(line) is not None for line in lines) == 2


def test_branches_lead_from_runs_to_those_that_go_on():
    lines = [line for line in rows("sharing", of(watched.forest())) if IDS.search(line)]
    assert [line[2:4] for line in lines[:3]] == ["▾ ", "├╴", "└╴"]
    nested = KvTree()
    for at, (hashes, parent) in enumerate((([1], None), ([2], 1), ([3], 2), ([4], 2), ([5], 1))):
        tell(nested, at, watched.stored(hashes, parent, 10 * at))
    drawn = [line[2:8] for line in rows("sharing", of(nested)) if IDS.search(line)]
    assert drawn == ["▾ pref", "├╴▾ to", "│ ├╴  ", "│ └╴  ", "└╴  to"]


def test_a_tree_is_walked_closed_and_opened():
    tree = watched.forest()
    frame = of(tree)
    names = [(f"{HERE} 0 0", run.last) for run in tree.runs()]
    focus, visited = frame.focus, []
    for _ in range(len(names) + 2):
        focus = sharing.press(of(tree, focus), "down", *SIZE)
        visited.append(focus.server.run)
    assert visited == [*names, names[-1], names[-1]]
    home = sharing.press(of(tree, focus), "home", *SIZE)
    assert home.server.run == names[0]
    closed = sharing.press(of(tree, home), "minus", *SIZE)
    assert closed.server.closed == {names[0]}
    assert len(table(rows("sharing", of(tree, closed)))) == len(names) - 2
    assert "+2" in shown("sharing", of(tree, closed))
    down = sharing.press(of(tree, closed), "down", *SIZE)
    assert down.server.run == names[3]  # what is closed is passed over
    opened = sharing.press(of(tree, closed), "plus", *SIZE)
    assert not opened.server.closed
    assert sharing.press(of(tree, opened), "plus", *SIZE) is None
    entered = sharing.press(of(tree, home), "enter", *SIZE)
    assert entered.inspecting


def test_the_selected_row_stays_on_the_screen():
    tree = grown()
    names = [(f"{HERE} 0 0", run.last) for run in tree.runs()]
    frame = of(tree, Focus(panel="sharing", server=ServerFocus(run=names[-1])))
    small = (110, 16)
    lines = rows("sharing", frame, *small)
    assert LOOK.glyphs.live in "".join(lines)
    assert wanted(tree)[-1] in table(lines)
    away = sharing.wheel(frame, 5, 8, True, *small)
    assert not away.server.follow
    assert away.server.run == names[-1]
    assert LOOK.glyphs.live not in "".join(line for line in rows("sharing", of(tree, away), *small) if IDS.search(line))


def test_a_click_selects_the_run_of_its_row():
    tree = watched.forest()
    frame = of(tree)
    lines = rows("sharing", frame, *SIZE)
    for run in tree.runs():
        ids = f"tokens {' '.join(map(str, tree.opening(run, 4)))}"
        y = next(at for at, line in enumerate(lines) if ids in line)
        focus = sharing.point(frame, 20, y, *SIZE)
        assert focus.server.run == (f"{HERE} 0 0", run.last)
    assert sharing.point(frame, 20, 1, *SIZE) is None


def test_the_map_has_a_cell_for_each_block_in_the_trees_order():
    tree = watched.forest()
    frame = of(tree, Focus(panel="blocks"))
    lines = rows("blocks", frame, 80, 24)
    assert prefix_map.TITLE in "\n".join(lines)
    assert "not physical places" in "\n".join(lines)
    cells = "".join(
        prefix_map.height(run.depth, LOOK, True) + prefix_map.height(run.depth, LOOK) * (run.blocks - 1)
        if run.known
        else "?" * run.blocks
        for run in tree.runs()
    )
    assert cells == "▇███▅▆▅▇█?"  # a notch where a run begins
    assert any(line.strip("│").rstrip() == cells for line in lines)
    assert len(cells) == tree.resident
    ascii_lines = rows("blocks", frame, 80, 24, Look(ASCII))
    assert any(line.strip("|").rstrip() == "a000b1b" + "a0" + "?" for line in ascii_lines)


def coloured(forest):
    """Roles of the map's cells, each with how many follow each other."""
    spans = [span for line in prefix_map.lines(forest, ServerFocus(), 80, 5, False, LOOK) for span in line]
    return [(role, len(cells)) for cells, role in spans]


def test_cells_are_coloured_by_their_top_level_prefix_where_these_tell_them_apart():
    forest = prefix_runs.build((watched.heard(watched.forest()),))  # begin with the hashes 1, 20 and 30
    assert coloured(forest) == [("hue1", 7), ("hue0", 2), ("hue1", 1)]
    assert not forest.shared


def under_one_prompt(branches=6, rank=0, lead=(1, 2, 3)):
    """A tree of prompts that all begin with the same blocks."""
    tree = KvTree()
    tree.take(Heard(0, Batch(0.0, (watched.stored(list(lead), None, 10),), rank)))
    for at in range(branches):
        first = 1001 + 11 * at
        tree.take(Heard(at + 1, Batch(1.0, (watched.stored([first, first + 1], lead[-1], 100 * at),), rank)))
    return tree


def test_under_one_system_prompt_the_branches_have_the_colours():
    tree = under_one_prompt()
    forest = prefix_runs.build((watched.heard(tree),))
    assert forest.shared
    assert coloured(forest) == [("value", 3), *((f"hue{(1001 + 11 * at) % 10}", 2) for at in range(6))]
    drawn = scene.panel("sharing", of(tree), 110, 30, LOOK)
    named = [role for line in drawn for text, role in line if text.startswith("prefix 1")]
    assert named == ["value"]
    frame = of(tree, Focus(panel="sharing", server=ServerFocus(run=forest.name(2))))
    inspected = [span for line in sharing.detail(frame, 70, LOOK)[1] for span in line]
    assert ("the branch from #000000… on", forest.hues[2]) in inspected
    assert ("what most share", "value") in [
        span
        for line in sharing.detail(of(tree, Focus(server=ServerFocus(run=forest.name(0)))), 70, LOOK)[1]
        for span in line
    ]


def test_each_rank_has_its_own_trunk():
    views = tuple(watched.heard(under_one_prompt(rank=rank), f"tcp://127.0.0.1:{5557 + rank}") for rank in range(2))
    forest = prefix_runs.build(views)
    assert [role for role, _ in coloured(forest)].count("value") == 2


def test_a_branch_keeps_its_colour_while_others_come_and_go():
    tree = under_one_prompt()
    before = prefix_runs.build((watched.heard(tree),))
    tree.take(Heard(7, Batch(2.0, (watched.stored([5004, 5005, 5006, 5007], 3, 900),))))  # the largest comes first
    after = prefix_runs.build((watched.heard(tree),))
    assert after.runs[1].first == 5004
    hues = {run.first: hue for run, hue in zip(after.runs, after.hues, strict=True)}
    assert all(hues[run.first] == hue for run, hue in zip(before.runs, before.hues, strict=True))


def test_neighbouring_branches_never_have_one_colour():
    tree = KvTree()
    tree.take(Heard(0, Batch(0.0, (watched.stored([1], None, 10),))))
    for at in range(5):
        tree.take(Heard(at + 1, Batch(1.0, (watched.stored([1000 + 10 * at], 1, 100 * at),))))  # all would be hue0
    hues = prefix_runs.build((watched.heard(tree),)).hues
    assert all(a != b for a, b in pairwise(hues))


def test_the_map_says_what_its_colours_and_heights_mean():
    plain = shown("blocks", of(watched.forest(), Focus(panel="blocks")))
    assert "█ a colour a branch · ? after what was not seen · lower: deeper · ▅ begins a run" in plain
    shared = shown("blocks", of(under_one_prompt(), Focus(panel="blocks")))
    assert "█ shared by most · ▆ a colour a branch · lower: deeper · ▅ begins a run" in shared
    ascii_map = shown("blocks", of(under_one_prompt(), Focus(panel="blocks")), 110, 30, Look(ASCII))
    assert "0 shared by most , 1 a colour a branch , 0 1 2: how deep , a b c begin a run" in ascii_map
    crowded = shown("blocks", of(grown(prompts=900), Focus(panel="blocks")), 60, 14)
    assert re.search(r"[\d,]+ prefix blocks, \d+ a cell", crowded)
    assert prefix_map.TITLE_BRIEF in shown("blocks", of(grown(prompts=200), Focus(panel="blocks")), 40, 14)


def test_runs_without_token_ids_are_named_by_their_hash():
    tree = KvTree()
    root, child = (bytes.fromhex(digits + "00" * 29) for digits in ("3c1f9a", "77aa01"))
    tree.take(Heard(0, Batch(0.0, (BlockStored((root,), None, (), 4),))))
    tree.take(Heard(1, Batch(0.0, (BlockStored((child,), root, (), 4), BlockStored((1 << 63,), root, (), 4)))))
    lines = "\n".join(rows("sharing", of(tree)))
    assert "▾ prefix 1 #3c1f9a… " in lines
    assert "├╴  #77aa01… " in lines or "└╴  #77aa01… " in lines
    assert "#800000… " in lines
    assert re.search(r"▾ #3c1f +1 100 %│", "\n".join(rows("sharing", of(tree), 23, 9)))
    assert re.search(r"╴#77aa +1 +33 %│", "\n".join(rows("sharing", of(tree), 23, 9)))
    assert "#3c1f9a… " in shown("sharing", of(tree), 44, 12)
    live = rows("sharing", of(watched.forest()), 30, 12)  # too narrow for token ids
    assert any("#0000" in line for line in live)
    assert not any("#" in line for line in rows("sharing", of(watched.forest())) if "after" not in line)


def test_a_cell_of_several_blocks_is_their_firsts():
    tree = grown(prompts=200)
    forest = prefix_runs.build((watched.heard(tree),))
    shape = prefix_map.Shape.of(forest, 20, 3)
    assert shape.per_cell == -(-tree.resident // 60)
    runs = list(tree.runs())
    owners = [at for at, run in enumerate(runs) for _ in range(run.blocks)]
    assert shape.runs(forest).tolist() == owners[:: shape.per_cell]


def test_the_maps_cursor_goes_by_runs_and_rows():
    tree = grown(prompts=200)
    forest = prefix_runs.build((watched.heard(tree),))
    size = (22, 20)
    kv = (watched.heard(tree),)
    focus = blocks.press(of(tree, Focus(panel="blocks")), "right", *size)
    assert focus.server.run == forest.name(0)
    focus = blocks.press(of(tree, focus), "right", *size)
    assert focus.server.run == forest.name(1)
    below = blocks.press(of(tree, focus), "down", *size)
    assert forest.index_of(below.server.run) > 1
    assert blocks.press(of(tree, focus), "end", *size).server.run == forest.name(len(forest) - 1)
    assert blocks.press(of(tree, below), "home", *size).server.run == forest.name(0)
    opened = blocks.press(of(tree, focus), "enter", *size)
    assert opened.inspecting
    view = watched.server("vllm", count=3, kv=kv)
    reached, focus = [-1], Focus(panel="blocks")
    while reached[-1] < len(forest) - 1:
        focus = blocks.press(watched.frame(view, focus), "down", *size)
        reached.append(forest.index_of(focus.server.run))
        assert reached[-1] > reached[-2]  # no row is a trap
    while reached[-1]:
        focus = blocks.press(watched.frame(view, focus), "up", *size)
        reached.append(forest.index_of(focus.server.run))
        assert reached[-1] < reached[-2]


def test_a_click_on_the_map_selects_and_again_inspects():
    tree = watched.forest()
    frame = of(tree, Focus(panel="blocks"))
    lines = rows("blocks", frame, 80, 24)
    y = next(at for at, line in enumerate(lines) if "▇███▅▆▅▇█?" in line)
    forest = prefix_runs.build(frame.server.kv)
    focus = blocks.point(frame, 1 + 7, y, 80, 24)
    assert focus.server.run == forest.name(3)
    again = blocks.point(of(tree, focus), 1 + 7, y, 80, 24)
    assert again.inspecting
    assert blocks.point(frame, 1 + 30, y, 80, 24) is None


def test_one_run_in_full():
    tree = watched.forest()
    second = list(tree.runs())[1]
    frame = of(tree, Focus(panel="sharing", server=ServerFocus(run=(f"{HERE} 0 0", second.last))))
    title, lines = sharing.detail(frame, 70, LOOK)
    said = "\n".join(text_of(line) for line in lines)
    assert title == "prefix run of 2 blocks"
    assert re.search(r"tokens +16 to 24", said)
    assert "200 201" in said
    assert "events do not tell" in said
    orphan = next(run for run in tree.runs() if not run.known)
    frame = of(tree, Focus(panel="sharing", server=ServerFocus(run=(f"{HERE} 0 0", orphan.last))))
    said = "\n".join(text_of(line) for line in sharing.detail(frame, 70, LOOK)[1])
    assert re.search(r"goes on from +00000000000003e7", said)  # 999
    assert "before this screen listened" in said
    tree.take(Heard(7, Batch(70.0, (BlockRemoved((4,)),))))
    removed = next(run for run in tree.runs() if run.above == "removed")
    frame = of(tree, Focus(panel="sharing", server=ServerFocus(run=(f"{HERE} 0 0", removed.last))))
    said = "\n".join(text_of(line) for line in sharing.detail(frame, 70, LOOK)[1])
    assert "that was removed" in said
    assert "before this screen" not in said


def test_rows_that_go_on_from_what_is_not_here_name_it():
    tree = KvTree()
    parent = bytes.fromhex("abcdef" + "00" * 29)
    for at in range(3):  # branches of a prompt whose beginning was stored before
        tell(tree, at + 5, watched.stored([10 * at + 1], parent, 100 * at))
    assert {run.parent for run in tree.runs()} == {parent}
    wide = [
        line
        for line in rows("sharing", of(tree), 110, 20)
        if "? after blocks that were not seen #abcdef… tokens" in line
    ]
    assert len(wide) == 3
    assert sum("? after #abcdef… tokens" in line for line in rows("sharing", of(tree), 80, 20)) == 3


def test_ranks_that_have_the_same_prefix_are_two_rows():
    tree, other = watched.forest(), watched.forest()
    views = (watched.heard(tree), watched.heard(other, "tcp://127.0.0.1:5558"))
    frame = of(views)
    assert len(table(rows("sharing", frame, 110, 60))) == 2 * len(wanted(tree))
    first, second = ((f"tcp://127.0.0.1:{port} 0 0", 4) for port in (5557, 5558))
    for name in (first, second):
        lines = rows("sharing", of(views, Focus(panel="sharing", server=ServerFocus(run=name))), 110, 60)
        assert sum(line[1] == LOOK.glyphs.live for line in lines) == 1
    selected = of(views, Focus(panel="sharing", server=ServerFocus(run=second)))
    down = sharing.press(selected, "down", 110, 60)
    assert down.server.run[0] == second[0]


def test_what_was_not_heard_is_told():
    tree = watched.forest()
    whole = shown("sharing", of(tree))
    assert "all that is resident was heard of" in whole
    assert "7 messages" in whole
    assert "1 time stored after a parent that was not seen" in whole
    tree.take(Missed(7, 9))
    tree.take(Heard(10, Batch(60.0, (BlockRemoved((12345,)),))))
    said = re.sub(r"[│\s]+", " ", shown("sharing", of(tree)))
    assert "missed 3 messages" in said
    assert "1 removal of blocks that were not seen" in said
    assert "all that is resident was heard of" not in said
    late = KvTree()
    late.take(Heard(500, Batch(1.0, (watched.stored([1, 2]),))))
    assert "what was stored before is not known" in shown("sharing", of(late))
    silent = KvView(HERE, KvTree(), 0, "connecting", "no answer yet")
    assert f"connecting to {HERE}: no answer yet" in shown("sharing", of((silent,)))
    assert "no KV events yet" in shown("sharing", of((silent,)))


def test_rows_follow_the_events():
    tree = watched.forest()
    before = table(rows("sharing", of(tree)))
    tree.take(Heard(7, Batch(70.0, (watched.stored([50, 51, 52], 6),))))
    assert table(rows("sharing", of(tree))) == wanted(tree) != before
    tree.take(Heard(8, Batch(71.0, (AllBlocksCleared(),))))
    assert not table(rows("sharing", of(tree)))
    assert "no prefix block is resident" in shown("sharing", of(tree))


def test_churn_is_counted_between_moments():
    view = watched.heard(watched.forest())
    now = watched.BEGIN + 60
    stored, removed, again = (
        churn.rates((view,), of, (now - 20, now - 10, now))
        for of in (lambda one: one.stored, lambda one: one.removed, lambda one: one.again)
    )
    assert stored == [2.0, 2.0]
    assert removed == [1.0, 1.0]
    assert again == [0.5, 0.5]
    assert churn.rates((view,), lambda one: one.stored, (now - 50, now - 40, now - 20)) == [None, None]
    both = (view, watched.heard(watched.forest(), "tcp://127.0.0.1:5558"))
    assert churn.rates(both, lambda one: one.stored, (now - 10, now)) == [4.0]
    silent = KvView(HERE, KvTree(), 0, "connecting")
    assert churn.rates((silent,), lambda one: one.stored, (now - 10, now)) == [None]


def test_churn_is_on_the_panel():
    made = watched.looks("vllm", [watched.EngineFigures()])
    frame = of(watched.forest(), made=made)
    said = shown("sharing", frame)
    assert "2.0/s stored" in said
    assert "1.0/s removed" in said
    assert "0.5/s stored again" in said
    assert "█ stored  ○ removed  ● stored again" in said


@pytest.mark.parametrize("count", [1, 7, 40])
def test_the_forest_knows_subtrees(count):
    tree = grown(seed=count, prompts=count)
    forest = prefix_runs.build((watched.heard(tree),))
    runs = list(tree.runs())
    assert forest.blocks == tree.resident == sum(run.blocks for run in runs)
    for at, run in enumerate(runs):
        under = runs[at + 1 : at + 1 + int(forest.sizes[at])]
        assert sum(one.blocks for one in under) == run.below
        assert all(one.depth > run.depth for one in under)
    tops = Counter(forest.tops.tolist())
    assert len(tops) == sum(run.depth == 0 for run in runs)
    assert Churn() == KvTree().churn


def test_with_one_engine_chosen_the_events_are_still_of_all():
    views = (watched.heard(watched.forest()),)
    view = watched.server("vllm", engines=2, count=3, kv=views)
    for panel in ("blocks", "sharing"):
        alone = watched.frame(view, Focus(panel=panel, server=ServerFocus(engine=("m", "1"))))
        assert "KV events of all engines" in shown(panel, alone)
        assert "of all engines" not in shown(panel, watched.frame(view, Focus(panel=panel)))


def test_churn_over_less_than_the_window_says_over_what():
    made = watched.looks("vllm", [watched.EngineFigures()])
    assert "stored again  over 30 s" in shown("sharing", of(watched.forest(), made=made))  # heard for half a minute
    just = watched.heard(watched.forest())
    just = replace(just, churned=((watched.BEGIN + 59.7, Churn()), (watched.BEGIN + 59.9, Churn(stored=3))))
    assert "— stored  — removed" in shown("sharing", of((just,), made=made))


def test_a_map_that_leaves_rows_leaves_them_to_how_full_the_memory_was():
    few = of(watched.forest(), Focus(panel="blocks"))
    lines = rows("blocks", few, 80, 30)
    assert any("█ KV memory used" in line for line in lines)
    y = next(at for at, line in enumerate(lines) if "▇███▅▆▅▇█?" in line)
    forest = prefix_runs.build(few.server.kv)
    assert blocks.point(few, 1 + 7, y, 80, 30).server.run == forest.name(3)
    many = rows("blocks", of(grown(prompts=900), Focus(panel="blocks")), 80, 30)
    assert not any("█ KV memory used" in line for line in many)
    assert any(line.startswith("│ last 60 s ") for line in many)


def test_blocks_that_were_not_seen_are_removed_no_less():
    """Who attaches late hears of the end of blocks whose beginning was before."""
    made = watched.looks("vllm", [watched.EngineFigures()])
    steps = tuple((watched.BEGIN + at, Churn(unknown_removals=3 * at)) for at in range(61))
    late = replace(watched.heard(watched.forest()), churned=steps)
    assert "0/s stored  3.0/s removed" in shown("sharing", of((late,), made=made))


def test_blocks_of_a_process_that_was_started_again_are_marked_until_an_event_comes():
    now = watched.BEGIN + 2  # of `of`, after 3 looks
    heard = watched.heard(watched.forest(), now=now - 10)  # the last event ten seconds ago
    again = of((replace(heard, stood=now - 5),), restarts=(now - 3,))
    for panel in ("sharing", "blocks"):
        said = re.sub(r"[│\s]+", " ", shown(panel, again))
        assert f"blocks of {HERE} are of the process before: it was started again 3.0 s ago" in said
    assert "of a process before" in shown("sharing", again, 23, 12)
    assert again.server.outlived(again.server.kv[0]) == now - 3
    for other in (
        of((replace(heard, stood=now - 60),), restarts=(now - 3,)),  # the connection was never lost
        of((replace(heard, stood=now - 30),), restarts=(now - 20,)),  # events came since
        of((replace(heard, stood=now - 5),)),
        of((replace(heard, stood=now - 5, tree=KvTree()),), restarts=(now - 3,)),
    ):
        assert "process before" not in shown("sharing", other)


def test_what_is_not_connected_says_since_when():
    now = watched.BEGIN + 2
    silent = KvView(HERE, KvTree(), 0, "connecting", "connection refused", stood=now - 7)
    assert f"connecting to {HERE} for 7.0 s: connection refused" in shown("sharing", of((silent,)))
    assert "KV events 0, 1 of 1 endpoint not connected" in shown("header", of((silent,)), 120, 2)


def test_lines_that_a_small_panel_has_no_room_for_leave_a_mark():
    rows_of = rows("sharing", of(watched.forest()), 23, 6)
    assert rows_of[2].endswith("…│")
    assert re.search(r"found tok +\d[\d,]* …│", rows_of[2])
    assert not any(line.endswith("…│") for line in rows("sharing", of(watched.forest()), 60, 30))
