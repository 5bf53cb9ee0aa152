import json

import pytest

from servers import kv_nodes, kv_tree
from servers.kv_events import (
    AllBlocksCleared,
    BadEvents,
    Batch,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Heard,
    KvEvent,
    Missed,
    Restarted,
)
from servers.kv_tree import Churn, KvTree


class Telling:
    """A tree and the numbers of what it is told."""

    def __init__(self, first: int = 0) -> None:
        self.tree, self.number = KvTree(), first

    def __call__(self, *events: KvEvent, rank: int | None = None, unknown: int = 0) -> KvTree:
        self.tree.take(Heard(self.number, Batch(1_000.0 + self.number, events, rank, unknown)))
        self.number += 1
        return self.tree


def stored(*hashes: BlockHash, parent: BlockHash | None = None, **more: object) -> BlockStored:
    fields = {"token_ids": tuple(range(4 * len(hashes))), "block_size": 4, "medium": "GPU"} | more
    return BlockStored(hashes, parent, **fields)  # type: ignore[arg-type]


def removed(*hashes: BlockHash, medium: str | None = "GPU", group: int | None = None) -> BlockRemoved:
    return BlockRemoved(hashes, medium, group)


def shown(tree: KvTree) -> list[tuple[int, BlockHash, BlockHash, int, str]]:
    """Each run's depth, first and last block, blocks below, and what is above."""
    return [(run.depth, run.first, run.last, run.below, run.above) for run in tree.runs()]


def test_runs_branch_where_prompts_do_and_the_largest_comes_first():
    tell = Telling()
    tell(stored(1, 2, 3), stored(20, 21, parent=2), stored(30, 31, 32, parent=2), stored(90))
    tree = tell(stored(22, parent=21, lora="french"))
    assert shown(tree) == [
        (0, 1, 2, 7, "start"),
        (1, 20, 21, 1, "block"),
        (2, 22, 22, 0, "block"),  # another adapter is another run
        (1, 30, 32, 0, "block"),
        (1, 3, 3, 0, "block"),
        (0, 90, 90, 0, "start"),
    ]
    first, second, *_ = tree.runs()
    assert (first.blocks, first.tokens, first.before, first.below_tokens, first.children) == (2, 8, 0, 28, 3)
    assert (first.total, first.known, first.stored) == (9, True, 1_000.0)
    assert (second.before, second.tokens) == (8, 8)
    assert (tree.resident, tree.tokens, tree.media) == (10, 40, {"GPU": 10})


def test_children_of_parents_that_were_never_seen_are_joined_when_these_come():
    tell = Telling(first=9)
    tree = tell(stored(3, 4, parent=2))
    assert shown(tree) == [(0, 3, 4, 0, "unseen")]
    assert (tree.late, tree.complete, tree.churn.unknown_parents) == (True, False, 1)
    assert not next(tree.runs()).known
    assert shown(tell(stored(2, parent=1))) == [(0, 2, 4, 0, "unseen")]
    assert shown(tell(stored(1))) == [(0, 1, 4, 0, "start")]
    assert tree.churn.unknown_parents == 2


def test_a_block_removed_in_the_middle_leaves_what_follows_resident_and_out_of_reach():
    tell = Telling()
    tree = tell(stored(1, 2, 3, 4), stored(30, parent=2), removed(2))
    assert shown(tree) == [(0, 3, 4, 0, "removed"), (0, 1, 1, 0, "start"), (0, 30, 30, 0, "removed")]
    assert tree.resident == 4
    assert shown(tell(stored(2, parent=1))) == [
        (0, 1, 2, 3, "start"),
        (1, 3, 4, 0, "block"),
        (1, 30, 30, 0, "block"),
    ]
    assert tree.churn == Churn(stored=6, removed=1, again=1)


def test_what_follows_a_block_that_went_before_says_so():
    tell = Telling()
    tell(stored(1, 2), removed(2))
    assert shown(tell(stored(3, parent=2))) == [(0, 1, 1, 0, "start"), (0, 3, 3, 0, "removed")]


def test_equal_blocks_are_gone_with_the_last_of_them():
    tell = Telling()
    tell(stored(1, 2), stored(1, 2))
    tree = tell(removed(1, 2))
    assert (tree.resident, tree.churn.removed, tree.churn.stored) == (2, 0, 2)
    assert tell(removed(2, 1)).resident == 0
    assert tree.churn == Churn(stored=2, removed=2)
    assert list(tree.runs()) == []
    tell(removed(1))
    assert tree.churn.unknown_removals == 1


