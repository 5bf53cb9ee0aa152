"""The prefix tree against a slow one that is read off the tables block by block."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import (
    Block,
    Control,
    Counters,
    EngineInfo,
    PoolTotals,
    Queue,
    RequestState,
    SharingLedger,
    Snapshot,
    WasteLedger,
    block_state,
)
from tui import prefix_tree
from tui.block_columns import CACHED, FREE, UNKNOWN


def state(name, table):
    return RequestState(
        request=name,
        status="running" if table else "waiting",
        prompt_tokens=16 * len(table) + 1,
        max_tokens=8,
        num_tokens=16 * len(table) + 1,
        computed_tokens=16 * len(table),
        cached_tokens=0,
        preemptions=0,
        arrived=0.0,
        first_token=None,
        allocation="paged",
        reason=None,
        table=tuple(table),
    )


def snapshot(tables, cached=(), blocks=64):
    """An engine whose requests have these tables, every block full and findable."""
    references = Counter(block for table in tables for block in table)
    held = [Block(at, block_state(count, 16, True, 16), count, 16, True) for at, count in references.items()]
    idle = [Block(at, "cached", 0, 16, True) for at in cached]
    info = EngineInfo("m", "float32", "cpu", 16, blocks, 100, 1024, "1")
    logical, physical = sum(references.values()), len(references)
    ledger = SharingLedger(logical, physical, logical - physical, (logical - physical) * 1600)
    states = tuple(state(f"r{at}", table) for at, table in enumerate(tables))
    counts = Counter(block.state for block in (*held, *idle))
    pool = PoolTotals(free=blocks - counts.total(), **counts)
    return Snapshot(1, 10.0, info, Control(), states, (*held, *idle), pool, WasteLedger(), ledger, Queue(), Counters())


@pytest.fixture
def view_of(fold, frame):
    return lambda *args, **named: frame(fold([snapshot(*args, **named)])).view


def nodes(tree):
    return [tree.node(index) for index in range(len(tree))]


def loads(simulated):
    """Forks, copies on write, preemption both ways, aborts; the cache on, off and switched; both allocations."""
    hard = {"rate": 4.0, "follow": 0.5, "forked": 0.4, "aborts": 0.05, "blocks": 300, "max_model_len": 900}
    hard["system_tokens"] = 400
    switched = {0: simulated.STATIC_RESERVED, 40: Control(), 80: Control(prefix_cache=False), 100: Control()}
    return [
        list(simulated.simulate(140, host_blocks=100, seed=3, **hard)),
        list(simulated.simulate(80, {0: Control(prefix_cache=False)}, seed=4, **hard)),
        list(simulated.simulate(130, switched, seed=5, **hard)),
    ]


@pytest.fixture(scope="module")
def views(simulated, fold, frame):
    """Every few records of random load, as they were then."""
    out = []
    for items in loads(simulated):
        feed = fold(items[:1])
        for at, record in enumerate(items[1:]):
            feed._take(record)
            if at % 13 == 0:
                view = frame(feed).view
                out.append(replace(view, blocks=deepcopy(view.blocks), requests=dict(view.requests)))
    return out


def test_all_nodes_together_save_what_the_engine_says(views):
    forked = 0
    for view in views:
        tree = prefix_tree.build(view)
        every = nodes(tree)
        assert sum(node.saved_blocks for node in every) == tree.saved_blocks == view.sharing.saved_blocks
        assert sum(node.saved_bytes for node in every) == view.sharing.saved_bytes
        forked += view.sharing.forked_tokens
    assert forked
    assert max(len(prefix_tree.build(view)) for view in views) > 10


def test_a_node_is_a_run_as_the_tables_have_it(views):
    for view in views:
        tree = prefix_tree.build(view)
        tables = [request.table for request in view.requests.values()]
        seen = Counter()
        for index, node in enumerate(nodes(tree)):
            seen.update(node.blocks)
            assert node.blocks
            for block in node.blocks:
                assert view.blocks.references[block] == node.references
                assert sum(block in table for table in tables) == node.references
            names = prefix_tree.holders(view, node)
            assert len(names) == node.references
            for name in names:
                table = view.requests[name].table
                assert table[node.position : node.position + len(node.blocks)] == node.blocks
            parent = int(tree.parents[index])
            assert node.depth == (0 if parent == UNKNOWN else tree.node(parent).depth + 1)
            assert parent < index
            if parent != UNKNOWN:
                above = tree.node(parent)
                assert above.position + len(above.blocks) == node.position
                assert parent < index <= parent + above.below
            else:
                assert node.position == 0
        assert not seen or max(seen.values()) == 1
        assert {at for at, count in Counter(b for t in tables for b in t).items() if count > 1} <= set(seen)


def test_runs_are_as_long_as_they_can_be(views):
    for view in views:
        tree = prefix_tree.build(view)
        parents = Counter(tree.parents.tolist())
        for index in range(len(tree)):
            parent = int(tree.parents[index])
            if parent != UNKNOWN and parents[parent] == 1:
                assert tree.references[index] != tree.references[parent]


def test_a_node_is_found_by_any_of_its_blocks(views):
    """So that what is selected stays it when its run grows, or loses its end."""
    for view in views:
        tree = prefix_tree.build(view)
        for index, node in enumerate(nodes(tree)):
            assert {tree.index_of(block) for block in node.blocks} == {index}
        assert tree.index_of(None) is None
        assert tree.index_of(len(view.blocks)) is None


def test_siblings_come_with_what_saves_most_first(views):
    for view in views:
        tree = prefix_tree.build(view)
        saved = tree.saved
        totals = [int(saved[at : at + size].sum()) for at, size in enumerate(tree.sizes.tolist())]
        last: dict[int, int] = {}
        for at, parent in enumerate(tree.parents.tolist()):
            assert totals[at] <= last.get(parent, totals[at])
            last[parent] = totals[at]


def test_cached_nodes_were_found_or_something_goes_on_from_them(views):
    idle = 0
    for view in views:
        tree = prefix_tree.build(view)
        for node in nodes(tree):
            if not node.references:
                idle += 1
                assert node.saved_blocks == 0
                going_on = ((view.blocks.parent == node.last) & (view.blocks.state != FREE)).sum()
                assert node.hits or node.below or going_on > 1
                assert all(view.blocks.state[block] == CACHED for block in node.blocks)
    assert idle


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3)),
        max_size=9,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_forest_of_tables(fold_frame, picks):
    """Tables are a system prompt, a turn that goes on from it, and blocks of their own."""
    free = iter(range(40, 400))
    prompts = {at: tuple(range(at * 3, at * 3 + at)) for at in range(4)}
    turns: dict[tuple[int, int], tuple[int, ...]] = {}
    tables = []
    for prompt, turn, own in picks:
        if (prompt, turn) not in turns:
            turns[prompt, turn] = tuple(next(free) for _ in range(turn))
        tables.append(prompts[prompt] + turns[prompt, turn] + tuple(next(free) for _ in range(own)))
    view = fold_frame(tables)
    tree = prefix_tree.build(view)
    references = Counter(block for table in tables for block in table)
    assert tree.saved_blocks == sum(count - 1 for count in references.values())
    for node in nodes(tree):
        assert {tables[int(name[1:])][: node.position + len(node.blocks)][-len(node.blocks) :] for name in
                prefix_tree.holders(view, node)} == {node.blocks}  # fmt: skip


@pytest.fixture(scope="module")
def fold_frame(fold, frame):
    return lambda tables: frame(fold([snapshot(tables, blocks=400)])).view


def test_a_small_tree_by_hand(view_of):
    view = view_of([[0, 1, 2, 3, 10], [0, 1, 2, 3, 11], [0, 1, 20], [30, 31]])
    tree = prefix_tree.build(view)
    assert [(node.blocks, node.references, node.depth, node.position, node.below) for node in nodes(tree)] == [
        ((0, 1), 3, 0, 0, 1),
        ((2, 3), 2, 1, 2, 0),
    ]
    assert tree.saved.tolist() == [4, 2]
    assert tree.saved_blocks == view.sharing.saved_blocks == 6
    assert tree.node(0).saved_bytes == 4 * 1600
    assert prefix_tree.holders(view, tree.node(1)) == ("r0", "r1")


def test_blocks_cached_before_are_counted_and_not_placed(view_of):
    tree = prefix_tree.build(view_of([[0, 1], [0, 2]], cached=(5, 6, 7)))
    assert tree.unknown == 3
    assert [node.blocks for node in nodes(tree)] == [(0,)]


def test_nothing_shared_is_an_empty_tree(view_of):
    for view in (view_of([]), view_of([[0, 1], [2]])):
        tree = prefix_tree.build(view)
        assert len(tree) == tree.saved_blocks == tree.unknown == 0
        assert tree.index_of(0) is None
        assert tree.visible(frozenset({3})).tolist() == []


def test_another_copy_of_what_is_before_hides_nothing(view_of):
    """Two requests computed the first block each; one block after it is shared: it is told once, where it first is."""
    view = view_of([[0, 1, 5], [2, 3, 5], [2, 3]])
    tree = prefix_tree.build(view)
    assert tree.saved_blocks == view.sharing.saved_blocks == 3
    shared = next(node for node in nodes(tree) if 5 in node.blocks)
    assert prefix_tree.holders(view, shared) == ("r0", "r1")


def test_a_chain_that_lost_its_beginning_is_not_placed(view_of):
    view = view_of([[0, 1]], cached=(5, 6))
    view.blocks.owner[[5, 6]] = 0
    view.blocks.parent[[5, 6]] = 7, 5  # 7 is free: what 5 went on from is gone
    view.blocks.hits[[5, 6]] = 2
    tree = prefix_tree.build(view)
    assert (tree.unknown, len(tree)) == (2, 0)
    view.blocks.parent[5] = UNKNOWN  # the first of its table
    tree = prefix_tree.build(view)
    assert (tree.unknown, [node.blocks for node in nodes(tree)]) == (0, [(5, 6)])
    assert (tree.node(0).references, tree.node(0).hits) == (0, 2)


def test_a_circle_ends(view_of):
    """No engine makes one; a stream that contradicts itself must not hang the screen."""
    view = view_of([[0, 1], [0, 1]], cached=(5, 6))
    view.blocks.owner[[5, 6]] = 0
    view.blocks.parent[[5, 6]] = 6, 5
    view.blocks.hits[[5, 6]] = 2
    tree = prefix_tree.build(view)
    assert tree.saved_blocks == 2
    assert sorted(tree.blocks.tolist()) == [0, 1, 5, 6]


def test_closed_nodes_hide_what_is_under_them(view_of):
    tree = prefix_tree.build(view_of([[0, 1, 2, 3], [0, 1, 2, 4], [0, 5, 9], [0, 5, 8], [6], [6]]))
    assert [node.blocks for node in nodes(tree)] == [(0,), (1, 2), (5,), (6,)]
    assert tree.visible(frozenset()).tolist() == [0, 1, 2, 3]
    assert tree.visible(frozenset({0})).tolist() == [0, 3]
    assert tree.visible(frozenset({2, 77})).tolist() == [0, 1, 2, 3]
    assert tree.index_of(5) == 2


def test_a_tree_is_made_once_for_a_view(view_of):
    view = view_of([[0, 1], [0, 2]])
    tree = prefix_tree.tree_of(view)
    assert prefix_tree.tree_of(view) is tree
    newer = replace(view, seq=2, now=view.now + 0.1)
    assert prefix_tree.tree_of(newer).seq == 2


def test_a_large_pool_is_read_once_a_second(view_of):
    view = view_of([[0, 1], [0, 2]], blocks=prefix_tree.LARGE_POOL)
    tree = prefix_tree.tree_of(view)
    assert prefix_tree.tree_of(replace(view, seq=2, now=view.now + 0.9)) is tree
    assert tree.seq == 1
    assert prefix_tree.tree_of(replace(view, seq=9, now=view.now + 1.0)).seq == 9
    assert prefix_tree.tree_of(replace(view, seq=5, now=view.now + 0.5)).seq == 5  # back in time


def test_a_large_tree_is_read_less_often(view_of, monkeypatch):
    monkeypatch.setattr(prefix_tree, "LARGE_TREE", 1)
    view = view_of([[0, 1, 2], [0, 1, 3]], blocks=prefix_tree.LARGE_POOL)
    tree = prefix_tree.tree_of(view)
    assert len(tree.blocks) == 2
    assert prefix_tree.tree_of(replace(view, seq=2, now=view.now + 1.9)) is tree
    assert prefix_tree.tree_of(replace(view, seq=3, now=view.now + 2.0)).seq == 3


def test_a_view_of_another_engine_has_its_own_tree(view_of):
    one, two = view_of([[0, 1], [0, 2]]), view_of([[3, 1], [3, 2], [3, 4]])
    assert prefix_tree.tree_of(one).node(0).blocks == (0,)
    assert prefix_tree.tree_of(two).node(0).blocks == (3,)


def test_drawing_changes_no_column(views):
    view = views[-1]
    before = deepcopy(view.blocks)
    prefix_tree.build(view)
    for name in before.__slots__:
        assert np.array_equal(getattr(before, name), getattr(view.blocks, name), equal_nan=name == "since")
