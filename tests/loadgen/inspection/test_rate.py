"""Counts over time against a count of all moments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.inspection.rate import STEPS, RateOverTime

moments_of = st.lists(st.lists(st.floats(0, 1e9), max_size=20), min_size=1, max_size=5)


@given(moments_of)
def test_every_moment_is_counted_in_its_step(parts: list[list[float]]) -> None:
    rate = RateOverTime()
    for part in parts:
        rate.add(np.array(part))
    moments = np.concatenate([np.array(part) for part in parts])
    series = rate.series()
    if not len(moments):
        assert series is None
        return
    assert series is not None
    assert list(series.counts) == np.bincount((moments / series.seconds).astype(int)).tolist()
    assert len(series.counts) <= STEPS
    assert series.counts[-1] > 0


def test_steps_are_as_short_as_they_may_be() -> None:
    rate = RateOverTime()
    rate.add(np.linspace(0, 100, 1000))
    series = rate.series()
    assert series is not None
    assert len(series.counts) > STEPS / 2
    assert sum(series.counts) == 1000
