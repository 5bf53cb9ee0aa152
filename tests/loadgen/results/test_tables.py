"""Figures as text."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.results.tables import _found_out, text


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        (None, "", "-"),
        (0.1234, "x_share", "12.34%"),
        (2**20, "x_bytes", "1.0 MiB"),
        (12345, "", "12,345"),
        (1234.5, "", "1,234"),
        (12.34, "", "12.3"),
        (0.1234, "", "0.123"),
        (["a", "b"], "", "a, b"),
        ([], "", "-"),
        (True, "", "yes"),
        ({"a": 1}, "", "a 1"),
    ],
)
def test_figures_as_text(value: Any, name: str, expected: str) -> None:
    assert text(value, name) == expected


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, ""),
        ({"usage": "nowhere", "cached": "nowhere", "done": False}, "tokens told nowhere, streams end without [DONE]"),
        ({"usage": "a chunk of its own", "cached": "usage"}, "tokens told in a chunk of its own, cached ones in usage"),
    ],
)
def test_what_the_trial_found_in_words(found: dict[str, Any], words: str) -> None:
    """A trial of which nothing was cached does not show where that is told."""
    assert _found_out(found) == words
