"""Percentiles from counts of rounded values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.simulator.gaps import Gaps


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_are_those_of_the_values_to_half_a_percent(values: list[float]) -> None:
    gaps = Gaps()
    for value in values:
        gaps.add(value)
    told = gaps.told()
    assert (told.count, told.max) == (len(values), max(values))
    assert told.mean == pytest.approx(math.fsum(values) / len(values))
    ordered = sorted(values)
    for percent, found in ((50, told.p50), (90, told.p90), (99, told.p99)):
        assert found == pytest.approx(ordered[math.ceil(percent * len(values) / 100) - 1], rel=0.004)


def test_of_nothing_there_is_nothing_to_tell() -> None:
    assert Gaps().told().p99 is None
