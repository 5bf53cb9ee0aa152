"""Tokens to pieces of text, one each: the same ones wherever in a text one begins to read."""

from __future__ import annotations

import asyncio

from engine.detokenizer import Detokenizer, TokenBytes
from engine.messages import TokensAfter

BEFORE = 16  # tokens asked for before those that are wanted; nearly always more than enough
BYTES_BEFORE = 3  # of a character that is not complete, at most: older bytes do not matter
LONG = 4096  # tokens; to work out more pieces than these would hold up the event loop


def is_enough(table: TokenBytes, part: TokensAfter) -> bool:
    """Whether the tokens before a part tell how its first text begins."""
    return part.begins or sum(len(table[token]) for token in part.before) >= BYTES_BEFORE


def pieces(table: TokenBytes, part: TokensAfter) -> tuple[str, ...]:
    """What each of a part's tokens adds to the text, special tokens included."""
    detokenizer = Detokenizer(table, skip_special=False, continues=not part.begins)
    for token in part.before:
        detokenizer.push(token)
    return tuple(map(detokenizer.push, part.tokens))


async def pieces_of(table: TokenBytes, part: TokensAfter) -> tuple[str, ...]:
    """The same, on another thread where it takes long."""
    if len(part.tokens) <= LONG:
        return pieces(table, part)
    return await asyncio.to_thread(pieces, table, part)
