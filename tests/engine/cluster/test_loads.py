from __future__ import annotations

from engine.cluster.block_index import BlockIndex
from engine.cluster.loads import ANSWER_TOKENS, FIRST_SLOTS, MEMORY, Loads, Work


def begin(loads: Loads, slot: int = 0, tokens: int = 100, rows: int = 1, names: tuple[int, ...] = ()) -> Work:
    return loads.begin(slot, tokens, rows, names, tokens, workers=2)


def test_a_request_counts_from_its_beginning_to_its_end_and_less_on_the_way() -> None:
    loads = Loads(BlockIndex())
    work = begin(loads, rows=3)
    assert loads.outstanding[0] == 100 + 3 * ANSWER_TOKENS
    work.advance(60)
    assert loads.outstanding[0] == 40 + 3 * ANSWER_TOKENS
    work.computed()
    work.end_rows()
    assert loads.outstanding[0] == 2 * ANSWER_TOKENS
    work.end()
    assert loads.outstanding[0] == 0
    assert loads.routed[0] == 1
    assert loads.sent[0] == 100


def test_what_comes_late_changes_nothing() -> None:
    loads = Loads(BlockIndex())
    other = begin(loads)
    work = begin(loads)
    work.advance(1000)
    work.end_rows(5)
    assert loads.outstanding[0] == other.cost
    work.end()
    for late in (work.end, work.computed, work.end_rows, lambda: work.advance(5)):
        late()
    assert loads.outstanding[0] == other.cost == 100 + ANSWER_TOKENS


def test_a_worker_that_leaves_takes_its_work_along_and_the_next_has_none() -> None:
    index = BlockIndex()
    loads = Loads(index)
    works = [begin(loads, names=(1, 2)), begin(loads, names=(2, 3))]
    loads.leave(0)
    assert loads.outstanding[0] == loads.recent[0] == loads.routed[0] == 0
    assert len(index) == 0
    begin(loads, names=(2,))
    works[1].computed()
    works[0].end()
    assert loads.outstanding[0] == 100 + ANSWER_TOKENS
    assert set(index.expected(0)) == {2}


def test_a_block_is_expected_until_the_request_ends_that_brought_it() -> None:
    index = BlockIndex()
    loads = Loads(index)
    first, second = begin(loads, names=(1, 2)), begin(loads, names=(2, 3))
    begin(loads, slot=1, names=(1,))
    assert set(index.expected(0)) == {1, 2, 3}
    first.end()
    assert set(index.expected(0)) == {3}
    assert set(index.expected(1)) == {1}
    second.end()
    assert set(index.expected(0)) == set()


def test_what_was_given_counts_half_after_a_while() -> None:
    loads = Loads(BlockIndex())
    begin(loads, slot=1, tokens=1000 - ANSWER_TOKENS)
    for _ in range(2 * MEMORY):
        begin(loads).end()
    assert loads.recent[1] == 500


def test_there_are_slots_for_more_and_those_there_keep_what_they_have() -> None:
    loads = Loads(BlockIndex())
    work = begin(loads, slot=FIRST_SLOTS - 1)
    loads.grow()
    begin(loads, slot=FIRST_SLOTS)
    assert loads.outstanding.tolist()[FIRST_SLOTS - 1 : FIRST_SLOTS + 2] == [work.cost, work.cost, 0]
    work.end()
    assert loads.outstanding[FIRST_SLOTS - 1] == 0