def test_a_block_stays_for_as_long_as_one_medium_has_it():
    tell = Telling()
    tree = tell(stored(1, 2), stored(2, parent=1, medium="CPU"))
    assert [(run.first, run.medium) for run in tree.runs()] == [(1, "GPU"), (2, "CPU+GPU")]
    assert tree.media == {"GPU": 2, "CPU": 1}
    tell(removed(2))
    assert [(run.first, run.medium, run.above) for run in tree.runs()] == [(1, "GPU", "start"), (2, "CPU", "block")]
    assert (tree.holds(2), tree.holds(2, "GPU"), tree.holds(2, "CPU")) == (True, False, True)
    tell(removed(2, medium="CPU"))
    assert (tree.resident, tree.media, tree.holds(2)) == (1, {"GPU": 1}, False)
    tell(stored(2, parent=1))
    assert tree.churn.again == 1, "it was gone from all"


def test_a_medium_that_only_one_kind_of_event_names():
    tell = Telling()
    tree = tell(stored(1, medium=None), stored(2), removed(1), removed(2, medium=None))
    assert (tree.resident, tree.churn.unknown_removals) == (0, 0)


def test_blocks_told_by_their_hash_alone_take_the_place_that_others_tell():
    # Real vLLM tells so of blocks that it offloads: no parent, no tokens, a size of 0.
    bare = {"block_size": 0, "token_ids": (), "medium": "CPU"}
    tell = Telling()
    tree = tell(stored(1, 2), stored(2, **bare), stored(7, **bare))
    assert [(run.first, run.above, run.tokens) for run in tree.runs()] == [
        (1, "start", 4),
        (2, "block", 4),
        (7, "unseen", 0),
    ]
    tell(stored(7, parent=2))
    assert [(run.first, run.above, run.tokens, run.medium) for run in tree.runs()] == [
        (1, "start", 4, "GPU"),
        (2, "block", 8, "CPU+GPU"),
    ]
    assert tree.tokens == 12


def test_groups_and_ranks_have_blocks_of_their_own():
    tell = Telling()
    tree = tell(stored(1, 2, group=0), stored(1, 2, group=1))
    tell(stored(1, 2), rank=1)
    tell(removed(2, group=1))
    assert tree.resident == 5
    assert [(run.rank, run.group, run.blocks) for run in tree.runs()] == [(0, 0, 2), (1, 0, 2), (0, 1, 1)]
    tell(AllBlocksCleared(), rank=0)
    assert [(run.rank, run.blocks) for run in tree.runs()] == [(1, 2)]
    assert set(tree.hashes(rank=1)) == {1, 2}
    assert set(tree.hashes(group=5)) == set()


def test_hashes_of_contents_alone_may_name_a_block_before_itself():
    # SGLang's were: a page of equal tokens further on has the same one.
    tell = Telling()
    tree = tell(stored(1, 1, 1))
    assert tree.resident == 1
    tell(stored(2, parent=1), removed(1, 1, 1))
    assert shown(tree) == [(0, 2, 2, 0, "removed")]
    tell(stored(1, parent=2))
    assert sorted(shown(tree)) == [(0, 1, 2, 0, "unseen")]
    tell(stored(5, parent=5))
    assert tree.resident == 3


def test_after_a_gap_the_tree_is_in_doubt_until_everything_is_cleared():
    tell = Telling()
    tree = tell(stored(1, 2))
    assert tree.complete
    tree.take(Missed(1, 4))
    tell.number = 5
    assert (tree.complete, tree.doubtful_since, tree.churn.missed) == (False, 1_000.0, 4)
    tell(removed(9))
    tree.take(Missed(6, 6))
    assert (tree.doubtful_since, tree.churn.unknown_removals) == (1_000.0, 1), "since the first"
    tell(AllBlocksCleared())
    assert (tree.complete, tree.doubtful_since, tree.resident) == (True, None, 0)
    assert tree.churn.cleared == 1


def test_a_restart_takes_everything_and_begins_anew():
    tell = Telling()
    tree = tell(stored(1, 2))
    tree.take(Missed(1, 1))
    tree.take(Restarted())
    assert (tree.resident, tree.complete, list(tree.runs())) == (0, False, [])
    tell.number = 0
    tell(stored(8))
    assert (tree.complete, tree.late, set(tree.hashes())) == (True, False, {8})
    tree.take(Restarted())
    tell.number = 3
    tell(stored(9))
    assert (tree.complete, tree.late) == (False, True)
    assert (tree.churn.restarted, tree.churn.stored) == (2, 4)


def test_a_stream_that_begins_with_a_gap_is_late():
    tell = Telling(first=5)
    tell.tree.take(Missed(0, 4))
    assert (tell(stored(1)).late, tell.tree.complete) == (True, False)


