"""What is sent to an engine, what is told of it, and how it is taken back."""

from __future__ import annotations

import asyncio

import pytest

from tui.operator import Operator
from tui.session import Session


@pytest.fixture
def hand(recording, played, fold):
    """An operator over an engine that notes what it is asked, with what was told."""
    engine = played(recording)

    def make(readonly=False):
        session = Session(engine=engine)
        session.feed.fold = fold(recording).fold
        told = []
        operator = Operator(session, readonly, lambda words, bad: told.append((words, bad)))
        return operator, engine, told

    return make


async def test_a_change_is_sent_and_what_was_accepted_told(hand):
    operator, engine, told = hand()
    await operator.change({"max_num_batched_tokens": 1024, "batching": "static"})
    assert engine.changes == [{"max_num_batched_tokens": 1024, "batching": "static"}]
    assert told == [("token budget is 1,024, batching is static from step 18,210", False)]
    (made,) = operator.made
    assert made.before == {"max_num_batched_tokens": 512, "batching": "continuous"}
    assert made.after == {"max_num_batched_tokens": 1024, "batching": "static"}


async def test_undo_sends_what_was_before_the_last_change_first(hand):
    operator, engine, _ = hand()
    await operator.change({"batching": "static"})
    await operator.change({"max_num_seqs": 8})
    await operator.undo()
    await operator.undo()
    assert engine.changes[2:] == [{"max_num_seqs": 64}, {"batching": "continuous"}]
    assert operator.made == []
    assert [made.after for made in operator.tried] == [{"max_num_seqs": 8}, {"batching": "static"}]


async def test_keys_pressed_before_the_engine_answers_are_done_one_after_the_other(hand):
    operator, engine, told = hand()
    answer = engine.change

    async def answer_later(changes):
        await asyncio.sleep(0)
        return await answer(changes)

    engine.change = answer_later
    await asyncio.gather(operator.change({"max_num_seqs": 128}), operator.change({"max_num_seqs": 256}))
    assert operator.control.max_num_seqs == 256  # accepted, though no record has told it yet
    assert [made.before for made in operator.made] == [{"max_num_seqs": 64}, {"max_num_seqs": 128}]
    await asyncio.gather(operator.undo(), operator.undo(), operator.undo())
    assert engine.changes[2:] == [{"max_num_seqs": 128}, {"max_num_seqs": 64}]
    assert told[-1] == ("nothing was changed from this screen", True)


async def test_what_the_stream_tells_is_believed_from_the_accepted_step_on(hand):
    operator, _, _ = hand()
    await operator.change({"max_num_seqs": 128})
    operator._session.feed.fold.seq = 18_210
    assert operator.control.max_num_seqs == 64


async def test_undo_of_nothing_says_so(hand):
    operator, engine, told = hand()
    await operator.undo()
    assert told == [("nothing was changed from this screen", True)]
    assert engine.changes == []


async def test_a_refused_change_is_told_and_is_no_change_to_undo(hand):
    operator, engine, told = hand()
    engine.refusal = "HTTP 400: no"
    await operator.change({"preempt": "swap"})
    assert told == [("preempt was not changed: HTTP 400: no", True)]
    assert operator.made == []


async def test_a_refused_undo_can_be_tried_again(hand):
    operator, engine, _ = hand()
    await operator.change({"batching": "static"})
    engine.refusal = "HTTP 503: later"
    await operator.undo()
    assert operator.tried == ()
    engine.refusal = ""
    await operator.undo()
    assert engine.changes[-1] == {"batching": "continuous"}
    assert operator.made == []
    assert len(operator.tried) == 1


async def test_readonly_sends_nothing_whatever_is_asked(hand):
    operator, engine, told = hand(readonly=True)
    await operator.change({"batching": "static"})
    await operator.undo()
    await operator.cancel("a")
    assert engine.changes == []
    assert told == [("readonly: nothing is sent", True)] * 3


async def test_a_session_without_an_engine_yet(recording, played):
    told = []
    operator = Operator(Session(engine=played(recording)), False, lambda words, bad: told.append(words))
    await operator.change({"batching": "static"})
    assert told == ["there is no engine to switch yet"]
