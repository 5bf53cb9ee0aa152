"""Pieces of prompts: keys are equal exactly as far as prompts are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.inspection.prompts import (
    TEXT_PIECE,
    Prompts,
    TextPrompt,
    estimated_tokens,
    mix,
    prompts_of_blocks,
    prompts_of_texts,
)

few_ids = st.lists(st.integers(0, 3), max_size=6)


def keys_of(prompts: Prompts) -> list[list[int]]:
    return [part.tolist() for part in np.split(prompts.keys, prompts.offsets[1:-1])]


@given(st.lists(few_ids, min_size=1, max_size=8))
def test_keys_of_blocks_stand_for_all_ids_so_far(ids: list[list[int]]) -> None:
    prompts = prompts_of_blocks([4 * len(one) or 1 for one in ids], ids, 4)
    beginnings = [[tuple(one[: end + 1]) for end in range(len(one))] for one in ids]
    known = dict(zip(chain(*keys_of(prompts)), chain(*beginnings), strict=True))
    assert len(set(known.values())) == len(known)
    assert [[known[key] for key in keys] for keys in keys_of(prompts)] == beginnings


def pieces_of(texts: Sequence[bytes]) -> list[tuple[bytes, ...]]:
    """What a prompt's keys stand for: its pieces so far, each text's beginning with a new one."""
    pieces = [text[at : at + TEXT_PIECE] for text in texts for at in range(0, len(text), TEXT_PIECE)]
    return [tuple(pieces[: end + 1]) for end in range(len(pieces))]


texts_of = st.lists(st.text("ab", min_size=1, max_size=3).map(lambda text: text.encode() * 40), min_size=1, max_size=3)


@given(st.lists(texts_of, min_size=1, max_size=6), st.integers(0, 50))
def test_keys_of_texts_stand_for_all_pieces_so_far(prompts: list[list[bytes]], known: int) -> None:
    made = [TextPrompt(0, known, tuple((text, len(text)) for text in texts)) for texts in prompts]
    batch = prompts_of_texts(made)
    told = dict(zip(chain(*keys_of(batch)), chain(*map(pieces_of, prompts)), strict=True))
    assert len(set(told.values())) == len(told)
    assert [[told[key] for key in keys] for keys in keys_of(batch)] == [pieces_of(texts) for texts in prompts]
    for number, texts in enumerate(prompts):
        here = slice(batch.offsets[number], batch.offsets[number + 1])
        assert batch.tokens[number] == known + sum(map(len, texts)) == batch.ends[here][-1]
        starts = batch.starts(np.arange(here.start, here.stop))
        assert starts[0] == known
        assert (starts[1:] == batch.ends[here][:-1]).all()
        assert (batch.ends[here] >= starts).all()


def test_another_base_makes_other_keys() -> None:
    same = ((b"x" * TEXT_PIECE, 16),)
    one, other = keys_of(prompts_of_texts([TextPrompt(1, 0, same), TextPrompt(2, 0, same)]))
    assert set(one).isdisjoint(other)


def test_prompts_without_a_piece_have_no_keys() -> None:
    batch = prompts_of_texts([TextPrompt(0, 7, ()), TextPrompt(0, 0, ((b"", 0), (b"x", 1))), TextPrompt(0, 3, ())])
    assert batch.counts.tolist() == [0, 1, 0]
    assert batch.tokens.tolist() == [7, 1, 3]
    assert len(prompts_of_texts([]).keys) == len(prompts_of_blocks([], [], 16).keys) == 0


def test_a_last_block_may_be_short() -> None:
    prompts = prompts_of_blocks([8, 9, 3], [(1, 2), (1, 2, 3), (1,)], 4)
    assert prompts.short.tolist() == [False, True, True]
    assert prompts.ends.tolist() == [4, 8, 4, 8, 9, 3]
    assert prompts.starts(np.arange(6)).tolist() == [0, 4, 0, 4, 8, 0]


def test_mixed_numbers_are_spread_evenly() -> None:
    counts = np.bincount((mix(np.arange(16_000, dtype=np.uint64)) >> np.uint64(60)).astype(np.int64), minlength=16)
    assert abs(counts - 1000).max() < 150


def test_tokens_of_a_text_are_a_quarter_of_its_bytes() -> None:
    assert [estimated_tokens(text) for text in (b"", b"a", b"abcd", b"abcde")] == [0, 1, 1, 2]
