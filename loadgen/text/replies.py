"""Recorded answers of which a trace tells the text and not the tokens: as many tokens are asked for."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from loadgen.text.tokenizer import Tokenizer
from loadgen.traces.model import Session


async def count_replies(session: Session, tokenizer: Tokenizer | None) -> Session:
    """The session with `output_tokens` for every turn that has a `reply`; unchanged if they all have.

    An empty reply asks for one token, the least that a server makes. Raises `TokenizerError`. Without a tokenizer
    nothing is counted.
    """
    uncounted = [turn.reply for turn in session.turns if turn.output_tokens is UNSET and turn.reply is not UNSET]
    if tokenizer is None or not uncounted:
        return session
    counts = iter(await tokenizer.count(uncounted))
    turns = tuple(
        msgspec.structs.replace(turn, output_tokens=max(1, next(counts)))
        if turn.output_tokens is UNSET and turn.reply is not UNSET
        else turn
        for turn in session.turns
    )
    return msgspec.structs.replace(session, turns=turns)
