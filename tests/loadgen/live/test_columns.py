"""Columns are as high as what they show."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.live.columns import ASCII, EIGHTHS, columns


def test_one_row() -> None:
    assert columns([0, 0.1, 4, 8, 9], 1, 8) == [" ▁▄██"]


def test_two_rows() -> None:
    assert columns([0, 4, 6, 8], 2, 8) == ["  ▄█", " ███"]


def test_without_unicode() -> None:
    assert columns([0, 4, 8], 1, 8, ASCII) == [" :#"]


def test_nothing_to_show() -> None:
    assert columns([], 2, 0) == ["", ""]
    assert columns([0, 0], 1, 0) == ["  "]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), max_size=50).filter(any), st.integers(1, 8))
def test_the_height_of_a_column_is_its_value_to_an_eighth(values: list[float], height: int) -> None:
    top = max(values)
    rows = columns(values, height, top)
    assert len(rows) == height
    for value, cells in zip(values, zip(*rows, strict=True), strict=True):
        eighths = sum(EIGHTHS.index(cell) for cell in cells)
        assert abs(eighths - value / top * 8 * height) <= 1
        assert (eighths > 0) == (value > 0)
