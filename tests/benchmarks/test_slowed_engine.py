"""What is slowed by a share takes that share more, whatever sleeps the system can keep."""

from __future__ import annotations

import pytest

from benchmarks.slowed_engine import Brake


@pytest.mark.parametrize("step", [0.0001, 0.002, 0.03])
@pytest.mark.parametrize("overshoot", [0.0, 0.0008])
def test_a_share_is_added_on_average(step: float, overshoot: float) -> None:
    now = 0.0

    def work(number: int) -> int:
        nonlocal now
        now += step
        return number

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds + overshoot

    brake = Brake(0.1, lambda: now, sleep)
    assert [brake(work, number) for number in range(1000)] == list(range(1000))
    assert now == pytest.approx(1000 * step * 1.1, rel=0.01, abs=0.002)
