"""Scaled prompts share what they shared; a request that is too long is refused, left out or cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from loadgen.traces.model import FORMAT, VERSION, Header, Session, TraceError, Turn, check_turn
from loadgen.traces.scale import fit, fitting_scale, scaled, scaled_header, tokens_of

HEADER = Header(FORMAT, VERSION, block_size=512)


def session(*turns: Turn) -> Session:
    return Session(session="a", arrival=0.0, turns=turns)


def prompt(tokens: int, output: int | UnsetType = 1, first_id: int = 0, block_size: int = 512) -> Turn:
    ids = tuple(range(first_id, first_id - (-tokens // block_size)))
    return Turn(input_tokens=tokens, output_tokens=output, hash_ids=ids)


def full_blocks(turn: Turn, block_size: int | UnsetType) -> tuple[int, ...]:
    assert turn.hash_ids is not UNSET
    assert turn.input_tokens is not UNSET
    assert block_size is not UNSET
    return turn.hash_ids[: turn.input_tokens // block_size]


@given(
    tokens=st.lists(st.integers(1, 200_000), min_size=1, max_size=5),
    output=st.integers(1, 10_000),
    block_size=st.integers(2, 1024),
    data=st.data(),
)
def test_full_blocks_stay_full_and_short_ones_short(
    tokens: list[int], output: int, block_size: int, data: st.DataObject
) -> None:
    new_size = data.draw(st.integers(2, 2 * block_size))
    factor = new_size / block_size
    header = Header(FORMAT, VERSION, block_size=block_size)
    turns = [prompt(count, output, block_size=block_size) for count in tokens]
    (made,) = scaled([session(*turns)], header, factor)
    made_header = scaled_header(header, factor)
    assert made_header.block_size == new_size
    assert made_header.recipe["length_scale"] == factor
    for before, after in zip(turns, made.turns, strict=True):
        check_turn(after, 0, made_header)
        assert after.hash_ids == before.hash_ids
        assert full_blocks(after, new_size) == full_blocks(before, block_size)
        assert before.input_tokens is not UNSET
        assert after.input_tokens is not UNSET
        assert before.input_tokens * factor - 1 < after.input_tokens <= max(before.input_tokens * factor + 1, 1)
        assert after.output_tokens == max(1, round(output * factor))


def test_blocks_of_one_token() -> None:
    (made,) = scaled([session(prompt(1025))], HEADER, 1 / 512)
    assert made.turns[0].input_tokens == 3
    check_turn(made.turns[0], 0, scaled_header(HEADER, 1 / 512))


def test_without_blocks_any_factor() -> None:
    header = Header(FORMAT, VERSION)
    turn = Turn(input_tokens=100, output_tokens=9)
    (made,) = scaled([session(turn)], header, 0.3)
    assert (made.turns[0].input_tokens, made.turns[0].output_tokens) == (30, 3)
    (tiny,) = scaled([session(turn)], header, 1e-6)
    assert (tiny.turns[0].input_tokens, tiny.turns[0].output_tokens) == (1, 1)
    (open_end,) = scaled([session(Turn(input_tokens=10))], header, 2)
    assert open_end.turns[0].output_tokens is UNSET


@pytest.mark.parametrize("factor", [0.1, 0.001, 1 / 3])
def test_a_factor_that_cuts_a_token_names_those_that_do_not(factor: float) -> None:
    with pytest.raises(TraceError, match="blocks of 512 tokens must become whole tokens") as caught:
        scaled_header(HEADER, factor)
    for text in str(caught.value).split(" = ")[1:]:
        allowed = float(text.split(" ")[0])
        assert scaled_header(HEADER, allowed).block_size is not UNSET


def test_what_cannot_be_scaled() -> None:
    with pytest.raises(TraceError, match=r"--length-scale 0.5: session a has a text"):
        list(scaled([session(Turn(user="Hi", output_tokens=3))], HEADER, 0.5))
    with pytest.raises(TraceError, match="--length-scale -1: must be above 0"):
        scaled_header(HEADER, -1)


LONG = session(prompt(100, 10), prompt(5000, 300))


def test_a_session_that_fits_stays_as_it_is() -> None:
    for policy in ("error", "skip", "cut"):
        assert fit(LONG, 5300, policy, HEADER) is LONG


def test_too_long_names_the_scale_that_fits() -> None:
    with pytest.raises(TraceError) as caught:
        fit(LONG, 2048, "error", HEADER)
    message = str(caught.value)
    assert "session a: turn 1 has 5,300 tokens, prompt and answer together, and the server takes 2,048" in message
    scale = float(message.split("--length-scale ")[1].split(",")[0])
    (made,) = scaled([LONG], HEADER, scale)
    assert fit(made, 2048, "error", scaled_header(HEADER, scale)) == made
    assert fit(LONG, 2048, "skip", HEADER) is None
    with pytest.raises(ValueError, match="policy must be one of error, skip, cut"):
        fit(LONG, 2048, "drop", HEADER)


def test_the_scale_that_fits_is_of_the_trace_as_the_file_has_it() -> None:
    (half,) = scaled([LONG], HEADER, 0.5)
    with pytest.raises(TraceError, match=r"turn 1 has 2,650 tokens.*--length-scale 0.384765625,"):
        fit(half, 2048, "error", scaled_header(HEADER, 0.5), 0.5)
    (made,) = scaled([LONG], HEADER, 0.384765625)
    assert fit(made, 2048, "error", scaled_header(HEADER, 0.384765625)) == made


def test_a_text_is_not_told_to_be_scaled() -> None:
    with pytest.raises(TraceError) as caught:
        fit(session(Turn(user="Hi", output_tokens=3000)), 2048, "error", HEADER)
    assert "--length-scale" not in str(caught.value)


@given(tokens=st.integers(1, 10**6), output=st.integers(1, 10**5), limit=st.integers(1, 10**5), hashed=st.booleans())
def test_the_scale_that_is_named_fits(tokens: int, output: int, limit: int, hashed: bool) -> None:
    header = HEADER if hashed else Header(FORMAT, VERSION)
    turn = prompt(tokens, output) if hashed else Turn(input_tokens=tokens, output_tokens=output)
    scale = fitting_scale(tokens + output, header, limit)
    if scale is not None:
        assert scale < 1
        (made,) = scaled([session(turn)], header, scale)
        assert tokens_of(made.turns[0]) <= limit


@given(tokens=st.integers(1, 10**5), output=st.just(UNSET) | st.integers(1, 10**5), limit=st.integers(2, 10**5))
def test_cut(tokens: int, output: Any, limit: int) -> None:
    before = prompt(tokens, output)
    cut = fit(session(before), limit, "cut", HEADER)
    assert cut is not None
    (after,) = cut.turns
    check_turn(after, 0, HEADER)
    assert tokens_of(after) <= limit
    assert after.hash_ids is not UNSET
    assert before.hash_ids is not UNSET
    assert after.hash_ids == before.hash_ids[: len(after.hash_ids)]  # its beginning stays
    assert after.input_tokens is not UNSET
    assert after.input_tokens >= 1
    if tokens_of(before) > limit:
        assert tokens_of(after) == limit  # no more than must be
    if output is not UNSET and output < limit:
        assert after.output_tokens == output


def test_cut_without_room() -> None:
    with pytest.raises(TraceError, match="a request needs 2 tokens, and the server takes 1"):
        fit(LONG, 1, "cut", HEADER)


def test_a_text_counts_by_its_answer_alone() -> None:
    text = session(Turn(user="Hi", output_tokens=50))
    assert fit(text, 50, "error", HEADER) is text
    cut = fit(text, 20, "cut", HEADER)
    assert cut is not None
    assert cut.turns[0].output_tokens == 19
    assert msgspec.structs.replace(cut.turns[0], output_tokens=50) == text.turns[0]
