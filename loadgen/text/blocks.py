"""The text of a prompt's blocks: equal names are equal pieces, different names different ones. Pure.

A block begins with its name in digits, each a piece, the lowest first, so that blocks with near names part at their
first token. The rest is cut from one long row of pieces: to make text is to slice it, and nothing has to be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from loadgen.text.vocabulary import TAPE_PIECES, Frame, Vocabulary

NAMES = 2**64  # different ones
UNSHARED_BLOCK = 512  # tokens of a block in a prompt that shares nothing
_TURN = 7919  # sessions that lie between two whose turns begin alike
_SPREAD = 0x9E3779B97F4A7C15  # the golden ratio's fraction: near names begin far from each other on the tape


class Blocks:
    """Makes texts of one vocabulary. Another seed makes other texts of all names."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._pieces = vocabulary.pieces
        self._digits = next(count for count in range(1, 65) if len(self._pieces) ** count >= NAMES)
        self._first = int.from_bytes(blake2b(b"%d" % seed, digest_size=8).digest())
        tape = vocabulary.tape()
        self._tape = "".join(tape) * 2
        self._places = [0]
        for piece in tape * 2:
            self._places.append(self._places[-1] + len(piece))

    def block(self, name: int, tokens: int) -> str:
        """The first `tokens` pieces of the block of that name."""
        pieces, count = self._pieces, len(self._pieces)
        number = (name + self._first) % NAMES
        start = (number * _SPREAD % NAMES >> 32) % TAPE_PIECES
        parts = []
        for _ in range(min(self._digits, tokens)):
            number, digit = divmod(number, count)
            parts.append(pieces[digit])
        left = tokens - len(parts)
        while left > 0:
            part = min(left, TAPE_PIECES)
            parts.append(self._tape[self._places[start] : self._places[start + part]])
            left -= part
        return "".join(parts)

    def prompt(self, tokens: int, names: Sequence[int], block_size: int, frame: Frame) -> str:
        """A prompt of that many tokens, frame and all, whose token at place i is in the block `names[i // block_size]`.

        Where the frame alone has as many tokens, it is the shortest that can be asked, which is longer.
        """
        text = frame.opening + "".join(self._inside(tokens, names, block_size, frame))
        if not text:
            text = self.block(names[0], 1)
        return text[1:] if frame.bare and text[0] == " " else text

    def _inside(self, tokens: int, names: Sequence[int], block_size: int, frame: Frame) -> Iterator[str]:
        end = tokens - frame.after
        for index in range(frame.before // block_size, -(-end // block_size)):
            first = max(frame.before, index * block_size)
            count = min(end, (index + 1) * block_size) - first
            if count > 0:
                yield self.block(names[index], count)


def shared_names(hash_ids: Iterable[int]) -> list[int]:
    """Names of the blocks that a trace's hash ids stand for."""
    return [2 * hash_id for hash_id in hash_ids]


def unshared_names(index: int, turn: int, tokens: int) -> range:
    """Names of the blocks (of `UNSHARED_BLOCK`) of a turn's prompt that shares nothing with any other's.

    The place of the session is their lowest part, and each turn adds to it, so that prompts part at their first tokens.
    Different for 2^31 sessions of 2^14 turns of 2^16 blocks each.
    """
    first = 2 * (index + turn * (2**32 + _TURN)) + 1
    return range(first, first + -(-tokens // UNSHARED_BLOCK) * 2**48, 2**48)
