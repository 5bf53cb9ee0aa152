"""Pieces of text that are one token each of a server's tokenizer wherever they stand, found by asking it.

A prompt made of such pieces has as many tokens as pieces, and equal pieces are equal tokens. What a server puts around
a prompt (a BOS, a chat template) is its frame.
"""

from __future__ import annotations

import random
from enum import StrEnum

import msgspec

TAPE_PIECES = 2048


class Endpoint(StrEnum):
    """Where a prompt is sent."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


class Frame(msgspec.Struct, frozen=True):
    """How a prompt of pieces is written for one endpoint, and the tokens that stand around the pieces then.

    `opening` is text before the first piece, `before` its tokens with those of the server's own before it, `after` the
    tokens behind the last piece. `bare`: the first piece goes without its space, which the tokenizer puts there.
    """

    opening: str = ""
    bare: bool = False
    before: int = 0
    after: int = 0

    @property
    def tokens(self) -> int:
        return self.before + self.after


class Vocabulary(msgspec.Struct, frozen=True):
    """Pieces that are one token each, different ones, in any order; and the frame of each endpoint that has one."""

    pieces: tuple[str, ...]
    frames: dict[Endpoint, Frame]

    def __post_init__(self) -> None:
        if len(self.pieces) < 2:
            raise ValueError("a vocabulary has at least two pieces")

    def frame(self, endpoint: Endpoint) -> Frame:
        """The frame of an endpoint. Raises `ValueError` if it has none."""
        if endpoint not in self.frames:
            raise ValueError(f"input_tokens: the server's {endpoint} endpoint has not been tried")
        return self.frames[endpoint]

    def tape(self) -> tuple[str, ...]:
        """The same long row of pieces for everybody, from which the insides of blocks are cut."""
        return tuple(random.Random(0).choices(self.pieces, k=TAPE_PIECES))
