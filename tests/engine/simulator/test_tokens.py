"""Tokens that are computed when looked at, and names of blocks that are equal exactly where the tokens are."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_hash import extend_hashes
from engine.simulator.tokens import TracedTokens, block_names, prompt_name
from engine.trace_lengths import TracedRequest
from tests.engine.simulator.traces import traced

PIECES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=5)
REQUESTS = st.builds(
    lambda pieces, answer, output: traced(0.0, output, *pieces, answer=answer),
    PIECES,
    st.integers(0, 3),
    st.integers(1, 9),
)


def whole(request: TracedRequest, round: int = 0) -> TracedTokens:
    tokens = TracedTokens(request, round)
    for _ in range(request.output_tokens):
        tokens.append(0)
    return tokens


@given(REQUESTS, st.integers(-40, 40), st.integers(-40, 40), st.sampled_from([-3, -1, 1, 2, 7]))
def test_slices_are_those_of_a_list(request: TracedRequest, start: int, stop: int, step: int) -> None:
    tokens = whole(request)
    listed = list(tokens)
    assert len(listed) == len(tokens) == request.prompt_tokens + request.output_tokens
    assert list(tokens[start:stop:step]) == listed[start:stop:step]
    assert [tokens[place] for place in range(-len(listed), len(listed))] == listed + listed
    with pytest.raises(IndexError):
        tokens[len(listed)]


def test_the_answer_comes_as_it_is_appended() -> None:
    request = traced(0.0, 3, (1, 4), answer=2)
    later = TracedTokens(traced(9.0, 1, (1, 4), (2, 3), (5, 1)), 0)
    tokens = TracedTokens(request, 0)
    assert list(tokens) == list(later[:4])
    for length in (5, 6, 7):
        tokens.append(0)
        assert list(tokens) == list(later[:length])


@settings(max_examples=300)
@given(
    st.lists(REQUESTS, min_size=2, max_size=4), st.lists(st.integers(0, 1), min_size=4, max_size=4), st.integers(1, 6)
)
def test_names_are_equal_exactly_where_the_engines_hashes_are(
    requests: list[TracedRequest], rounds: list[int], size: int
) -> None:
    hashed, named = [], []
    for request, round in zip(requests, rounds, strict=False):
        tokens = whole(request, round)
        hashed.append(extend_hashes([], list(tokens), size))
        named.append(block_names(request, round, size, len(tokens)))
        assert len(hashed[-1]) == len(named[-1])
    for (hashes, names), (others, other_names) in combinations(zip(hashed, named, strict=True), 2):
        assert [[a == b for b in others] for a in hashes] == [[a == b for b in other_names] for a in names]


@given(REQUESTS, st.integers(1, 6))
def test_a_name_stands_for_a_place_whatever_the_block_size(request: TracedRequest, size: int) -> None:
    every = block_names(request, 0, 1, request.prompt_tokens)
    assert block_names(request, 0, size, request.prompt_tokens) == every[size - 1 :: size]
    assert prompt_name(request, 0) == every[-1]
