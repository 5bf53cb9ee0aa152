"""Figures as text."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.results.tables import text


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
