"""Recorded answers are asked for in as many tokens."""

from __future__ import annotations

from made_tokenizers import MadeTokenizer, letters
from msgspec import UNSET

from loadgen.text.replies import count_replies
from loadgen.traces.model import Session, Turn

TURNS = (
    Turn(user="a", reply="four"),
    Turn(user="b", reply="sixsix", output_tokens=2),
    Turn(user="c", reply=""),
    Turn(user="d"),
    Turn(user="e", reply="seventy"),
)
SESSION = Session(session="s", arrival=0.0, turns=TURNS)


async def test_only_what_the_trace_does_not_tell_is_counted() -> None:
    counted = await count_replies(SESSION, MadeTokenizer(letters()))
    assert [turn.output_tokens for turn in counted.turns] == [4, 2, 1, UNSET, 7]
    assert [turn.reply for turn in counted.turns] == [turn.reply for turn in TURNS]
    assert await count_replies(counted, MadeTokenizer(letters())) is counted


async def test_without_a_tokenizer_it_stays_as_it_is() -> None:
    assert await count_replies(SESSION, None) is SESSION
