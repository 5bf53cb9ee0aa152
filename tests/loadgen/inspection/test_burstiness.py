"""Arrivals' gaps and windows against numpy over all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.inspection.burstiness import FEWEST_WINDOWS, WINDOWS, Burstiness, BurstinessMeter

ticks = st.lists(st.integers(0, 3000), min_size=1, max_size=60)


def meter(times: list[float], parts: int = 1) -> Burstiness:
    meter = BurstinessMeter()
    for part in np.array_split(np.array(times), parts):
        meter.add(part)
    found = meter.burstiness()
    assert found is not None
    return found


@given(ticks, st.integers(1, 5), st.integers(0, 1000))
def test_gaps_and_windows_are_those_of_all_arrivals(gaps: list[int], parts: int, first: int) -> None:
    times = np.cumsum([0, *gaps]) / 64  # whole numbers of them are exact in every window that is one
    found = meter((times + first / 64).tolist(), parts)
    assert (found.arrivals, found.seconds, found.at_once) == (len(times), times[-1], gaps.count(0))
    assert found.gaps is not None
    assert found.gaps.mean == pytest.approx(np.diff(times).mean())
    assert found.gaps.variation == (pytest.approx(np.std(gaps) / np.mean(gaps)) if any(gaps) else None)
    told = {window.seconds: window for window in found.windows}
    for seconds in WINDOWS:
        numbers = np.floor(times / seconds).astype(int)
        counts = np.bincount(numbers)[:-1]  # the last window is not over
        assert (seconds in told) == (len(counts) >= FEWEST_WINDOWS and counts.any())
        if seconds in told:
            window = told[seconds]
            assert (window.windows, window.most) == (len(counts), counts.max())
            assert window.mean == pytest.approx(counts.mean())
            assert window.dispersion == pytest.approx(counts.var() / counts.mean(), abs=1e-9)


def test_a_poisson_process_is_as_random_as_one() -> None:
    times = np.cumsum(np.random.default_rng(5).exponential(0.1, 100_000))
    found = meter(times.tolist(), 20)
    assert found.rate == pytest.approx(10, rel=0.02)
    assert found.gamma == pytest.approx(1, rel=0.05)
    assert {window.seconds for window in found.windows} == {0.1, 1.0, 10.0, 60.0, 600.0}
    for window in found.windows[:3]:
        assert window.dispersion == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("shape", [0.3, 4.0])
def test_the_gamma_process_of_a_trace_is_found_again(shape: float) -> None:
    times = np.cumsum(np.random.default_rng(6).gamma(shape, 1 / shape, 50_000))
    assert meter(times.tolist()).gamma == pytest.approx(shape, rel=0.05)


def test_a_clock_does_not_vary() -> None:
    found = meter([float(second) for second in range(100)])
    assert found.gamma is None
    assert found.windows[1].dispersion == 0


def test_a_trace_may_have_one_arrival_or_none() -> None:
    assert BurstinessMeter().burstiness() is None
    one = meter([5.0])
    assert (one.arrivals, one.seconds, one.rate, one.gaps, one.gamma, one.windows) == (1, 0.0, None, None, None, ())


def test_a_very_long_trace_needs_no_more_memory_for_its_windows() -> None:
    found = meter([0.0, 1.0, 1e9], 3)
    assert found.windows[0].windows == 10**10
    assert found.windows[0].most == 1
