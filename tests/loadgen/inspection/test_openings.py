"""How many prompts begin alike."""

from __future__ import annotations

from made_sessions import HEADER, blocks, chat, says

from loadgen.inspection.columns import ColumnReader
from loadgen.inspection.openings import KEPT, Opening, Openings


def test_the_most_common_beginning_of_each_depth() -> None:
    openings = Openings()
    for _ in range(3):
        sessions = [blocks(12, (1, 2, 3)), blocks(12, (1, 2, 4)), blocks(4, (5,)), blocks(16, (1, 2, 3, 6))]
        openings.add(ColumnReader(HEADER).read(sessions).blocks)
    assert openings.openings() == (Opening(4, 9), Opening(8, 9), Opening(16, 3))
    assert openings.prompts == 12


def test_what_one_prompt_alone_begins_with_is_none() -> None:
    openings = Openings()
    openings.add(ColumnReader(HEADER).read([blocks(8, (1, 2)), blocks(8, (3, 4))]).blocks)
    assert openings.openings() == ()


def test_turns_that_go_on_are_not_counted() -> None:
    openings = Openings()
    session = chat(says("a"), says("a"), says("a"), system="main")
    openings.add(ColumnReader(HEADER).read([session, session]).texts)
    assert openings.prompts == 2
    assert openings.openings()[0].prompts == 2


def test_a_common_beginning_outlives_many_rare_ones() -> None:
    openings, reader = Openings(), ColumnReader(HEADER)
    for at in range(10):
        rare = [blocks(4, (10 + at * 2 * KEPT + number,)) for number in range(2 * KEPT)]
        openings.add(reader.read([*rare, *[blocks(4, (1,))] * 50]).blocks)
    assert openings.openings() == (Opening(4, 500),)
    assert len(openings._frequent[0].counts) <= 8 * KEPT
