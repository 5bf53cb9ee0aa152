"""Samples of keys, and what is estimated from them."""

from __future__ import annotations

import numpy as np
import pytest

from loadgen.inspection.sampling import Distinct, Estimate, Sampling, name_keys


def test_half_as_many_are_taken_each_time_and_all_of_them_were_before() -> None:
    sampling, keys = Sampling(), name_keys(map(str, range(10_000)))
    before = set(range(10_000))
    for halvings in range(4):
        taken = set(sampling.taken(keys).tolist())
        assert taken <= before
        assert len(taken) == pytest.approx(10_000 / 2**halvings, rel=0.1)
        assert sampling.weight == 2**halvings
        assert {at for at, key in enumerate(keys.tolist()) if key < sampling.limit} == taken
        before = taken
        sampling.halve()


def test_a_sum_of_everything_is_exact() -> None:
    estimate = Estimate()
    estimate.add(np.array([1, 2, 3]), 1)
    assert (estimate.total, estimate.standard_error) == (6, 0)


def test_the_error_is_as_large_as_estimates_differ() -> None:
    values, random = np.arange(1, 201), np.random.default_rng(1)
    estimates = []
    for _ in range(2000):
        estimate = Estimate()
        estimate.add(values[random.random(200) < 0.25], 4)
        estimates.append((estimate.total, estimate.standard_error))
    totals, errors = np.array(estimates).T
    assert totals.mean() == pytest.approx(values.sum(), rel=0.01)
    assert errors.mean() == pytest.approx(totals.std(), rel=0.05)


def test_different_names_are_counted_exactly_while_there_are_few() -> None:
    distinct = Distinct(1000)
    for at in range(0, 900, 30):
        distinct.add(name_keys([f"chat {number}" for number in range(at, at + 100)]))
    assert (distinct.count.total, distinct.count.standard_error) == (970, 0)


def test_and_by_a_sample_when_there_are_many() -> None:
    distinct = Distinct(1000)
    for at in range(0, 50_000, 500):
        distinct.add(name_keys([f"chat {number}" for number in range(at, at + 1000)]))
    count = distinct.count
    assert 0 < count.standard_error < 0.05 * count.total
    assert abs(count.total - 50_500) < 4 * count.standard_error
