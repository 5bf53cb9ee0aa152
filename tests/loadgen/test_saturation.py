"""A queue that grows is told from one that only wanders. benchmarks/saturation.py has it over many loads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.saturation import Server, found_at, samples
from loadgen.saturation import Sample, find_saturation

SERVER = Server(slots=16, answer=5.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_a_queue_that_holds(load: float, seed: int) -> None:
    assert found_at(SERVER, load, seed, 600) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("load", "latest"), [(1.5, 180), (3.0, 60)])
def test_a_queue_that_grows(load: float, latest: float, seed: int) -> None:
    moment = found_at(SERVER, load, seed, 600)
    assert moment is not None
    assert 40 <= moment <= latest


def line(seconds: int, unanswered: float, ttft: float, jitter: int = 1) -> list[Sample]:
    """Two answers a second: what is unanswered, and their TTFT, grow evenly but for a jitter of the first."""
    told = [Sample(0.0, 0, 0.0, 0)]
    for second in range(1, seconds + 1):
        total = told[-1].ttft_total + 2 * (1 + ttft * second)
        told.append(Sample(float(second), int(unanswered * second) + second % 3 % 2 * jitter, total, 2 * second))
    return told


def test_what_was_found_is_told() -> None:
    found = find_saturation(line(50, unanswered=2.0, ttft=0.5))
    assert found is not None
    assert [found.seconds, found.unanswered, found.ttft] == pytest.approx([40.0, 2.0, 0.5], rel=0.05)
    assert str(found).startswith("over the last 40 s unanswered requests grew by 2 a second, TTFT by 0.5 s a second")


@pytest.mark.parametrize(
    ("unanswered", "ttft"),
    [
        (2.0, 0.0),  # a server that fills up: many in flight, none waits longer
        (2.0, 0.015),  # so little that it may be the batch that grows
        (0.0, 0.5),  # longer prompts: slower, but not behind
        (-1.0, -0.5),  # a queue that empties
    ],
)
def test_both_must_grow(unanswered: float, ttft: float) -> None:
    assert find_saturation(line(100, unanswered, ttft)) is None


def test_too_early_to_tell() -> None:
    assert find_saturation(line(39, unanswered=2.0, ttft=0.5)) is None
    assert find_saturation([]) is None


def test_a_server_that_answers_nothing_has_no_ttft_to_judge_by() -> None:
    assert find_saturation([Sample(float(second), 4 * second, 0.0, 0) for second in range(100)]) is None


@settings(deadline=None)
@given(st.integers(0, 3), st.sampled_from([0.9, 1.5]), st.floats(0, 1e5), st.integers(0, 1000))
def test_when_it_began_and_what_was_before_do_not_matter(seed: int, load: float, later: float, before: int) -> None:
    here_samples = list(samples(SERVER, load, seed, 120))
    moved = [
        replace(
            sample,
            elapsed=sample.elapsed + later,
            unanswered=sample.unanswered + before,
            ttft_total=sample.ttft_total + before,
            ttft_count=sample.ttft_count + before,
        )
        for sample in here_samples
    ]
    here, there = find_saturation(here_samples), find_saturation(moved)
    assert (here is None) == (there is None)
    if here is not None and there is not None:
        assert there.ttft == pytest.approx(here.ttft, rel=1e-6)
