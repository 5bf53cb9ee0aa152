"""Increments add up to the whole text, whatever the tokens, at a cost per token that does not grow."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.detokenizer import Detokenizer, TokenBytes, UnsupportedTokenizerError, detokenize
from engine.loading.resolve import resolve_model


def hub(model: str) -> Tokenizer:
    return Tokenizer.from_file(str(resolve_model(model).folder / "tokenizer.json"))


@cache
def with_table(model: str) -> tuple[Tokenizer, TokenBytes]:
    return hub(model), TokenBytes(hub(model))


@pytest.fixture
def tiny() -> Tokenizer:
    return with_table("tiny")[0]


def pieces(table: TokenBytes, token_ids: list[int], **options: bool) -> list[str]:
    detokenizer = Detokenizer(table, **options)
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


def check(model: str, token_ids: list[int], skip: bool) -> None:
    tokenizer, table = with_table(model)
    expected = tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert "".join(pieces(table, token_ids, skip_special=skip)) == expected
    assert detokenize(table, token_ids, skip_special=skip) == expected


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 258), max_size=60), st.booleans())
def test_tiny_random_bytes(token_ids: list[int], skip: bool) -> None:
    check("tiny", token_ids, skip)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40), st.booleans())
def test_tiny_text(text: str, skip: bool) -> None:
    check("tiny", with_table("tiny")[0].encode(text).ids, skip)


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 49_151), max_size=60), st.booleans())
def test_smollm2_random_tokens(token_ids: list[int], skip: bool) -> None:
    check("smollm2-135m", token_ids, skip)


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_smollm2_text(text: str) -> None:
    check("smollm2-135m", with_table("smollm2-135m")[0].encode(text).ids, True)


def test_a_split_character_is_held_back_until_it_is_whole(tiny: Tokenizer) -> None:
    table = TokenBytes(tiny)
    tokens = tiny.encode("a\N{GRINNING FACE}b").ids
    assert len(tokens) == 6
    assert pieces(table, tokens) == ["a", "", "", "", "\N{GRINNING FACE}", "b", ""]


def test_an_incomplete_character_comes_out_at_the_end(tiny: Tokenizer) -> None:
    tokens = tiny.encode("\N{GRINNING FACE}").ids[:3]
    assert pieces(TokenBytes(tiny), tokens) == ["", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_a_replacement_character_that_is_meant_does_not_stall(tiny: Tokenizer) -> None:
    tokens = tiny.encode("\N{REPLACEMENT CHARACTER}x").ids
    assert pieces(TokenBytes(tiny), tokens) == ["", "", "\N{REPLACEMENT CHARACTER}", "x", ""]


def test_a_stream_of_invalid_bytes_does_not_stall_or_pile_up(tiny: Tokenizer) -> None:
    invalid = next(i for i in range(256) if TokenBytes(tiny)[i] == b"\xff")
    got = pieces(TokenBytes(tiny), [invalid] * 1000)
    assert got == ["\N{REPLACEMENT CHARACTER}"] * 1000 + [""]


def test_special_tokens_are_skipped_or_shown(tiny: Tokenizer) -> None:
    end = tiny.token_to_id("<|im_end|>")
    table = TokenBytes(tiny)
    tokens = [*tiny.encode("hi").ids, end]
    assert "".join(pieces(table, tokens)) == "hi"
    assert "".join(pieces(table, tokens, skip_special=False)) == "hi<|im_end|>"


def test_ids_without_a_token_are_nothing(tiny: Tokenizer) -> None:
    table = TokenBytes(tiny)
    assert "".join(pieces(table, [len(table), 10**9])) == ""


def sentencepiece() -> Tokenizer:
    """A tokenizer whose decoder is that of Llama 2 and Mistral."""
    words = ["<unk>", "<s>", "\u2581Hello", "\u2581world", "ly", "\u2581", "\N{SNOWMAN}"]
    vocabulary = {word: i for i, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("<unk>", special=True)])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return tokenizer


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(0, 6), min_size=1, max_size=3),
            st.characters(codec="utf-8").map(lambda c: [7 + byte for byte in c.encode()]),
        ),
        max_size=12,
    )
)
def test_sentencepiece_text(parts: list[list[int]]) -> None:
    tokenizer = sentencepiece()
    tokens = [token for part in parts for token in part]
    assert detokenize(TokenBytes(tokenizer), tokens) == tokenizer.decode(tokens)


def test_sentencepiece_space_is_dropped_at_the_start_of_a_text_only() -> None:
    table = TokenBytes(sentencepiece())
    assert pieces(table, [2, 3], continues=False) == ["Hello", " world", ""]
    assert pieces(table, [2, 3]) == [" Hello", " world", ""]  # after a prompt the space is real


def test_sentencepiece_bytes_make_characters() -> None:
    table = TokenBytes(sentencepiece())
    assert pieces(table, [7 + byte for byte in "\u00e9".encode()]) == ["", "\u00e9", ""]
    assert pieces(table, [7 + 0xFF, 2]) == ["\N{REPLACEMENT CHARACTER}", " Hello", ""]


def test_a_decoder_whose_tokens_are_not_bytes_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordPiece(vocab={"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    assert json.loads(tokenizer.to_str())["decoder"]["type"] == "WordPiece"
    with pytest.raises(UnsupportedTokenizerError, match="WordPiece"):
        TokenBytes(tokenizer)
