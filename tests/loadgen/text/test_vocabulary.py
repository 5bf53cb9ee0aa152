"""Pieces that are one token each, whatever kind of tokenizer a model has."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tokenizers import KINDS, TEMPLATES, MadeTokenizer, chatml, gpt2, joined
from tokenizers import Tokenizer, models, pre_tokenizers

from engine.loading.resolve import resolve_model
from loadgen.text.blocks import Blocks, shared_names
from loadgen.text.tokenizer import LocalTokenizer, TokenizerError
from loadgen.text.vocabulary import PIECES, Endpoint, Frame, Vocabulary, candidates, every_pair, find_vocabulary

FEW_CALLS = 24


def check(vocabulary: Vocabulary, tokenizer: MadeTokenizer, prompts: int = 40) -> None:
    """Prompts of random lengths have these tokens, and blocks of equal names are equal tokens."""
    rng, blocks, size = random.Random(2), Blocks(vocabulary, 0), 16
    for endpoint, frame in vocabulary.frames.items():
        known: dict[int, list[int]] = {}
        for _ in range(prompts):
            tokens = rng.choice([frame.least, frame.least + 1, rng.randrange(frame.least, 400)])
            names = shared_names([rng.randrange(3) + 10 * place for place in range(-(-tokens // size))])
            text = blocks.prompt(tokens, names, size, frame)
            ids = tokenizer.chat_ids(text) if endpoint is Endpoint.CHAT else tokenizer.ids(text)
            assert len(ids) == tokens
            end = (tokens - frame.after) // size
            for name, first in zip(names[:end], range(0, tokens, size), strict=False):
                assert ids[first : first + size] == known.setdefault(name, ids[first : first + size])
        inside = [tuple(block[max(0, frame.before - name // 20 * size) :]) for name, block in known.items()]
        told = [part for part in inside if len(part) > 3]
        assert len(set(told)) == len(told) > 20, "other names are other tokens"


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_tokenizer(kind: str, template: str) -> None:
    tokenizer = MadeTokenizer(KINDS[kind](), TEMPLATES[template])
    vocabulary = await find_vocabulary(tokenizer)
    assert tokenizer.calls <= FEW_CALLS
    assert set(vocabulary.frames) == set(Endpoint)
    assert 60 < len(vocabulary.pieces) <= PIECES
    check(vocabulary, tokenizer)


@pytest.mark.parametrize(
    ("kind", "frame"),
    [
        ("gpt2", Frame()),
        ("llama3", Frame(before=1)),
        ("llama2", Frame(bare=True, before=1)),
        ("bert", Frame(before=1, after=1)),
        ("t5", Frame(after=1)),
    ],
)
async def test_what_stands_around_a_prompt(kind: str, frame: Frame) -> None:
    """The plainest way to write it: Llama 2 puts a space before a text itself."""
    tokenizer = MadeTokenizer(KINDS[kind]())
    found = (await find_vocabulary(tokenizer)).frames
    assert {end: msgspec.structs.replace(one, bare=frame.bare) for end, one in found.items()} == {
        Endpoint.COMPLETIONS: frame
    }
    text = (found[Endpoint.COMPLETIONS].opening + " house").removeprefix(
        " " if found[Endpoint.COMPLETIONS].bare else ""
    )
    assert len(tokenizer.ids(text)) == frame.tokens + 1


async def test_words_that_are_joined_are_left_out() -> None:
    """The first words that come to mind are sometimes one token together, so others are taken."""
    plain = await find_vocabulary(MadeTokenizer(KINDS["gpt2"]()))
    vocabulary = await find_vocabulary(MadeTokenizer(KINDS["superwords"]()))
    assert not set(plain.pieces) & set(vocabulary.pieces)


@pytest.mark.parametrize("tokenizer", [joined(), Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))])
async def test_a_tokenizer_without_words(tokenizer: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="no words or letters that are one token each"):
        await find_vocabulary(MadeTokenizer(tokenizer))


async def test_one_piece_for_each_token() -> None:
    """Where case does not count, `Monday` and `monday` are one."""
    tokenizer = MadeTokenizer(KINDS["bert"]())
    pieces = (await find_vocabulary(tokenizer)).pieces
    assert len({tuple(tokenizer.ids(piece, special=False)) for piece in pieces}) == len(pieces)


async def test_letters_of_one_byte() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: place for place, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = await find_vocabulary(MadeTokenizer(tokenizer))
    assert all(len(piece) == 1 for piece in vocabulary.pieces)


@pytest.mark.parametrize("model", ["tiny", pytest.param("smollm2-135m", marks=pytest.mark.model)])
async def test_the_engines_own_tokenizers(model: str) -> None:
    """As a file; through the engine's /tokenize they are tried in test_exact_prompts.py."""
    tokenizer = LocalTokenizer(resolve_model(model).folder)
    vocabulary = await find_vocabulary(tokenizer)
    assert vocabulary.frames == {Endpoint.COMPLETIONS: Frame()}
    blocks = Blocks(vocabulary, 0)
    for tokens in range(1, 300):
        text = blocks.prompt(tokens, [5, 6, 7], 128, Frame())
        assert len(await tokenizer.encode(text, special=True)) == tokens


@given(st.lists(st.text(min_size=1), min_size=1, max_size=20, unique=True))
def test_a_row_in_which_each_follows_each(pieces: list[str]) -> None:
    row = every_pair(pieces)
    pairs = list(pairwise(row))
    assert len(pairs) == len(pieces) ** 2
    assert set(pairs) == {(first, second) for first in pieces for second in pieces}


def test_candidates_are_many_and_always_the_same() -> None:
    assert len(candidates()) == len(set(candidates())) > 500
    assert candidates() == candidates()


async def test_it_travels_to_a_client_process() -> None:
    vocabulary = await find_vocabulary(MadeTokenizer(gpt2(), chatml))
    assert msgspec.json.decode(msgspec.json.encode(vocabulary), type=Vocabulary) == vocabulary


def test_too_few_pieces() -> None:
    with pytest.raises(ValueError, match="at least two pieces"):
        Vocabulary(("a",), {})
