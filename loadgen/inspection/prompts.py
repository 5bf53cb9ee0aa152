"""Prompts as pieces that can be compared, many at once: blocks named by hash ids, or 64 bytes of text at a time.

A piece has a key that stands for it and for all before it, so that two prompts are equal as far as their keys are.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Keys = NDArray[np.uint64]
Scalar = TypeVar("Scalar", bound=np.generic)

TEXT_PIECE = 64  # bytes
BYTES_PER_TOKEN = 4  # of a text whose tokens the trace does not tell; about right for English
_WORDS = TEXT_PIECE // 8
_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def estimated_tokens(text: bytes) -> int:
    """Tokens of a text by its length."""
    return -(-len(text) // BYTES_PER_TOKEN)


def mix(values: Keys) -> Keys:
    """Spread numbers evenly over 64 bits, the same ones always to the same (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def to_keys(numbers: Sequence[int]) -> Keys:
    """Whole numbers from 0 on, of which those beyond 64 bits keep the lower ones."""
    try:
        words = array("Q", numbers)
    except OverflowError:
        words = array("Q", [number & _WORD for number in numbers])
    return np.frombuffer(words, dtype=np.uint64)


@dataclass(frozen=True)
class Prompts:
    """A batch of prompts in the order of the trace; arrays of one length hold a number for each prompt, or each piece.

    `tokens` are those of whole prompts. An infinite cache surely has the first `known` of them, as an earlier turn
    of the session computed them; the pieces are what follows, and `bases` tells what they follow. A prompt has
    `counts` of the pieces: `identities` and `ends`, the tokens of the prompt up to the piece's end. `short`: the last
    piece of the prompt may be the beginning of a longer one with the same identity.
    """

    tokens: Integers
    known: Integers
    bases: Keys
    counts: Integers
    short: NDArray[np.bool_]
    identities: Keys
    ends: Integers
    offsets: Integers = field(init=False)  # of each prompt's first piece, and the number of all pieces
    keys: Keys = field(init=False)

    def __post_init__(self) -> None:
        offsets = np.concatenate(([0], np.cumsum(self.counts)))
        first = np.repeat(offsets[:-1], self.counts)
        positions = np.arange(offsets[-1]) - first
        # A sum of well mixed numbers, each of an identity at its place, is as good a hash of the run as any.
        sums = np.cumsum(mix(self.identities + positions.astype(np.uint64) * np.uint64(_GOLDEN)))
        before = np.concatenate((np.zeros(1, np.uint64), sums))[first]
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "keys", sums - before + self.per_piece(self.bases))

    def per_piece(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """A number of each prompt, once for each of its pieces."""
        return np.repeat(values, self.counts)

    def starts(self, pieces: Integers) -> Integers:
        """Tokens of the prompt before each of these pieces, which are given by their indices."""
        owners = np.searchsorted(self.offsets, pieces, side="right") - 1
        return np.where(pieces == self.offsets[owners], self.known[owners], self.ends[pieces - 1])


def prompts_of_blocks(tokens: Sequence[int], hash_ids: Sequence[Sequence[int]], block_size: int) -> Prompts:
    """Prompts of `tokens` whose blocks of `block_size` tokens have names."""
    whole = np.array(tokens, dtype=np.int64)
    counts = np.array([len(ids) for ids in hash_ids], dtype=np.int64)
    identities = to_keys(list(chain.from_iterable(hash_ids)))
    first = np.repeat(np.cumsum(counts) - counts, counts)
    ends = np.minimum((np.arange(len(identities)) - first + 1) * block_size, np.repeat(whole, counts))
    nothing = np.zeros(len(whole), dtype=np.int64)
    return Prompts(whole, nothing, nothing.astype(np.uint64), counts, whole % block_size != 0, identities, ends)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """One prompt as texts with their tokens, after `known` tokens that `base` stands for."""

    base: int
    known: int
    texts: tuple[tuple[bytes, int], ...]

    @property
    def tokens(self) -> int:
        return self.known + sum(tokens for _, tokens in self.texts)


def prompts_of_texts(prompts: Sequence[TextPrompt]) -> Prompts:
    """Prompts with text, of which each text begins a piece; its tokens are spread evenly over it."""
    texts = [(number, *text) for number, prompt in enumerate(prompts) for text in prompt.texts if text[0]]
    sizes = np.array([len(text) for _, text, _ in texts], dtype=np.int64)
    tokens = np.array([count for _, _, count in texts], dtype=np.int64)
    owner = np.array([number for number, _, _ in texts], dtype=np.int64)
    pieces = -(-sizes // TEXT_PIECE)
    known = np.array([prompt.known for prompt in prompts], dtype=np.int64)
    before = np.cumsum(tokens) - tokens  # tokens of the batch before each text, then of its prompt
    of_prompt = np.bincount(owner, tokens, len(prompts)).astype(np.int64)
    before += (known - (np.cumsum(of_prompt) - of_prompt))[owner]
    within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    size = np.repeat(sizes, pieces)
    ends = np.minimum((within + 1) * TEXT_PIECE, size) * np.repeat(tokens, pieces) // np.maximum(size, 1)
    return Prompts(
        tokens=np.array([prompt.tokens for prompt in prompts], dtype=np.int64),
        known=known,
        bases=to_keys([prompt.base for prompt in prompts]),
        counts=np.bincount(owner, pieces, len(prompts)).astype(np.int64),
        short=np.zeros(len(prompts), dtype=np.bool_),
        identities=_identities([text for _, text, _ in texts], pieces),
        ends=ends + np.repeat(before, pieces),
    )


def _identities(texts: Sequence[bytes], pieces: Integers) -> Keys:
    """A number for each piece of texts, filled up with zeros to whole pieces."""
    padded = b"".join(text.ljust(int(count) * TEXT_PIECE, b"\0") for text, count in zip(texts, pieces, strict=True))
    words = np.frombuffer(padded, dtype=np.uint64).reshape(-1, _WORDS)
    sums: Keys = mix(words + np.arange(_WORDS, dtype=np.uint64) * np.uint64(_GOLDEN)).sum(axis=1, dtype=np.uint64)
    return sums
