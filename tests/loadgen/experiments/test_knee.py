"""The knee and the peak of queues whose own are known, by formula and from simulated arrivals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.experiments.knee import Goodput, Response, find_knee, find_peak, next_load

CAPACITIES = st.floats(0.1, 1000)
FAR = 1e9


def exactly(load: float, value: float) -> Goodput:
    return Goodput(load, value, value, value)


def search(
    measure: Callable[[float], Goodput], first: Sequence[float], precision: float = 0.05, whole: bool = False
) -> list[Goodput]:
    measured = [measure(load) for load in first]
    while (load := next_load(measured, 1.0 if whole else 1e-9, FAR, precision, whole)) is not None:
        measured.append(measure(load))
        assert len(measured) < 200
    return measured


def queue(capacity: float, scatter: float) -> Callable[[float], Response]:
    """M/G/1 by Pollaczek and Khinchine; `scatter` is the squared coefficient of variation of the service time."""

    def respond(load: float) -> Response:
        used = load / capacity
        return Response(load, load, (1 + used * (1 + scatter) / (2 * (1 - used))) / capacity)

    return respond


@given(CAPACITIES, st.floats(0, 3), st.integers(6, 30), st.floats(0.03, 0.2))
def test_the_knee_of_one_server_has_one_request_in_it(
    capacity: float, scatter: float, count: int, lowest: float
) -> None:
    """Kleinrock: for M/G/1 the greatest power is where the mean number in the system is 1."""
    loads = np.geomspace(lowest * capacity, 0.97 * capacity, count)
    knee = find_knee([queue(capacity, scatter)(load) for load in loads.tolist()])
    assert knee is not None
    assert knee.low is not None
    assert knee.high is not None

    true = capacity / (1 + math.sqrt((1 + scatter) / 2))
    assert queue(capacity, scatter)(true).latency * true == pytest.approx(1)
    assert knee.low < true < knee.high
    assert knee.low <= knee.load <= knee.high
    if count >= 20:
        assert knee.load == pytest.approx(true, rel=0.05)


@given(CAPACITIES)
def test_the_knee_of_mm1_is_half_of_its_capacity(capacity: float) -> None:
    loads = np.geomspace(0.05 * capacity, 0.95 * capacity, 16)
    knee = find_knee([queue(capacity, 1.0)(load) for load in loads.tolist()])
    assert knee is not None
    assert knee.load == pytest.approx(capacity / 2, rel=0.03)


def test_the_knee_of_a_simulated_queue() -> None:
    random = np.random.default_rng(11)
    responses = []
    for load in np.linspace(1, 9.5, 18).tolist():
        arrivals = np.cumsum(random.exponential(1 / load, 5000))
        service = random.exponential(0.1, 5000)
        ended = departures(arrivals, service)
        responses.append(Response(load, 5000 / (ended[-1] - arrivals[0]), float(np.mean(ended - arrivals))))
    knee = find_knee(responses)
    assert knee is not None
    assert knee.load == pytest.approx(5, rel=0.2)


def departures(arrivals: np.ndarray, service: np.ndarray) -> np.ndarray:
    """When each is served, one after the other (Lindley)."""
    free, ended = 0.0, []
    for arrival, seconds in zip(arrivals.tolist(), service.tolist(), strict=True):
        free = max(free, arrival) + seconds
        ended.append(free)
    return np.array(ended)


def test_a_knee_beyond_the_sweep_is_not_claimed() -> None:
    mm1 = queue(10.0, 1.0)
    low = find_knee([mm1(1), mm1(2), mm1(3)])
    high = find_knee([mm1(6), mm1(7), mm1(8)])
    alone = find_knee([mm1(5)])
    assert low is not None
    assert high is not None
    assert alone is not None
    assert (low.load, low.low, low.high) == (3, 2, None)
    assert (high.load, high.low, high.high) == (6, None, 7)
    assert (alone.low, alone.high) == (None, None)
    assert find_knee([]) is None
    with pytest.raises(ValueError, match="above 0"):
        find_knee([Response(1, 0, 1)])


def test_a_level_top_has_its_knee_in_the_middle() -> None:
    knee = find_knee([Response(load, load, load) for load in (1.0, 2.0, 4.0)])
    assert knee is not None
    assert (knee.load, knee.low) == (1.0, None)  # of equal ones the lowest
    knee = find_knee([Response(1, 0.5, 1), Response(2, 2, 2), Response(4, 4, 4), Response(8, 8, 9)])
    assert knee is not None
    assert 2 < knee.load < 4


@given(CAPACITIES, st.floats(0.5, 50), st.floats(0.01, 100))
def test_the_peak_of_mm1_with_a_limit_is_found(capacity: float, limit: float, start: float) -> None:
    """P(response <= L) = 1 - exp(-(mu - lambda) L). `limit` is in mean service times, `start` in capacities."""

    def goodput(load: float) -> float:
        return load * -math.expm1(-max(0.0, 1 - load / capacity) * limit)

    measured = search(lambda load: exactly(load, goodput(load)), [start * capacity])
    peak = find_peak(measured)
    assert peak is not None
    grid = np.linspace(0, capacity, 20001).tolist()
    true = max(grid, key=goodput)
    assert peak.best.load == pytest.approx(true, rel=0.06)
    assert peak.best.value >= 0.99 * goodput(true)
    assert peak.low is not None
    assert peak.high is not None
    assert peak.low <= true * 1.0001
    assert true <= peak.high * 1.0001
    assert len(measured) <= 30


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_peak_over_whole_numbers_is_found(users: int, start: int) -> None:
    """Goodput rises with the users up to some number of them and then falls."""
    measured = search(lambda load: exactly(load, load if load <= users else users**2 / load), [start], 0.001, True)
    peak = find_peak(measured)
    assert peak is not None
    assert peak.best.load == users
    assert len({one.load for one in measured}) == len(measured)
    assert all(one.load == int(one.load) >= 1 for one in measured)


def test_a_level_top_is_taken_at_its_beginning() -> None:
    peak = find_peak(search(lambda load: exactly(load, min(load, 7.0)), [1.0, 64.0], 0.02))
    assert peak is not None
    assert peak.best.load == pytest.approx(7, rel=0.03)


def test_a_search_stays_within_its_bounds() -> None:
    rising = [exactly(load, load) for load in (1.0, 2.0)]
    assert next_load(rising, 1, 16, 0.5) == 4
    assert next_load(rising, 1, 3, 0.5) == 3
    assert next_load(rising, 1, 2, 0.1) == pytest.approx(math.sqrt(2))
    assert next_load(rising, 1, 2, 1.0) is None
    falling = [exactly(load, 1 / load) for load in (4.0, 8.0)]
    assert next_load(falling, 3, 16, 0.5) == 3
    with pytest.raises(ValueError, match="at least one measured load"):
        next_load([], 1, 2, 0.1)


def test_limits_that_nothing_meets_are_searched_for_below() -> None:
    measured = search(lambda load: exactly(load, 0.0), [1.0, 4.0])
    assert min(one.load for one in measured) == 1e-9
    assert max(one.load for one in measured) == 4
    assert find_peak(measured) is None
    assert find_peak([]) is None


def test_a_peak_is_told_as_far_as_noise_allows() -> None:
    measured = [
        Goodput(1, 1.0, 0.9, 1.1),
        Goodput(2, 1.9, 1.7, 2.1),
        Goodput(3, 2.0, 1.8, 2.2),
        Goodput(4, 1.85, 1.6, 2.1),
    ]
    peak = find_peak(measured)
    assert peak is not None
    assert (peak.best.load, peak.low, peak.high) == (3, 1, None)


def test_the_peak_of_simulated_queues_is_found_through_their_noise() -> None:
    """M/M/1 with a limit of 5 mean service times on the response, 1,500 requests at each load: near the true most."""
    random = np.random.default_rng(2)

    def measure(load: float) -> Goodput:
        arrivals = np.cumsum(random.exponential(1 / load, 1500))
        met = departures(arrivals, random.exponential(0.1, 1500)) - arrivals <= 0.5
        value = met.sum() / (arrivals[-1] - arrivals[0])
        half = 0.1 * value
        return Goodput(load, float(value), float(value - half), float(value + half))

    true_load, true = max(
        ((load, load * -math.expm1(load / 2 - 5)) for load in np.linspace(1, 9.9, 500)), key=lambda x: x[1]
    )
    for _ in range(10):
        peak = find_peak(search(measure, [2.0], 0.1))
        assert peak is not None
        assert peak.best.value == pytest.approx(true, rel=0.12)
        assert peak.low is not None
        assert peak.high is not None
        assert peak.low < true_load < peak.high
