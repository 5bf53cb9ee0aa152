"""Sessions of every kind as columns."""

from __future__ import annotations

import pytest
from made_sessions import BLOCK_SIZE, HEADER, blocks, chat, says

from loadgen.inspection.columns import BATCH_PIECES, BATCH_SESSIONS, ColumnReader, batches
from loadgen.traces.model import Asked, Session, Turn


def test_a_chat_is_as_long_as_its_history() -> None:
    again = Turn(regenerates=0, think=1.0, output_tokens=3)
    session = chat(says("a", output=5), says("b", output=7, think=2.5), again, system="main")
    columns = ColumnReader(HEADER).read([session])
    system = 3 * 64 // 4
    assert columns.texts.tokens.tolist() == [system + 16, system + 16 + 5 + 16, system + 16]
    assert columns.together.tolist() == [system + 21, system + 44, system + 19]
    assert columns.messages.tolist() == [16, 16]
    assert columns.outputs.tolist() == [5, 7, 3]
    assert columns.thinks.tolist() == [2.5, 1.0]
    assert columns.moments.tolist() == [0.0]
    assert (columns.ways, columns.systems, columns.regenerating) == ({"user": 2, "regenerates": 1}, {"main": 1}, 1)
    assert not columns.estimated


def test_branches_go_on_from_their_parents() -> None:
    session = chat(says("a", output=5), says("bb", output=7, parent=None), says("c", parent=0), says("c", parent=1))
    assert ColumnReader(HEADER).read([session]).texts.tokens.tolist() == [16, 32, 16 + 5 + 16, 32 + 7 + 16]


def test_what_the_trace_does_not_tell_is_estimated_and_counted() -> None:
    session = chat(Turn(user="x" * 40, reply="y" * 9), Turn(user="x" * 8))
    columns = ColumnReader(HEADER).read([session])
    assert columns.messages.tolist() == [10, 2]
    assert columns.outputs.tolist() == [3]
    assert columns.texts.tokens.tolist() == [10, 15]
    assert columns.estimated == {"messages": 2, "outputs": 1}


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": [{"role": "user", "content": "x" * 40}, {"role": "assistant", "content": None}]}, 10),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, 7),
        ({"prompt": "x" * 12}, 3),
        ({"prompt": [5, 6, 7]}, 3),
        ({"prompt": ["ab", "cd"]}, 3),
        ({"input": "x" * 4}, 1),
        ({}, 0),
    ],
)
def test_a_request_that_is_written_out_is_as_long_as_its_texts(body: dict[str, object], tokens: int) -> None:
    columns = ColumnReader(HEADER).read([chat(Turn(request=Asked("/v1/completions", body), output_tokens=2))])
    assert columns.texts.tokens.tolist() == [tokens]
    assert columns.ways == {"request": 1}


def test_moments_are_those_the_trace_holds() -> None:
    first, own, after = Turn(input_tokens=1), Turn(input_tokens=1, at=9.0), Turn(input_tokens=1, think=3.0)
    columns = ColumnReader(HEADER).read([chat(first, own, after, arrival=7.0), chat(first, arrival=None)])
    assert columns.moments.tolist() == [7.0, 9.0]
    assert columns.arrivals.tolist() == [7.0]
    assert columns.thinks.tolist() == [3.0]
    assert columns.turns.tolist() == [3, 1]


def test_lengths_and_texts_may_be_in_one_trace() -> None:
    columns = ColumnReader(HEADER).read([blocks(9, (1, 2, 3)), chat(says("a")), chat(Turn(input_tokens=5))])
    assert columns.blocks.tokens.tolist() == [9, 5]
    assert columns.texts.tokens.tolist() == [16]
    assert sorted(columns.inputs.tolist()) == [5, 9, 16]
    assert columns.ways == {"input_tokens": 2, "user": 1}


def test_batches_hold_every_session_once_and_are_short() -> None:
    short = [blocks(1, (1,), name=str(number)) for number in range(BATCH_SESSIONS + 1)]
    assert [len(batch) for batch in batches(iter(short))] == [BATCH_SESSIONS, 1]
    ids = range(BATCH_PIECES // 2)
    long = [blocks(len(ids) * BLOCK_SIZE, ids, name=str(number)) for number in range(5)]
    assert [len(batch) for batch in batches(long)] == [2, 2, 1]
    text = [chat(Turn(user="x" * (64 * BATCH_PIECES))) for _ in range(2)]
    assert [len(batch) for batch in batches(text)] == [1, 1]
    assert list(batches(iter(list[Session]()))) == []
