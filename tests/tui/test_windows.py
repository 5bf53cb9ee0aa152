"""Quantiles, and events between two moments up to a record."""

from __future__ import annotations

import pytest

from engine.protocol import Queue
from tui.log import Events, Log, Totals
from tui.windows import Windows, quantile


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


def test_the_age_of_the_queue_is_the_most_of_a_window_s_records():
    log = Log()
    windows = Windows(log)
    assert windows.window(0.0, 1.0).oldest_wait is None
    for seq, (time, waits) in enumerate(((10.0, 0.0), (11.0, 1.0), (12.0, 2.0), (13.0, 0.25))):
        log.add(time, time, seq, Queue(int(waits > 0), waits), Totals())
    assert windows.window(10.0, 13.0).oldest_wait == 2.0
    assert windows.window(12.0, 13.0).oldest_wait == 0.25  # what was told at its start is of the window before
    assert windows.window(11.2, 11.8).oldest_wait == 1.0  # as it was last told
    assert Windows(log, 1).window(10.0, 11.9).oldest_wait == 1.0  # as was known after the second record
    assert windows.window(1.0, 9.0).oldest_wait is None
    log.add_gap(20.0)
    log.add(20.0, 20.0, 9, Queue(1, 7.0), Totals())
    assert windows.window(14.0, 16.0).oldest_wait is None
    assert windows.window(14.0, 20.0).oldest_wait is None
    assert windows.window(12.5, 21.0).oldest_wait == 7.0
