"""Arrival times are pure numbers with the statistics of their process. Seeds are fixed: no test is left to luck."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import count, islice, pairwise, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import (
    ALLOWED,
    Arrivals,
    Constant,
    Gamma,
    Immediate,
    Poisson,
    Ramp,
    Recorded,
    Steps,
    Users,
    parse_arrivals,
)

MANY = 20_000


def first(arrivals: Arrivals, amount: int = MANY) -> list[float]:
    """The first times of a process, for sessions of a trace without times."""
    return list(arrivals.times(repeat(None, amount)))


def gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def kolmogorov(values: Sequence[float], distribution: Callable[[float], float]) -> float:
    """sqrt(n) times the largest distance of the sample from a distribution that it has: above 2.2 once in 8,000."""
    n = len(values)
    ordered = [distribution(value) for value in sorted(values)]
    farthest = max(max((at + 1) / n - expected, expected - at / n) for at, expected in enumerate(ordered))
    return farthest * math.sqrt(n)


def exponential(value: float) -> float:
    return -math.expm1(-value)


def gamma_half(value: float) -> float:
    """Shape 1/2, mean 1."""
    return math.erf(math.sqrt(value / 2))


def gamma_two(value: float) -> float:
    """Shape 2, mean 1."""
    return 1 - math.exp(-2 * value) * (1 + 2 * value)


# The trace's own times.


def test_recorded_begins_at_zero() -> None:
    assert list(Recorded().times([2.0, 4.0, 4.0, 12.0])) == [0.0, 2.0, 2.0, 10.0]
    assert list(Recorded().times([])) == []
    assert Recorded().trace_time


def test_recorded_without_times() -> None:
    with pytest.raises(
        ValueError, match=r"session 1 has no time in the trace: name other arrivals \(recorded, poisson"
    ):
        list(Recorded().times([0.0, None]))


def test_recorded_times_that_go_back() -> None:
    with pytest.raises(ValueError, match=r"session 2 comes at 3 s, before the one in front of it \(4 s\)"):
        list(Recorded().times([0.0, 4.0, 3.0]))


# Random processes against the theory.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("process", "burstiness", "distribution"),
    [
        (Poisson, 1.0, exponential),
        (Gamma, 1.0, exponential),
        (Gamma, 0.5, gamma_half),
        (Gamma, 2.0, gamma_two),
    ],
)
def test_gaps_of_a_constant_rate(
    process: type[Poisson] | type[Gamma], burstiness: float, distribution: Callable[[float], float], seed: int
) -> None:
    """Mean 1/rate, coefficient of variation 1/sqrt(burstiness), the whole distribution, and no memory."""
    rate = 4.0
    arrivals = Poisson(rate, seed) if process is Poisson else Gamma(rate, burstiness, seed)
    times = first(arrivals)
    between = gaps(times)
    mean = statistics.fmean(between)
    assert times[0] == 0.0
    assert mean == pytest.approx(1 / rate, rel=4 / math.sqrt(burstiness * MANY))
    assert statistics.pstdev(between) / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)
    assert kolmogorov([gap * rate for gap in between], distribution) < 2.2
    assert abs(statistics.correlation(between[:-1], between[1:])) < 4 / math.sqrt(MANY)


def test_burstiness_of_one_is_poisson() -> None:
    assert first(Gamma(4.0, 1.0, seed=3), 100) == first(Poisson(4.0, seed=3), 100)


def test_constant_is_exact_however_long() -> None:
    rate = 3.0
    times = first(Constant(rate), 300_000)
    assert times == [number / rate for number in range(300_000)]
    assert first(Gamma(rate, math.inf, seed=0), 1000) == times[:1000]


def test_random_times_do_not_drift() -> None:
    """Sums of many gaps are as exact as their sum without any rounding."""
    import random

    amount = 100_000
    generator = random.Random("5/arrivals")
    exact = math.fsum(generator.expovariate(1.0) for _ in range(amount))
    last = first(Poisson(1.0, seed=5), amount + 1)[-1]
    assert last == pytest.approx(exact, rel=3e-16)


def test_all_at_once() -> None:
    assert first(Immediate(), 3) == [0.0, 0.0, 0.0]


# Rates that change.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "course",
    [
        lambda seed: Ramp(1.0, 40.0, 200.0, seed),
        lambda seed: Ramp(40.0, 1.0, 500.0, seed),
        lambda seed: Ramp(0.0, 10.0, 60.0, seed),
        lambda seed: Steps((5.0, 0.0, 20.0, 10.0), 100.0, seed),
    ],
)
def test_a_changing_rate_is_a_poisson_process_of_its_integral(course: Callable[[int], Ramp | Steps], seed: int) -> None:
    """By the integral of the rate the gaps are those of a Poisson process of rate 1: the time-rescaling theorem."""
    arrivals = course(seed)
    expected = [arrivals.expected(time) for time in first(arrivals, 5000)]
    assert kolmogorov(gaps(expected), exponential) < 2.2
    for moment in (50.0, 150.0, 250.0):
        there = arrivals.expected(moment)
        came = sum(time <= moment for time in first(arrivals, 9000))
        assert abs(came - there) < 4 * math.sqrt(there) + 1


def test_the_integral_of_a_ramp() -> None:
    ramp = Ramp(1.0, 9.0, 40.0, seed=0)
    assert ramp.expected(0.0) == 0.0
    assert ramp.expected(20.0) == 20 * (1 + 5) / 2
    assert ramp.expected(40.0) == 40 * (1 + 9) / 2
    assert ramp.expected(50.0) == 200 + 10 * 9


def test_the_integral_of_steps() -> None:
    steps = Steps((1.0, 0.0, 4.0), 30.0, seed=0)
    assert [steps.expected(time) for time in (0.0, 15.0, 30.0, 45.0, 60.0, 70.0, 1000.0)] == [
        0, 15, 30, 30, 30, 70, 30 + 940 * 4,
    ]  # fmt: skip


def test_even_arrivals_of_a_ramp_and_of_steps() -> None:
    """Without chance, the k-th arrival is where the integral is k."""
    assert first(Ramp(1.0, 1.0, 5.0, seed=0, burstiness=math.inf), 4) == [0.0, 1.0, 2.0, 3.0]
    assert first(Steps((1.0, 0.0, 2.0), 2.0, 0, math.inf), 6) == [0.0, 1.0, 2.0, 4.5, 5.0, 5.5]
    rising = Ramp(0.0, 2.0, 10.0, seed=0, burstiness=math.inf)
    assert first(rising, 12) == pytest.approx([*(math.sqrt(10 * k) for k in range(11)), 10.5])


@settings(deadline=None)
@given(st.floats(0, 100) | st.just(0.0), st.floats(0.01, 100), st.floats(0.1, 1000), st.floats(0, 2000))
def test_a_ramps_time_is_the_inverse_of_its_integral(start: float, end: float, seconds: float, moment: float) -> None:
    if 0 < start < 1e-6:
        start = 0.0
    ramp = Ramp(start, end, seconds, seed=0)
    assert ramp.expected(ramp.time(ramp.expected(moment))) == pytest.approx(ramp.expected(moment), rel=1e-9, abs=1e-9)


# What all of them keep.

rates = st.floats(0.001, 1000)
processes: st.SearchStrategy[Arrivals] = st.one_of(
    st.just(Recorded()),
    st.just(Immediate()),
    st.builds(Constant, rates),
    st.builds(Poisson, rates, st.integers(0, 5)),
    st.builds(Gamma, rates, st.floats(0.01, 50) | st.just(math.inf), st.integers(0, 5)),
    st.builds(Ramp, rates, rates, st.floats(0.01, 1000), st.integers(0, 5), st.floats(0.1, 10) | st.just(math.inf)),
    st.builds(
        Steps,
        st.lists(rates | st.just(0.0), max_size=5).flatmap(lambda some: rates.map(lambda last: (*some, last))),
        st.floats(0.01, 100),
        st.integers(0, 5),
    ),
    st.builds(Users, st.integers(1, 100)),
)


@settings(deadline=None)
@given(processes, st.lists(st.floats(0, 100), max_size=60))
def test_a_time_for_each_that_never_goes_back_and_is_the_same_again(arrivals: Arrivals, moments: list[float]) -> None:
    recorded = sorted(moments)
    times = list(arrivals.times(recorded))
    assert len(times) == len(recorded)
    assert times == sorted(times)
    assert times[:1] == [0.0][: len(times)]
    assert all(map(math.isfinite, times))
    assert times == list(arrivals.times(recorded))
    assert times[:7] == list(arrivals.times(recorded[:7]))  # how many come later changes nothing


@settings(deadline=None)
@given(processes)
def test_a_trace_without_an_end(arrivals: Arrivals) -> None:
    assert len(list(islice(arrivals.times(map(float, count())), 10))) == 10


def test_another_seed_is_another_run() -> None:
    assert first(Poisson(4.0, 1), 10) != first(Poisson(4.0, 2), 10)


def test_users_start_within_the_ramp() -> None:
    users = Users(4, think=2.0, ramp=8.0)
    assert [users.start(user) for user in range(users.count)] == [0.0, 2.0, 4.0, 6.0]
    assert not users.trace_time


# What --arrivals takes.


@pytest.mark.parametrize(
    ("spec", "arrivals"),
    [
        ("recorded", Recorded()),
        ("inf", Immediate()),
        ("poisson:4", Poisson(4.0, 7)),
        ("gamma:4,burstiness=0.5", Gamma(4.0, 0.5, 7)),
        ("constant:0.25", Constant(0.25)),
        ("ramp:1..10,over=60s", Ramp(1.0, 10.0, 60.0, 7)),
        ("ramp: 0..10, over=500ms, burstiness=inf", Ramp(0.0, 10.0, 0.5, 7, math.inf)),
        ("steps:1,2,4,each=30s", Steps((1.0, 2.0, 4.0), 30.0, 7)),
        ("users:8", Users(8)),
        ("users:8,think=2s,ramp=1m", Users(8, 2.0, 60.0)),
    ],
)
def test_every_kind_is_read(spec: str, arrivals: Arrivals) -> None:
    assert parse_arrivals(spec, 7) == arrivals


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("", "there are no arrivals ''"),
        ("poison:4", "there are no arrivals 'poison'"),
        ("poisson", "poisson: expected one rate after the colon"),
        ("poisson:4,5", "poisson: expected one rate after the colon"),
        ("poisson:x", "rate: expected a number, got 'x'"),
        ("poisson:0", "rate: expected 1e-06 to 1e+06 sessions/s, got 0"),
        ("poisson:-1", "rate: expected 1e-06 to 1e+06 sessions/s, got -1"),
        ("poisson:nan", "rate: expected a number, got 'nan'"),
        ("poisson:4,burstiness=2", "poisson has no 'burstiness'"),
        ("constant:inf", "rate: expected 1e-06 to 1e+06 sessions/s, got inf"),
        ("gamma:4", "gamma needs burstiness=..."),
        ("gamma:4,burstiness=0", "burstiness: expected a number from 0.001 on"),
        ("ramp:1-10,over=60s", "ramp: expected FROM..TO, got '1-10'"),
        ("ramp:1..0,over=60s", "rate: expected 1e-06 to 1e+06 sessions/s, got 0"),
        ("ramp:1..10", "ramp needs over=..."),
        ("ramp:1..10,over=60", "over: expected a number with its unit"),
        ("ramp:1..10,over=0s", "over: expected a time above 0"),
        ("steps:each=30s", "steps: expected rates after the colon"),
        ("steps:1,0,each=30s", "rate: expected 1e-06 to 1e+06 sessions/s, got 0"),
        ("steps:1,,2,each=30s", "rate: expected a number, got ''"),
        ("steps:1,each=30s,each=5s", "each= is given twice"),
        ("users:0", "users: expected a whole number from 1 to 1000000, got 0"),
        ("users:2.5", "users: expected a whole number, got '2.5'"),
        ("users:8,thunk=2s", "users has no 'thunk'"),
        ("recorded:1", "recorded takes nothing after it"),
        ("inf:3", "inf takes nothing after it"),
    ],
)
def test_what_is_refused_says_what_is_allowed(spec: str, why: str) -> None:
    with pytest.raises(ValueError, match="allowed: recorded, poisson") as caught:
        parse_arrivals(spec, 0)
    assert why in str(caught.value)
    assert str(caught.value).startswith(repr(spec))
    assert str(caught.value).endswith(ALLOWED)
