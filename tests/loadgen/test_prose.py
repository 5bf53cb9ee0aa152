"""Messages have exactly the tokens asked for."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import prose, words


@given(st.integers(2, 700), st.integers(0, 2**32), st.booleans())
def test_exact_length(tokens: int, seed: int, follow_up: bool) -> None:
    rng = random.Random(seed)
    text = prose.message(rng.choice(words.SUBJECTS), tokens, rng, follow_up)
    assert prose.count_tokens(text) == tokens
    assert re.fullmatch(r"[A-Za-z.,?! \n]+", text)  # nothing that count_tokens would not see
    assert "  " not in text
    assert not re.search(r"\b[Aa] [aeiou]", text)


def test_too_short() -> None:
    with pytest.raises(ValueError, match="at least 2 tokens"):
        prose.message(words.SUBJECTS[0], 1, random.Random(0))


@pytest.mark.parametrize("subject", words.SUBJECTS, ids=lambda subject: subject.name)
def test_every_pattern_can_be_filled(subject: words.Subject) -> None:
    rng = random.Random(0)
    patterns = subject.openings + subject.details + words.OPENINGS + words.DETAILS + words.FOLLOW_UPS
    for pattern in patterns:
        text = prose.sentence(pattern, subject, rng)
        assert "{" not in text
        assert text[0].isupper()
        assert text[-1] in ".?"


def test_closings_have_their_lengths() -> None:
    assert set(words.CLOSINGS) == set(range(prose.SHORTEST, max(words.CLOSINGS) + 1))
    for tokens, closings in words.CLOSINGS.items():
        assert {prose.count_tokens(closing) for closing in closings} == {tokens}


def test_long_messages_have_paragraphs() -> None:
    text = prose.message(words.SUBJECTS[0], 400, random.Random(5))
    assert 2 <= text.count("\n\n") <= 5
