"""Arrival times are pure numbers."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from loadgen.arrivals import poisson, recorded


def test_recorded_starts_at_zero() -> None:
    assert recorded([2.0, 4.0, 12.0]) == [0.0, 2.0, 10.0]
    assert recorded([]) == []


def test_poisson_repeats_with_its_seed_and_has_the_mean() -> None:
    times = poisson(20_000, 4.0, seed=1)
    assert times == poisson(20_000, 4.0, seed=1) != poisson(20_000, 4.0, seed=2)
    gaps = [b - a for a, b in pairwise(times)]
    assert times[0] == 0.0
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.05)  # exponential: as wide as its mean


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_bad_rates(bad: float) -> None:
    with pytest.raises(ValueError, match="rate must be above 0"):
        poisson(1, bad, 0)
