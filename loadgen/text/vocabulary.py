"""Pieces of text that are one token each of a server's tokenizer wherever they stand, found by asking it.

A prompt made of such pieces has as many tokens as pieces, and equal pieces are equal tokens. What a server puts around
a prompt (a BOS, a chat template) is its frame.
"""

from __future__ import annotations

import random
import string
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise

import msgspec

from loadgen import words
from loadgen.text.tokenizer import Tokenizer, TokenizerError

PIECES = 64  # at most: every pair of them is tried
TEXT_PIECES = 1024  # of one call: a server takes no text that is far too long for its model
TAPE_PIECES = 2048
SEPARATOR = "the"
OPENING = "The"
LEAST_PIECES = 16
_Encode = Callable[[str], Awaitable[list[int] | None]]


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

    @property
    def least(self) -> int:
        """Tokens of the shortest prompt: a text must not be empty."""
        return self.tokens + (not self.opening)


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
            raise ValueError(
                f"input_tokens: nothing tells how many tokens surround a prompt of {endpoint.path}; "
                "without --no-probe it is measured"
            )
        return self.frames[endpoint]

    def tape(self) -> tuple[str, ...]:
        """The same long row of pieces for everybody, from which the insides of blocks are cut."""
        return tuple(random.Random(0).choices(self.pieces, k=TAPE_PIECES))


def candidates() -> list[str]:
    """Common words, mixed, then letters, which follow a space in most vocabularies."""
    found = [word for group in words.SHARED.values() for word in group]
    for subject in words.SUBJECTS:
        for group in (subject.thing, subject.things, subject.do, subject.quality, subject.place):
            found += group
    mixed = sorted({word for word in found if not word.startswith(SEPARATOR)})
    random.Random(0).shuffle(mixed)
    return mixed + list(string.ascii_letters)


async def find_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Pieces that are one token each, and how prompts of them are framed. Raises `TokenizerError` if there are none."""
    for find in (_words, _characters):
        found = list((await find(tokenizer)).items())
        for some in (dict(found[first : first + PIECES]) for first in range(0, len(found), PIECES)):
            if len(some) >= LEAST_PIECES and await _proven(tokenizer, some):
                return Vocabulary(tuple(some), await _frames(tokenizer, some))
    raise TokenizerError(
        "this tokenizer has no words or letters that are one token each wherever they stand: "
        "prompts of exact lengths cannot be made with it"
    )


async def _proven(tokenizer: Tokenizer, pieces: dict[str, int]) -> bool:
    """Whether the pieces are their tokens in a text in which each follows each: some tokenizers join words."""
    row = every_pair(list(pieces))
    for first in range(0, len(row) - 1, TEXT_PIECES):
        part = row[first : first + TEXT_PIECES + 1]
        ids = await tokenizer.encode("".join(part), special=False)
        if ids[-len(part) :] != [pieces[piece] for piece in part]:
            return False
    return True


def every_pair(pieces: Sequence[str]) -> list[str]:
    """A row in which each piece follows each, itself too: the least de Bruijn sequence of order 2, closed."""
    row = []
    for first, piece in enumerate(pieces):
        row.append(piece)
        for other in pieces[first + 1 :]:
            row += [piece, other]
    return [*row, pieces[0]]


async def _words(tokenizer: Tokenizer) -> dict[str, int]:
    """Words that are one token with the space before them: what comes between two separators, all in one text."""
    ids = await tokenizer.encode(" ".join([SEPARATOR] * 3), special=False)
    if len(ids) < 2 or ids[-1] != ids[-2]:
        return {}  # not even the separator is one token
    separator, tried = ids[-1], candidates()
    text = " ".join([SEPARATOR, SEPARATOR, *(f"{word} {SEPARATOR}" for word in tried)])
    ids = await tokenizer.encode(text, special=False)
    parts = list(_between(ids, separator))
    if len(parts) != len(tried):
        return {}
    single = {f" {word}": part[0] for word, part in zip(tried, parts, strict=True) if len(part) == 1}
    return _distinct(single)


def _between(ids: Sequence[int], separator: int) -> Iterator[list[int]]:
    """The stretches that are enclosed by separators."""
    places = [place for place, token in enumerate(ids) if token == separator]
    for first, last in pairwise(places):
        if last - first > 1:
            yield list(ids[first + 1 : last])


async def _characters(tokenizer: Tokenizer) -> dict[str, int]:
    """Letters and digits, for a tokenizer of bytes or characters."""
    tried = string.ascii_letters + string.digits
    ids = await tokenizer.encode(tried, special=False)
    return _distinct(dict(zip(tried, ids[-len(tried) :], strict=True))) if len(ids) >= len(tried) else {}


def _distinct(pieces: dict[str, int]) -> dict[str, int]:
    """One piece for each token: a tokenizer may write several alike (without case)."""
    first = {token: piece for piece, token in reversed(pieces.items())}
    return {piece: token for piece, token in pieces.items() if first[token] == piece}


async def _frames(tokenizer: Tokenizer, pieces: dict[str, int]) -> dict[Endpoint, Frame]:
    async def completion(text: str) -> list[int] | None:
        return await tokenizer.encode(text, special=True)

    async def chat(text: str) -> list[int] | None:
        return await tokenizer.encode_chat([{"role": "user", "content": text}])

    found = {}
    for endpoint, encode in ((Endpoint.COMPLETIONS, completion), (Endpoint.CHAT, chat)):
        frame = await _frame(encode, pieces)
        if frame is not None:
            found[endpoint] = frame
    return found


async def _frame(encode: _Encode, pieces: dict[str, int]) -> Frame | None:
    """How to write pieces so that all of them come out as the tokens they are; None if nothing tells the tokens.

    The first piece goes with its space or without, whichever costs fewer tokens: some tokenizers put one before every
    text. Where a template takes the space away, a word that may be any tokens stands before all pieces.
    """
    rows = [random.Random(number).choices(list(pieces), k=4 + 12 * number) for number in range(3)]

    async def tried(opening: str, bare: bool) -> Frame | None:
        around = set()
        for row in rows:
            text = opening + "".join(row)
            ids = await encode(text.removeprefix(" ") if bare else text)
            around.add(None if ids is None else _around(ids, [pieces[piece] for piece in row]))
        only = around.pop()
        return None if around or only is None else Frame(opening, bare, *only)

    frames = [await tried("", False), await tried("", True)]
    found = [frame for frame in frames if frame is not None]
    return min(found, key=lambda frame: frame.tokens) if found else await tried(OPENING, False)


def _around(ids: Sequence[int], inside: Sequence[int]) -> tuple[int, int] | None:
    """How many tokens come before and after; None if they are not in there."""
    for before in range(len(ids) - len(inside) + 1):
        if list(ids[before : before + len(inside)]) == list(inside):
            return before, len(ids) - len(inside) - before
    return None