def test_nothing_heard_is_not_complete():
    assert not KvTree().complete


def test_runs_are_walked_once_for_each_change(monkeypatch):
    walks = []
    walk = kv_tree.lines_of
    monkeypatch.setattr(kv_tree, "lines_of", lambda spaces: walks.append(1) or walk(spaces))
    tell = Telling()
    tree = tell(stored(1, 2), stored(3, parent=1))
    first = tree.changes
    assert list(tree.runs()) == list(tree.runs())
    assert len(walks) == 1
    tell(stored(4))
    assert (len(list(tree.runs())), len(walks)) == (4, 2)
    assert tree.changes > first


def test_nothing_is_kept_of_blocks_that_went_but_the_last_hashes():
    tell = Telling()
    tree = tell(stored(1, 2, 3), stored(20, parent=2), stored(7, parent=404), stored(1, 2))
    assert tree.to_state()["spaces"][0][2]["hash"].count(404) == 1, "what others go on from"
    tell(removed(2), removed(2), removed(3), removed(20), removed(1), removed(1), removed(7))
    state = tree.to_state()["spaces"][0][2]
    assert (state["hash"], state["copies"], state["media"], tree.media) == ([], [], [], {})
    assert state["removed"] == [2, 3, 20, 1, 7]


def test_a_deep_tree_is_no_recursion():
    tell = Telling()
    for number in range(3_000):
        tell(stored(2 * number, 2 * number + 1, parent=2 * number - 2 if number else None))
    runs = list(tell.tree.runs())
    assert (len(runs), max(run.depth for run in runs), runs[0].total) == (5_999, 2_999, 6_000)
    assert KvTree.from_state(tell.tree.to_state()).resident == tell.tree.copy().resident == 6_000


def test_blocks_beyond_what_fits_are_left_out_and_told(monkeypatch):
    monkeypatch.setattr(kv_tree, "MAX_BLOCKS", 3)
    monkeypatch.setattr(kv_tree, "MAX_SPACES", 1)
    tell = Telling()
    tree = tell(stored(1, 2), stored(3, 4, 5, parent=2), stored(1), stored(7, group=4))
    assert (tree.resident, tree.churn.left_out, tree.complete) == (3, 3, False)
    tell(removed(3), stored(9))
    assert (tree.resident, tree.complete) == (3, False)
    assert tell(AllBlocksCleared()).complete


def test_only_the_last_that_went_are_remembered(monkeypatch):
    monkeypatch.setattr(kv_nodes, "REMEMBERED", 2)
    tell = Telling()
    tree = tell(stored(1), stored(2), stored(3), removed(1, 2, 3))
    tell(stored(1), stored(2), stored(3))
    assert tree.churn.again == 2


def test_events_of_unknown_types_are_counted():
    assert Telling()(unknown=3).churn.unknown_events == 3


def test_a_copy_stays_as_it_was_and_a_state_goes_on_without_tokens():
    tell = Telling()
    tree = tell(stored(b"\xff" * 32, -5, 2**64 - 1, lora="french"), stored(7, parent=-5), stored(7, parent=-5))
    tell(stored(8, parent=404), stored(2, medium="CPU", group=2), removed(-5))
    before = list(tree.runs())
    copy = tree.copy()
    as_json = json.dumps(tree.to_state())
    again = KvTree.from_state(json.loads(as_json, parse_int=lambda digits: int(float(digits))))
    tell(removed(7), removed(2, medium="CPU", group=2), stored(-5, parent=b"\xff" * 32))
    assert list(copy.runs()) == before
    assert (copy.churn, again.churn, again.complete, again.changes) == (
        copy.churn,
        copy.churn,
        copy.complete,
        copy.changes,
    )
    for other in (copy, again):
        other.take(Heard(2, Batch(1_002.0, (removed(7), removed(2, medium="CPU", group=2)))))
        other.take(Heard(3, Batch(1_002.0, (stored(-5, parent=b"\xff" * 32),))))
        assert shown(other) == shown(tree)
        assert other.churn == tree.churn


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop("time"),
        lambda state: state.update(spaces=[1]),
        lambda state: state["spaces"][0][2].update(parent=[None, 1]),
        lambda state: state["spaces"][0][2].update(parent=[None, -1]),
        lambda state: state["spaces"][0][2].update(parent=[None]),
        lambda state: state["spaces"][0][2].update(hash=[1, 1]),
        lambda state: state["spaces"][0][2].update(hash=[1, "zz"]),
        lambda state: state["spaces"][0][2].update(loras=[7]),
        lambda state: state["spaces"][0][2].update(media=[[[]]]),
        lambda state: state["spaces"][0][2].update(size=[4, "4"]),
        lambda state: state["spaces"][0][2].update(gone=[99]),
        lambda state: state["spaces"][0][2].update(evicted="1"),
        lambda state: state["spaces"][0][2].update(time=[1.0, None]),
        lambda state: state["spaces"][0][2].update(copies=[[0, None, "2"]]),
        lambda state: state.update(changes=1.5),
        lambda state: state.update(unknown_events=-1),
        lambda state: state.update(doubtful_since="now"),
    ],
)
def test_a_state_that_no_tree_made_is_refused(spoil):
    state = Telling()(stored(1, 2)).to_state()
    spoil(state)
    with pytest.raises(BadEvents, match="not the state of a tree"):
        KvTree.from_state(state)


