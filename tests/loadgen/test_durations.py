"""Durations are read with their unit, or refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.durations import UNITS, clock, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("2s", 2.0), ("1.5m", 90.0), ("1h", 3600.0), (".5s", 0.5), ("0s", 0.0), (" 3s ", 3.0)],
)
def test_every_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-1s", "1 s", "1d", "1s2s", "nan s", "infs", "1e3s", "1_0s", "٣s", "²s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"like 500ms, 2s, 1\.5m or 1h, got"):
        parse_duration(text)


def test_too_long() -> None:
    with pytest.raises(ValueError, match=r"at most 1e\+09s"):
        parse_duration("9" * 400 + "s")


@settings(deadline=None)
@given(st.integers(0, 10**5), st.sampled_from(sorted(UNITS)))
def test_whole_amounts_are_exact_to_the_last_digit(amount: int, unit: str) -> None:
    assert parse_duration(f"{amount}{unit}") == amount * UNITS[unit]


def test_the_clock() -> None:
    assert [clock(seconds) for seconds in (0.9, 59, 61.5, 3599.9, 3600, 36_061)] == [
        "0:00", "0:59", "1:01", "59:59", "1:00:00", "10:01:01",
    ]  # fmt: skip
