"""What a load asks for, what it got, and what is found, on simulated runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_runs import write_run

from loadgen.experiments.knee import next_load
from loadgen.experiments.sweep import (
    Over,
    Point,
    batch_interval,
    find,
    load_of,
    named_load,
    path_of,
    read_point,
    rounded,
    settings_at,
    spread_loads,
    sweep_document,
)
from loadgen.settings import Settings

BASE = Settings(file="t.jsonl")


@pytest.mark.parametrize(
    ("arrivals", "over", "load", "expected"),
    [
        ("recorded", Over.RATE, 2.5, "poisson:2.5"),
        ("poisson:9", Over.RATE, 3, "poisson:3"),
        ("gamma:1,burstiness=0.5", Over.RATE, 3, "gamma:3,burstiness=0.5"),
        ("constant:1", Over.RATE, 3, "constant:3"),
        ("recorded", Over.USERS, 8, "users:8"),
        ("users:1,think=2s,ramp=5s", Over.USERS, 8, "users:8,think=2s,ramp=5s"),
    ],
)
def test_a_load_is_put_into_the_arrivals(arrivals: str, over: Over, load: float, expected: str) -> None:
    base = Settings(file="t.jsonl", arrivals=arrivals)
    assert settings_at(base, over, load).arrivals == expected


def test_concurrency_and_speed_leave_the_arrivals() -> None:
    at = settings_at(Settings(file="t.jsonl", arrivals="inf"), Over.CONCURRENCY, 16)
    assert (at.concurrency, at.arrivals) == (16, "inf")
    assert settings_at(BASE, Over.SPEED, 2.5).speed == 2.5


@pytest.mark.parametrize(
    ("arrivals", "over", "said"),
    [
        ("users:2", Over.RATE, "--over rate: not with arrivals 'users:2'; it goes with poisson, gamma, constant"),
        ("ramp:1..2,over=10s", Over.RATE, "--over rate: not with arrivals"),
        ("poisson:2", Over.USERS, "--over users: not with arrivals 'poisson:2', which are no closed loop"),
        ("poisson:2", Over.SPEED, "--over speed: not with arrivals 'poisson:2', which have no speed"),
    ],
)
def test_arrivals_that_say_otherwise(arrivals: str, over: Over, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings_at(Settings(file="t.jsonl", arrivals=arrivals), over, 2)


def test_loads_are_spread_in_even_ratios() -> None:
    assert spread_loads(1, 32, 6, Over.RATE) == [1, 2, 4, 8, 16, 32]
    assert spread_loads(1, 4, 9, Over.USERS) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="above 0 and below the last one, got 4 to 2"):
        spread_loads(4, 2, 3, Over.RATE)
    with pytest.raises(ValueError, match="steps: must be at least 2"):
        spread_loads(1, 2, 1, Over.RATE)
    assert named_load(3.0, Over.USERS) == 3
    with pytest.raises(ValueError, match="whole numbers of users, got 1"):
        named_load(1.5, Over.USERS)


@given(st.floats(1e-6, 1e6), st.sampled_from(Over))
def test_a_file_tells_its_load(load: float, over: Over) -> None:
    load = rounded(load, over)
    assert load_of(path_of(Path("/f"), over, load), over) == load


@pytest.mark.parametrize("name", ["rate-x.jsonl", "rate-2.0.jsonl", "users-2.jsonl", "rate-.jsonl"])
def test_other_files_are_of_no_load(name: str) -> None:
    assert load_of(Path(name), Over.RATE) is None


def simulated(folder: Path, load: float, seed: int = 0) -> Point:
    """Eight slots that take about 0.6 s for each request: a capacity of 13 a second."""
    settings = settings_at(Settings(file="t.jsonl", slo="e2e_scheduled=1200ms"), Over.RATE, load)
    path = path_of(folder, Over.RATE, load)
    run = write_run(path, settings, requests=300, rate=load, seed=seed, noise=0.01, overwrite=True)
    return read_point(load, run, Over.RATE)


def test_a_sweep_finds_knee_and_peak(tmp_path: Path) -> None:
    points = {load: simulated(tmp_path, load) for load in (2.0, 8.0)}
    while len(points) < 14:
        goodputs = [point.goodput for point in points.values() if point.goodput is not None]
        if (wanted := next_load(goodputs, 0.1, 100, 0.1)) is None:
            break
        load = rounded(wanted, Over.RATE)
        points[load] = simulated(tmp_path, load)
    found = find(list(points.values()))
    assert [point.load for point in found.points] == sorted(points)
    assert found.knee is not None
    assert found.peak is not None
    assert 7 < found.knee.load < 13
    assert 8 < found.peak.best.load < 15
    assert found.peak.best.value > 7
    document = sweep_document(found, Over.RATE, "as it was")
    assert json.loads(json.dumps(document))["max_goodput"]["best"]["load"] == found.peak.best.load
    assert [point["load"] for point in document["points"]] == sorted(points)


def test_the_uncertainty_of_goodput_holds_that_of_other_runs(tmp_path: Path) -> None:
    """The same load again, with luck of its own and other arrivals, lies within it nearly always."""
    point = simulated(tmp_path, 11.0)
    assert point.goodput is not None
    low, high = point.goodput.low, point.goodput.high
    assert 0 < low < point.goodput.value < high < 2 * point.goodput.value
    others = [simulated(tmp_path, 11.0, seed).goodput for seed in range(1, 11)]
    assert sum(low < other.value < high for other in others if other is not None) >= 8


def test_the_uncertainty_holds_although_neighbours_are_alike() -> None:
    """A rate that wanders for a tenth of the run at a time."""
    random = np.random.default_rng(0)
    holds = 0
    for _ in range(300):
        wander = [random.standard_normal() / math.sqrt(1 - 0.95**2)]
        for shock in random.standard_normal(249):
            wander.append(0.95 * wander[-1] + shock)
        counts = Counter(dict(enumerate(round(100 + 4 * one) for one in wander)))
        low, high = batch_interval(counts.total() / 250, counts, 0, 249)
        holds += low <= 100 <= high
    assert holds >= 0.89 * 300


def test_without_limits_there_is_no_goodput(tmp_path: Path) -> None:
    point = read_point(2.0, write_run(tmp_path / "r"), Over.RATE)
    assert point.goodput is None
    assert find([point]).peak is None


def test_limits_that_nothing_met(tmp_path: Path) -> None:
    settings = Settings(file="t.jsonl", slo="ttft=1ms")
    point = read_point(2.0, write_run(tmp_path / "r", settings), Over.RATE)
    assert point.goodput is not None
    assert (point.goodput.value, point.goodput.low) == (0, 0)
    assert point.goodput.high == pytest.approx(3 / point.document["summary"]["duration"])


def test_a_run_too_short_for_batches_has_no_upper_bound(tmp_path: Path) -> None:
    settings = Settings(file="t.jsonl", slo="ttft=10s")
    point = read_point(2.0, write_run(tmp_path / "r", settings, requests=2, rate=50), Over.RATE)
    assert point.goodput is not None
    assert (point.goodput.low, point.goodput.high) == (0, math.inf)


def test_a_load_of_which_nothing_was_completed(tmp_path: Path) -> None:
    points = [
        read_point(load, write_run(tmp_path / f"{load}", requests=3, failed=failed), Over.RATE)
        for load, failed in ((1.0, 0), (2.0, 3))
    ]
    found = find(points)
    assert found.points[1].response is None
    assert found.knee is not None
    assert found.knee.load == 1


def test_under_a_cap_latency_is_from_sending(tmp_path: Path) -> None:
    """What waits in the client waits as long as there is anything: that says nothing of the load."""
    run = write_run(tmp_path / "r")
    by = {over: read_point(2.0, run, over).response for over in (Over.RATE, Over.CONCURRENCY)}
    summary = read_point(2.0, run, Over.RATE).document["summary"]
    for over, name in ((Over.RATE, "mean_e2el_scheduled_ms"), (Over.CONCURRENCY, "mean_e2el_ms")):
        response = by[over]
        assert response is not None
        assert response.latency == pytest.approx(summary[name] / 1000)