def keeping(tell: Telling, *events: KvEvent, most: int = 100, rank: int | None = None) -> KvTree:
    """The tree once it was told, and how its blocks begin is kept."""
    tree = tell(*events, rank=rank)
    tree.keep_openings(Heard(tell.number - 1, Batch(0.0, events, rank)), most)
    return tree


def beginnings(tree: KvTree, most: int = 100) -> dict[BlockHash, tuple[int, ...]]:
    return {run.first: tree.opening(run, most) for run in tree.runs()}


def test_a_run_begins_with_the_token_ids_of_its_own_blocks():
    tell = Telling()
    tree = keeping(tell, stored(1, 2, token_ids=range(8)), stored(3, parent=2, token_ids=range(20, 24)))
    assert beginnings(tree) == {1: (*range(8), 20, 21, 22, 23)}
    tree = keeping(tell, stored(4, parent=2, token_ids=range(30, 34)))
    assert beginnings(tree) == {1: tuple(range(8)), 3: (20, 21, 22, 23), 4: (30, 31, 32, 33)}
    assert beginnings(tree, 5)[1] == (0, 1, 2, 3, 4)
    keeping(tell, removed(3), stored(3, parent=4, token_ids=range(40, 44)))
    assert beginnings(tree) == {1: (*range(8), *range(30, 34), *range(40, 44))}
    large = keeping(Telling(), stored(1, 2, token_ids=range(200), block_size=100))
    assert beginnings(large) == {1: tuple(range(kv_nodes.OPENING))}  # what comes after is not what is kept of the next
    small = keeping(Telling(), stored(*range(10), token_ids=range(10), block_size=1))
    assert beginnings(small) == {0: tuple(range(10))}


def test_openings_are_kept_for_as_long_as_blocks_are_and_are_in_no_state():
    tell = Telling()
    tree = keeping(tell, stored(1, token_ids=range(77_001, 77_005)), stored(2), stored(2), stored(3), rank=1)
    assert beginnings(tree)[1] == (77_001, 77_002, 77_003, 77_004)
    assert "7700" not in json.dumps(tree.to_state())
    assert set(beginnings(KvTree.from_state(tree.to_state())).values()) == {()}
    tell(removed(1), removed(2), rank=1)
    assert beginnings(tree) == {2: (0, 1, 2, 3), 3: (0, 1, 2, 3)}  # of 2 there are two
    tell(stored(1), stored(3), rank=1)  # told without
    assert beginnings(tree)[1] == ()
    tell(AllBlocksCleared(), rank=1)
    tell(stored(2), stored(3), rank=1)
    assert set(beginnings(tree).values()) == {()}
    keeping(tell, stored(2), rank=1)
    tree.take(Restarted())
    tell(stored(2), rank=1)
    assert set(beginnings(tree).values()) == {()}


@pytest.mark.parametrize("bad", [{"token_ids": (1, 2)}, {"block_size": 0}, {"token_ids": (-1, 2, 3, 2**40)}])
def test_token_ids_that_are_none_are_not_kept(bad):
    assert beginnings(keeping(Telling(), stored(1, **bad))) == {1: ()}


def test_of_too_many_blocks_those_that_runs_begin_with_are_kept_longest():
    tell = Telling()
    tree = keeping(tell, stored(*range(100)), most=60)
    for first in range(1_000, 1_200, 10):
        keeping(tell, stored(*range(first, first + 10), parent=99), most=60)
        (space,) = tree._spaces.values()
        assert len(space.openings) <= 60
    assert all(beginnings(tree).values())
    keeping(tell, *(stored(first) for first in range(5_000, 5_100)), most=60)
    assert 30 <= len(space.openings) <= 60
    assert all(tree.opening(run, 9) for run in tree.runs() if run.first >= 5_070)
    keeping(tell, stored(*range(9_000, 9_500), token_ids=range(2_000)), most=60)
    assert len(space.openings) <= 60
