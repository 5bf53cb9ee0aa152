"""Trace time is the integral of the speed, whatever was changed when."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import pace as module
from loadgen.pace import Pace

SPEEDS = st.floats(0.01, 1000.0)
CHANGES = st.lists(st.tuples(st.floats(0.0, 100.0), SPEEDS), max_size=8)  # (seconds after the last one, speed)


def changed(speed: float, changes: list[tuple[float, float]], begin: float = 50.0) -> Pace:
    pace, now = Pace(speed), begin
    pace.begin(begin)
    for after, new in changes:
        now += after
        pace.set_speed(new, now)
    return pace


@given(SPEEDS, CHANGES, st.floats(0.0, 2000.0))
def test_the_trace_stands_at_the_integral_of_the_speed(
    speed: float, changes: list[tuple[float, float]], seconds: float
) -> None:
    pace, integral, left, current = changed(speed, changes), 0.0, seconds, speed
    for after, new in changes:
        part = min(after, left)
        integral, left, current = integral + part * current, left - part, new if left >= after else current
        if left <= 0:
            break
    assert pace.trace(50.0 + seconds) == pytest.approx(integral + left * current, rel=1e-9, abs=1e-6)


@given(SPEEDS, CHANGES, st.floats(0.0, 5000.0))
def test_a_moment_of_the_trace_and_of_the_clock_are_each_others(
    speed: float, changes: list[tuple[float, float]], trace: float
) -> None:
    pace = changed(speed, changes)
    assert pace.trace(pace.moment(trace)) == pytest.approx(trace, rel=1e-9, abs=1e-6)


@given(SPEEDS, CHANGES, st.lists(st.floats(0.0, 5000.0), min_size=2))
def test_what_is_due_later_comes_later(speed: float, changes: list[tuple[float, float]], dues: list[float]) -> None:
    pace = changed(speed, changes)
    moments = [pace.moment(due) for due in sorted(dues)]
    assert all(a <= b + 1e-6 for a, b in pairwise(moments))


@given(SPEEDS, CHANGES, SPEEDS, st.floats(0.0, 1.0))
def test_what_was_due_before_a_change_stays_where_it_was(
    speed: float, changes: list[tuple[float, float]], new: float, share: float
) -> None:
    pace = changed(speed, changes)
    now = 50.0 + sum(after for after, _ in changes) + 10.0
    due = share * pace.trace(now)
    before = pace.moment(due)
    pace.set_speed(new, now)
    assert pace.moment(due) == pytest.approx(before, abs=1e-6)
    ahead = pace.trace(now) + new * 3.0
    assert pace.moment(ahead) == pytest.approx(now + 3.0)


def test_changes_are_told_from_the_beginning_on() -> None:
    pace = Pace(2.0)
    assert pace.changes == ()
    pace.set_speed(3.0, 5.0)  # before it begins
    pace.begin(10.0)
    assert (pace.speed, pace.changes) == (3.0, ((0.0, 3.0),))
    pace.set_speed(3.0, 11.0)
    pace.set_speed(6.0, 14.0)
    pace.set_speed(1.0, 14.0)
    assert pace.changes == ((0.0, 3.0), (4.0, 1.0))
    assert (pace.trace(14.0), pace.trace(20.0), pace.moment(18.0)) == (12.0, 18.0, 20.0)


def test_a_speed_is_above_0() -> None:
    with pytest.raises(ValueError, match="speed must be above 0"):
        Pace(0.0)
    with pytest.raises(ValueError, match="speed must be above 0"):
        Pace(1.0).set_speed(-1.0, 0.0)


async def test_who_waits_follows_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of its own: what would be due in an hour comes at once when the speed is changed, and not before."""
    now = 100.0
    monkeypatch.setattr(module, "clock", lambda: now)
    pace = Pace(1.0)
    pace.begin(100.0)
    waiting = asyncio.create_task(pace.until(3600.0))
    for _ in range(3):
        await asyncio.sleep(0)
    pace.set_speed(2.0, now)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    now = 110.0
    pace.set_speed(1e6, now)
    now = 111.0
    assert await waiting == pytest.approx(110.0 + (3600.0 - 20.0) / 1e6)
