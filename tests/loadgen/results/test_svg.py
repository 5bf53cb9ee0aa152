"""Charts hold their data, name their axes, and are well formed."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.results.svg import Chart, Dots, Line, draw, nice_ticks, tick_text

SVG = {"svg": "http://www.w3.org/2000/svg"}


def chart(*marks: Line | Dots) -> Chart:
    return Chart("Title <1>", "seconds", "tokens/s & more", marks, "from 3 of 5")


def test_a_line_by_hand() -> None:
    """The axis goes to 2 s and 100: the first point is at its foot on the left, the last at its top on the right."""
    drawn = draw(chart(Line("a", [(0, 0), (2, 100)])))
    (points,) = re.findall(r'points="([^"]*)"', drawn)
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in points.split())
    assert (x0, y1) == (58.0, 12.0)
    assert (x1, y0) == (460.0, 210.0)


def test_it_says_what_is_drawn() -> None:
    figure = ElementTree.fromstring(
        draw(chart(Line("a", [(0, 1), (2, 3)]), Dots("b", [(1, 2)], "b"), Line("none", [])))
    )
    text = "".join(figure.itertext())
    for expected in ("Title <1>", "seconds", "tokens/s & more", "from 3 of 5", "a", "b"):
        assert expected in text
    assert "none" not in text
    assert figure.find("svg") is not None


def test_nothing_to_draw_is_no_chart() -> None:
    assert draw(chart()) == draw(chart(Line("a", []), Dots("b", []))) == ""


def test_named_places_on_the_axis() -> None:
    drawn = draw(Chart("t", "percentile", "ms", (Line("a", [(0, 1), (2.5, 3)]),), "", [(0, "0"), (1, "90"), (2, "99")]))
    for name in (">0<", ">90<", ">99<"):
        assert name in drawn


points = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e12)), min_size=1, max_size=5)


@given(points)
def test_everything_is_within_the_drawing(places: list[tuple[float, float]]) -> None:
    drawn = draw(chart(Line("a", places), Dots("b", places)))
    ElementTree.fromstring(drawn)
    numbers = [float(number) for number in re.findall(r"(?:points=\"|[ M,])(-?[\d.]+)(?=[, \"h])", drawn)]
    assert all(0 <= number <= 480 for number in numbers)
    assert "nan" not in drawn


@given(st.floats(1e-9, 1e15))
def test_ticks_are_few_and_reach_over_the_highest(highest: float) -> None:
    ticks = nice_ticks(highest)
    assert 2 <= len(ticks) <= 12
    assert ticks[0] == 0
    assert ticks[-1] >= highest * (1 - 1e-6)
    assert ticks[-2] < highest * (1 + 1e-6)


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (0.05, "0.05"), (9000, "9000"), (20000, "20k"), (1.5e6, "1.5M"), (2e9, "2G")]
)
def test_numbers_on_an_axis_are_short(value: float, expected: str) -> None:
    assert tick_text(value) == expected


def test_ticks_without_anything() -> None:
    assert nice_ticks(0) == [0.0, 1.0]
