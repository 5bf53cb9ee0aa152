"""Quantiles, and events between two moments up to a record."""

from __future__ import annotations

import pytest

from tui.log import Events
from tui.windows import quantile


def test_quantile_interpolates():
    assert quantile([], 0.5) is None
    assert quantile([3.0, 1.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 4.0], 0.9) == pytest.approx(3.6)


def test_events_begin_after_the_start_and_end_with_the_end():
    events: Events[str] = Events()
    for time, seq, what in ((1.0, 1, "a"), (2.0, 2, "b"), (2.0, 3, "c"), (3.0, 4, "d")):
        events.add(time, seq, what)
    assert events.between(1.0, 2.0, None) == ["b", "c"]
    assert events.between(1.0, 2.0, 2) == ["b"]  # the third came at the same time, and later
    assert events.between(0.0, 9.0, None) == ["a", "b", "c", "d"]
    events.drop_before(2.0)
    assert events.between(0.0, 9.0, None) == ["b", "c", "d"]
