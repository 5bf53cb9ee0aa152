"""The histogram against numpy over all values, and its merging against one that saw everything."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.histogram import LARGEST, RELATIVE_ERROR, Histogram

PERCENTS = (0.0, 1.0, 25.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0)

amounts = st.floats(1e-9, 1e9)
numbers = st.one_of(st.just(0.0), amounts, amounts.map(lambda value: -value), st.integers(0, 5000).map(float))
values_of = st.lists(numbers, max_size=120)


def filled(values: Sequence[float], infinite: int = 0) -> Histogram:
    histogram = Histogram()
    histogram.extend(values)
    if infinite:
        histogram.add(math.inf, infinite)
    return histogram


def same(one: Histogram, other: Histogram) -> None:
    """Equal in all but the last digits of sums of floats."""
    assert one.buckets() == other.buckets()
    assert (one.count, one.infinite, one.minimum, one.maximum) == (
        other.count,
        other.infinite,
        other.minimum,
        other.maximum,
    )
    size = max(abs(one.minimum or 0), abs(one.maximum or 0))
    assert one.total == pytest.approx(other.total, rel=1e-12, abs=1e-12 * size * one.count)
    assert one.squares == pytest.approx(other.squares, rel=1e-9, abs=1e-12 * size * size * one.count)
    assert one.percentiles(PERCENTS) == other.percentiles(PERCENTS)


@given(values_of, st.integers(0, 20))
@settings(max_examples=300)
def test_percentiles_are_those_of_numpy_to_the_stated_error(values: list[float], infinite: int) -> None:
    every = sorted(values) + [math.inf] * infinite
    found = filled(values, infinite).percentiles(PERCENTS)
    for percent, value in zip(PERCENTS, found, strict=True):
        if not every:
            assert value is None
            continue
        position = (len(every) - 1) * percent / 100
        low, high = every[math.floor(position)], every[math.ceil(position)]
        if high == math.inf:
            assert value is None
            continue
        assert value is not None
        exact = low + (high - low) * (position % 1)
        if not infinite:
            assert exact == pytest.approx(
                np.percentile(values, percent), rel=1e-12, abs=1e-12 * max(abs(low), abs(high))
            )
        error = RELATIVE_ERROR * max(abs(low), abs(high))
        assert abs(value - exact) <= error * (1 + 1e-9)


@given(st.lists(numbers, min_size=1, max_size=200))
def test_count_mean_deviation_and_ends_are_exact(values: list[float]) -> None:
    histogram = filled(values)
    size = max(map(abs, values))
    assert histogram.count == len(values)
    assert (histogram.minimum, histogram.maximum) == (min(values), max(values))
    assert histogram.mean == pytest.approx(np.mean(values), rel=1e-12, abs=1e-12 * size)
    assert histogram.deviation == pytest.approx(np.std(values), rel=1e-9, abs=1e-7 * size)
    assert histogram.percentiles((0, 100)) == (min(values), max(values))


@given(st.lists(numbers, max_size=200))
def test_many_at_once_are_many_one_by_one(values: list[float]) -> None:
    slowly = Histogram()
    for value in values:
        slowly.add(value)
    same(filled(values), slowly)
    same(filled(np.array(values)), slowly)  # type: ignore[arg-type]


@given(numbers, st.integers(1, 50))
def test_a_count_is_that_many_times(value: float, count: int) -> None:
    at_once, slowly = filled([1.0]), filled([1.0])
    at_once.add(value, count)
    for _ in range(count):
        slowly.add(value)
    same(at_once, slowly)


@given(st.lists(st.tuples(values_of, st.integers(0, 3)), min_size=3, max_size=3))
def test_merging_is_associative_commutative_and_loses_nothing(parts: list[tuple[list[float], int]]) -> None:
    def merged(*histograms: Histogram) -> Histogram:
        into = Histogram()
        for histogram in histograms:
            into.merge(histogram)
        return into

    a, b, c = (filled(values, infinite) for values, infinite in parts)
    whole = filled([value for values, _ in parts for value in values], sum(infinite for _, infinite in parts))
    same(merged(merged(a, b), c), merged(a, merged(b, c)))
    assert msgspec.to_builtins(merged(a, b)) == msgspec.to_builtins(merged(b, a))  # to the last digit
    same(merged(a, b, c), whole)
    same(merged(a, Histogram()), a)


@given(values_of, st.integers(0, 3))
def test_json_and_back(values: list[float], infinite: int) -> None:
    histogram = filled(values, infinite)
    assert msgspec.json.decode(msgspec.json.encode(histogram), type=Histogram) == histogram


def test_json_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="count is 3, but counts add up to 2"):
        msgspec.json.decode(b'{"counts": {"1.5": 2}, "count": 3}', type=Histogram)


def test_short_numbers_stay_as_they_are() -> None:
    for value in (0.0, 1.0, 0.25, 500.0, 2047.0, 6756.0, -3.5):
        assert filled([value - 1, value, value + 1]).percentile(50) == value


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5.0], 99, 5.0),
        ([1.0, 2.0, 3.0, 4.0], 50, 2.5),
        ([1.0, 2.0, 3.0, 4.0], 25, 1.75),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 90, 4.6),
        ([4.0, 1.0, 3.0, 2.0], 100, 4.0),
    ],
)
def test_percentiles_by_hand(values: list[float], percent: float, expected: float) -> None:
    assert filled(values).percentile(percent) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "infinite", "percent", "expected"),
    [([1.0], 1, 50, None), ([1.0], 1, 0, 1.0), ([], 2, 95, None), ([1.0, 2.0, 3.0], 1, 66, 2.98), ([], 0, 50, None)],
)
def test_infinite_values_are_the_last_in_order(
    values: list[float], infinite: int, percent: float, expected: float | None
) -> None:
    assert filled(values, infinite).percentile(percent) == (
        None if expected is None else pytest.approx(expected, rel=RELATIVE_ERROR)
    )


def test_close_values_far_from_zero_keep_their_deviation() -> None:
    histogram = filled([1e9 + step for step in (0.0, 1.0, 2.0)])
    assert histogram.deviation == pytest.approx(math.sqrt(2 / 3))
    assert filled([0.1] * 7).deviation == 0.0


def test_a_copy_stays_as_it_was() -> None:
    histogram = filled([1.0, 2.0])
    before = histogram.copy()
    histogram.add(9.0)
    assert (before.count, before.maximum, before.buckets()) == (2, 2.0, [(1.0, 1), (2.0, 1)])


def test_nothing_at_all() -> None:
    empty = Histogram()
    assert (empty.mean, empty.deviation, empty.minimum, empty.percentile(50), empty.buckets()) == (None,) * 4 + ([],)


@pytest.mark.parametrize("value", [math.nan, -math.inf, LARGEST * 10])
def test_no_number_is_refused_and_leaves_nothing_behind(value: float) -> None:
    histogram = Histogram()
    with pytest.raises(ValueError, match="takes numbers up to"):
        histogram.add(value)
    for length in (2, 100):
        with pytest.raises(ValueError, match="takes finite numbers"):
            histogram.extend([1.0] * length + [value])
    with pytest.raises(ValueError, match="at least 1"):
        histogram.add(1.0, 0)
    assert histogram == Histogram()


def test_a_percent_beyond_the_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 to 100, got 101"):
        filled([1.0]).percentile(101)
