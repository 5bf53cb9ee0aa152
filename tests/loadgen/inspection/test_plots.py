"""What is drawn of a trace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_sessions import blocks, inspection

from loadgen.inspection.distribution import distribution
from loadgen.inspection.plots import draw, linear_ticks, logarithmic_ticks, rate, spread
from loadgen.metrics.histogram import Histogram


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=50), st.integers(0, 5))
def test_a_spread_is_all_values_but_zeros(values: list[float], zeros: int) -> None:
    histogram = Histogram()
    histogram.extend([*values, *[0.0] * zeros])
    points = spread(distribution(histogram))
    assert sum(up for _, up in points) == pytest.approx(100 * len(values) / (len(values) + zeros))
    assert [at for at, _ in points] == sorted(at for at, _ in points)


def test_an_empty_step_is_drawn_only_where_it_tells_something() -> None:
    histogram = Histogram()
    histogram.extend([2.0, 3.0, 16.0, 64.0])
    points = spread(distribution(histogram))
    assert [up for at, up in points if at < 8] == [25.0, 25.0]
    assert [up for at, up in points if at > 18].count(0.0) == 7


def test_nothing_has_no_spread() -> None:
    histogram = Histogram()
    assert spread(distribution(histogram)) == ()
    histogram.add(0.0)
    assert spread(distribution(histogram)) == ()


def test_a_rate_is_of_what_has_ended() -> None:
    sessions = [blocks(4, (1,), name=str(at), arrival=at / 4) for at in range(400)]
    points = rate(inspection(sessions).statistics)
    assert len(points) <= 160
    assert all(up == pytest.approx(4, abs=2) for _, up in points)


@given(st.floats(1e-3, 1e9), st.integers(2, 16))
def test_ticks_are_round_and_few(highest: float, most: int) -> None:
    ticks = linear_ticks(highest, most)
    assert 1 <= len(ticks) <= most
    assert ticks[-1] <= highest * (1 + 1e-9)
    if len(ticks) > 1:
        step = ticks[1]
        assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)


@given(st.floats(1e-3, 1e6), st.floats(1, 1e6), st.integers(4, 16))
def test_ticks_of_a_logarithmic_scale(lowest: float, times: float, most: int) -> None:
    ticks = logarithmic_ticks(lowest, lowest * times, most)
    assert len(ticks) <= most
    assert all(lowest <= tick <= lowest * times for tick in ticks)


@pytest.mark.parametrize("width", [80, 40, 110])
def test_pictures_are_as_wide_as_asked(width: int) -> None:
    sessions = [blocks(4 * (1 + at % 9), range(1 + at % 9), arrival=at / 4, output=1 + at % 7) for at in range(400)]
    one = inspection(sessions)
    for several in ([one], [one, one]):
        pictures = list(draw(several, ["a", "b"][: len(several)], width, False))
        assert len(pictures) == 5
        for picture in pictures:
            assert max(len(line) for line in picture.plain.splitlines()) <= width
            assert ("aa a" in picture.plain) == (len(several) > 1)


def test_what_is_not_there_is_not_drawn() -> None:
    assert list(draw([inspection([blocks(4, (1,), arrival=None)])], ["a"], 80, True)) == []
