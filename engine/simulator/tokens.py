"""A traced request's tokens, computed only where they are looked at, and the names of its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import overload

from engine.request import ComputedTokens
from engine.trace_lengths import TracedRequest

_NAME_BYTES = 16
_OFFSET_BYTES = 4
_HEAD_BYTES = 8  # of a name: what events and routers know it by
_HEADS = 1 << 8 * _HEAD_BYTES


class TracedTokens(ComputedTokens):
    """The prompt, and as much of the answer as was appended: what is appended is a count, not a choice.

    A token is a number that follows from its piece's identity, the round of the trace (0 in all rounds that repeat the
    same texts) and its place in the piece. Two that differ in one of these are equal with probability 2**-60.
    """

    __slots__ = ("_length", "_round", "_traced")

    def __init__(self, traced: TracedRequest, round: int) -> None:
        self._traced = traced
        self._round = round
        self._length = traced.prompt_tokens

    def __len__(self) -> int:
        return self._length

    def append(self, token_id: int) -> None:
        """The next token of the answer, whatever the runner drew."""
        self._length += 1

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step != 1:
                return [self[place] for place in range(start, stop, step)]
            pieces = list(self._pieces(start, stop)) if start < stop else []
            # What lies in one piece stays a range: some bytes for a block, whatever its size.
            return pieces[0] if len(pieces) == 1 else list(chain.from_iterable(pieces))
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(f"token {index} of {self._length}")
        return next(self._pieces(place, place + 1))[0]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._pieces(0, self._length))

    def _pieces(self, start: int, stop: int) -> Iterator[range]:
        """The tokens from `start` to `stop`, a range for each piece they lie in."""
        begin = 0
        for identity, tokens in (*self._traced.segments, (self._traced.answer, self._length)):
            end = begin + tokens
            if end > start:
                name = blake2b(b"%d %d" % (self._round, identity), digest_size=8).digest()
                first = (int.from_bytes(name, "big") >> 2) - begin
                yield range(first + max(begin, start), first + min(end, stop))
            if end >= stop:
                return
            begin = end


def block_names(traced: TracedRequest, round: int, block_size: int, tokens: int) -> list[bytes]:
    """A name for each full block of the first `tokens` tokens of prompt and answer.

    Like the engine's own hash a name stands for every token up to the block's end, but it costs a hash a piece, not
    one a token: it is the hash of what comes before the piece in which the block ends, chained with that piece's
    identity, its first 8 bytes plus how much of the piece lies before the end.
    """
    return _names(traced, round, range(block_size, tokens + 1, block_size))


def prompt_name(traced: TracedRequest, round: int) -> bytes:
    """A name for the whole prompt, of the same kind."""
    return _names(traced, round, range(traced.prompt_tokens, traced.prompt_tokens + 1))[0]


def _names(traced: TracedRequest, round: int, ends: range) -> list[bytes]:
    """A name for all tokens before each of `ends`, which ascend from 1 on."""
    names: list[bytes] = []
    before = b"%d" % round
    begin = 0
    for identity, tokens in (*traced.segments, (traced.answer, traced.output_tokens)):
        chained = blake2b(b"%b %d" % (before, identity), digest_size=_NAME_BYTES).digest()
        end = begin + tokens
        inside = ends[len(names) : max(len(names), (end - ends.start) // ends.step + 1)]
        head, rest = int.from_bytes(chained[:_HEAD_BYTES], "big") - begin, chained[_HEAD_BYTES:]
        names += [((head + place) % _HEADS).to_bytes(_HEAD_BYTES, "big") + rest for place in inside]
        if len(names) == len(ends):
            break
        before = chained + tokens.to_bytes(_OFFSET_BYTES, "big")
        begin = end
    return names
