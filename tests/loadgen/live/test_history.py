"""A run of any length is kept in a few marks, between which every rate is exact."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.live.history import MOST, History
from loadgen.live.state import RunState


def history(rates: list[int], seconds: float = 1.0) -> History:
    """Of a run in which so many turns came and went in each stretch of time."""
    kept = History()
    due = 0
    for number, amount in enumerate([0, *rates]):
        due += amount
        kept.take(RunState("r", number * seconds, 1, 1, due=due, completed=due // 2, in_flight=due - due // 2))
    return kept


def test_rates_of_a_short_run() -> None:
    stretches = history([4, 2, 0, 6]).stretches(10)
    assert [stretch.arrivals for stretch in stretches] == [4, 2, 0, 6]
    assert [stretch.completions for stretch in stretches] == [2, 1, 0, 3]
    assert [stretch.in_flight for stretch in stretches] == [2, 3, 3, 6]


def test_states_that_come_often_are_not_all_marked() -> None:
    stretches = history([1] * 40, seconds=0.25).stretches(100)
    assert [(stretch.seconds, stretch.arrivals) for stretch in stretches] == [(1.0, 4.0)] * 10


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 40))
def test_no_arrival_is_lost_between_the_stretches(rates: list[int], most: int) -> None:
    stretches = history(rates).stretches(most)
    assert len(stretches) <= most
    every = -(-len(rates) // most) or 1
    whole = len(rates) // every * every
    assert sum(stretch.arrivals * stretch.seconds for stretch in stretches) == pytest.approx(sum(rates[:whole]))


@pytest.mark.parametrize("seconds", [MOST, MOST + 1, 3 * MOST + 7, 10 * MOST])
def test_a_long_run_needs_no_more_memory_than_a_short_one(seconds: int) -> None:
    kept = history([3] * seconds)
    stretches = kept.stretches(10**6)
    assert MOST // 2 - 1 <= len(stretches) <= MOST
    assert {stretch.arrivals for stretch in stretches} == {3.0}
    assert sum(stretch.seconds for stretch in stretches) > seconds * 0.99 - 2 * stretches[0].seconds
