"""Prompts of blocks, whose pieces are counted without a tokenizer: each letter is one."""

from __future__ import annotations

import random
import string
from itertools import pairwise, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.text.blocks import NAMES, UNSHARED_BLOCK, Blocks, shared_names, unshared_names
from loadgen.text.vocabulary import TAPE_PIECES, Frame, Vocabulary

LETTERS = Vocabulary(tuple(string.ascii_letters + string.digits), {})
WORDS = Vocabulary(tuple(f" {first}{second}" for first in "bcdfghkl" for second in "aeiouy"), {})
BLOCKS = Blocks(LETTERS, 0)
names = st.integers(0, NAMES - 1)


@given(names, st.integers(0, 5000), st.integers(0, 5000))
def test_a_shorter_block_is_the_beginning_of_a_longer(name: int, one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert len(BLOCKS.block(name, long)) == long
    assert BLOCKS.block(name, long).startswith(BLOCKS.block(name, short))


@given(names, names)
def test_different_names_differ_within_eleven_pieces(one: int, other: int) -> None:
    assert (BLOCKS.block(one, 11) == BLOCKS.block(other, 11)) is (one == other)


@given(st.integers(0, 2**62), st.integers(1, len(LETTERS.pieces) - 1))
def test_near_names_differ_at_once(name: int, step: int) -> None:
    assert BLOCKS.block(name, 1) != BLOCKS.block(name + step, 1)


def test_blocks_of_two_tokens_are_different_as_far_as_they_go() -> None:
    every = {BLOCKS.block(name, 2) for name in range(len(LETTERS.pieces) ** 2)}
    assert len(every) == len(LETTERS.pieces) ** 2


@settings(max_examples=20)
@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_another_seed_makes_other_texts(one: int, other: int, name: int) -> None:
    texts = {Blocks(WORDS, seed).block(name, 16) for seed in (one, other)}
    assert len(texts) == len({one, other})


@given(
    tokens=st.integers(1, 400),
    size=st.integers(1, 60),
    before=st.integers(0, 40),
    after=st.integers(0, 40),
    opening=st.sampled_from(["", "The"]),
    bare=st.booleans(),
)
def test_a_prompt_has_its_tokens_in_its_blocks(
    tokens: int, size: int, before: int, after: int, opening: str, bare: bool
) -> None:
    """With a frame of one sign for each token it is as long as asked, and each block is where it belongs."""
    frame = Frame(opening, bare, before, after)
    ids = list(range(-(-tokens // size)))
    text = BLOCKS.prompt(tokens, ids, size, frame)
    pieces = text.removeprefix(opening)
    assert len(pieces) + frame.tokens == max(tokens, frame.least)
    if tokens <= frame.least:
        return
    whole = "?" * before + pieces
    for name in ids:
        part = whole[name * size : (name + 1) * size]
        known = part.lstrip("?")
        assert known == BLOCKS.block(name, len(known))


def test_a_bare_prompt_begins_without_its_space() -> None:
    blocks = Blocks(WORDS, 0)
    plain, bare = (blocks.prompt(9, [1], 16, Frame(bare=bare)) for bare in (False, True))
    assert plain == f" {bare}"
    assert blocks.prompt(9, [1], 16, Frame("The", before=1)).startswith("The ")


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 999)), max_size=20, unique=True), st.integers(1, 3000))
def test_turns_that_share_nothing_share_no_name(turns: list[tuple[int, int]], tokens: int) -> None:
    every = [name for index, turn in turns for name in unshared_names(index, turn, tokens)]
    assert len(set(every)) == len(every) == len(turns) * -(-tokens // UNSHARED_BLOCK)
    assert not set(every) & set(shared_names(range(1000)))


def test_turns_that_share_nothing_part_at_their_first_tokens() -> None:
    """A cache of single tokens finds little more of 2,000 prompts than it must, of the 64 pieces there are."""
    pieces = tuple(f" {first}{second}" for first in "bcdfghkl" for second in "aeiouyrt")
    blocks = Blocks(Vocabulary(pieces, {}), 0)
    prompts = sorted(
        blocks.prompt(16, unshared_names(index, turn, 16), UNSHARED_BLOCK, Frame()).split()
        for index in range(500)
        for turn in range(4)
    )
    alike = [
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*two, strict=True))) for two in pairwise(prompts)
    ]
    assert max(alike) <= 3


def test_long_blocks_go_round_the_tape() -> None:
    text = BLOCKS.block(3, 3 * TAPE_PIECES)
    assert text[20 : 20 + TAPE_PIECES] == text[20 + TAPE_PIECES : 20 + 2 * TAPE_PIECES]
    assert len(set(BLOCKS.block(3, TAPE_PIECES))) == len(LETTERS.pieces)


@pytest.mark.parametrize("size", [16, 512])
def test_making_text_keeps_nothing(size: int) -> None:
    """The memory of a trace of any length is that of its longest prompt."""
    import tracemalloc

    blocks, rng = Blocks(WORDS, 0), random.Random(0)
    blocks.prompt(1000, shared_names(range(70)), size, Frame())
    tracemalloc.start()
    try:
        for _ in range(300):
            blocks.prompt(1000, shared_names(rng.randrange(10**9) for _ in range(70)), size, Frame())
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 20_000
