"""Known values of Student's t, Holm's procedure against its definition, and error rates on simulated comparisons."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.experiments.statistics import (
    ERROR_RATE,
    Mean,
    holm,
    repeats_needed,
    smallest_found,
    t_quantile,
    t_tail,
)

COMPARISONS = 1500
FIGURES = 6
SLOWER = math.log(1.1)


# Two-sided 5 % and 1 % points, from the tables of every textbook.
@pytest.mark.parametrize(
    ("freedom", "five", "one"),
    [
        (1, 12.706, 63.657),
        (2, 4.303, 9.925),
        (3, 3.182, 5.841),
        (4, 2.776, 4.604),
        (5, 2.571, 4.032),
        (10, 2.228, 3.169),
        (29, 2.045, 2.756),
        (120, 1.980, 2.617),
    ],
)
def test_quantiles_are_those_of_the_tables(freedom: int, five: float, one: float) -> None:
    assert t_quantile(0.05, freedom) == pytest.approx(five, abs=6e-4)
    assert t_quantile(0.01, freedom) == pytest.approx(one, abs=6e-4)


@given(st.floats(1e-6, 0.999), st.integers(1, 60))
def test_a_quantile_has_its_tail(probability: float, freedom: int) -> None:
    assert t_tail(t_quantile(probability, freedom), freedom) == pytest.approx(probability, rel=1e-6, abs=1e-12)


@given(st.integers(1, 40), st.floats(0, 50), st.floats(0, 50))
def test_the_tail_falls(freedom: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    tails = [t_tail(t, freedom) for t in (0, low, high, math.inf)]
    assert (tails[0], tails[-1]) == (1, 0)
    assert all(one >= other - 1e-14 for one, other in pairwise(tails))


def test_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert t_tail(1.959964, 5000) == pytest.approx(0.05, abs=1e-4)


@pytest.mark.parametrize("probability", [0.0, 1.0, math.nan])
def test_no_quantile_of_what_is_no_probability(probability: float) -> None:
    with pytest.raises(ValueError, match="above 0 and below 1"):
        t_quantile(probability, 3)


def test_a_mean_by_hand() -> None:
    mean = Mean.of([1.0, 2.0, 3.0])
    assert mean.value == 2
    assert mean.error == pytest.approx(1 / math.sqrt(3))
    assert mean.chance == pytest.approx(0.0742, abs=1e-4)
    assert mean.interval(0.05) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-4)


def test_equal_repeats_are_certain() -> None:
    assert Mean.of([0.0, 0.0]).chance == 1
    assert Mean.of([0.5, 0.5]).chance == 0
    assert Mean.of([0.5, 0.5]).interval(0.01) == (0.5, 0.5)


def test_one_repeat_says_nothing_of_its_uncertainty() -> None:
    with pytest.raises(ValueError, match="at least 2 repeats, got 1"):
        Mean.of([1.0])


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12), st.floats(0.001, 0.5))
def test_an_interval_leaves_out_0_just_where_its_chance_is_less(values: list[float], rate: float) -> None:
    mean = Mean.of(values)
    low, high = mean.interval(rate)
    if abs(mean.chance - rate) > 1e-9:
        assert (low <= 0 <= high) == (mean.chance >= rate)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.01, 0.2))
def test_holm_is_the_closed_test_by_bonferroni(chances: list[float], rate: float) -> None:
    """Its definition: a figure differs if every set of figures that holds it has one below rate / size."""
    sets = [chosen for size in range(1, len(chances) + 1) for chosen in combinations(range(len(chances)), size)]
    expected = [
        all(min(chances[i] for i in chosen) <= rate / len(chosen) for chosen in sets if index in chosen)
        for index in range(len(chances))
    ]
    assert [decision.differs for decision in holm(chances, rate)] == expected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_level_of_a_figure_agrees_with_its_decision(chances: list[float]) -> None:
    for chance, decision in zip(chances, holm(chances), strict=True):
        assert decision.differs == (chance <= decision.error_rate)
        assert ERROR_RATE / len(chances) <= decision.error_rate <= ERROR_RATE


def comparisons(noise: str, repeats: int, deviation: float, slower: float) -> float:
    """The share of simulated comparisons that find anything. `deviation` is of a run's figures, in logarithms.

    Half of a run's noise is common to its six figures, as a slow machine is. `drift` adds that of repeat to repeat, as
    a machine that others use has it; `bursts` slows every tenth run; `tails` is Student's with 3 degrees of freedom.
    """
    random = np.random.default_rng(5)
    shape = (COMPARISONS, repeats, 2, FIGURES)

    def draw() -> np.ndarray:
        return random.standard_t(3, shape) / math.sqrt(3) if noise == "tails" else random.standard_normal(shape)

    runs = deviation * math.sqrt(0.5) * (draw() + draw()[..., :1])
    if noise == "drift":
        runs += 5 * deviation * random.standard_normal((COMPARISONS, repeats, 1, 1))
    if noise == "bursts":
        runs += 3 * deviation * random.exponential(1, (*shape[:3], 1)) * (random.random((*shape[:3], 1)) < 0.1)
    differences = runs[:, :, 1] - runs[:, :, 0] + slower
    found = 0
    for comparison in differences:
        chances = [Mean.of(comparison[:, figure].tolist()).chance for figure in range(FIGURES)]
        found += any(decision.differs for decision in holm(chances))
    return found / COMPARISONS


@pytest.mark.parametrize("noise", ["plain", "drift", "bursts", "tails"])
@pytest.mark.parametrize("repeats", [3, 6])
def test_equal_sides_differ_in_at_most_one_comparison_of_twenty(noise: str, repeats: int) -> None:
    allowed = ERROR_RATE + 3 * math.sqrt(ERROR_RATE * (1 - ERROR_RATE) / COMPARISONS)
    assert comparisons(noise, repeats, 0.03, 0.0) <= allowed


@pytest.mark.parametrize(
    ("noise", "repeats", "deviation"),
    [("plain", 4, 0.02), ("plain", 6, 0.035), ("drift", 6, 0.035), ("tails", 6, 0.03), ("bursts", 8, 0.015)],
)
def test_ten_percent_slower_is_found_in_19_comparisons_of_20(noise: str, repeats: int, deviation: float) -> None:
    assert comparisons(noise, repeats, deviation, SLOWER) >= 0.95


def test_two_repeats_find_little_and_claim_nothing() -> None:
    assert comparisons("plain", 2, 0.03, SLOWER) < 0.3


def test_the_smallest_difference_that_is_found_is_found_that_often() -> None:
    """With one figure, by simulation: the formula is near the power it names."""
    random = np.random.default_rng(3)
    repeats, deviation = 6, 0.04
    true = smallest_found(deviation / math.sqrt(repeats), repeats, 1, power=0.9)
    runs = true + deviation * random.standard_normal((4000, repeats))
    power = np.mean([Mean.of(row).chance <= ERROR_RATE for row in runs.tolist()])
    assert power == pytest.approx(0.9, abs=0.03)


@given(st.floats(0.001, 0.1), st.floats(0.05, 0.5), st.integers(1, 8))
def test_the_repeats_needed_are_the_least(deviation: float, difference: float, figures: int) -> None:
    repeats = repeats_needed(deviation, difference, figures)
    assert repeats is not None
    assert smallest_found(deviation / math.sqrt(repeats), repeats, figures) <= difference
    if repeats > 2:
        assert smallest_found(deviation / math.sqrt(repeats - 1), repeats - 1, figures) > difference


def test_some_differences_cannot_be_found() -> None:
    assert repeats_needed(10.0, 0.001, 6) is None
