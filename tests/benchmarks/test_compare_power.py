"""When a comparison was right, and what the simulations of methods say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.compare_methods import METHODS, rates
from benchmarks.compare_power import Comparison, judged, outcome
from loadgen.experiments.compare import Verdict


def document(**verdicts: tuple[float, bool]) -> dict[str, Any]:
    made = [
        Verdict(
            figure=figure,
            title=figure,
            a=1.0,
            b=1.0 + change,
            change=change,
            low=change - 0.02,
            high=change + 0.02,
            deviation=0.01,
            differs=differs,
        )
        for figure, (change, differs) in verdicts.items()
    ]
    return {"verdicts": msgspec.to_builtins(made)}


@pytest.mark.parametrize(
    ("verdicts", "differs", "slower"),
    [
        ({"tpot": (0.01, False), "output_throughput": (0.0, False)}, False, False),
        ({"tpot": (0.1, True), "output_throughput": (-0.09, True)}, True, True),
        ({"tpot": (0.1, True), "output_throughput": (0.09, True)}, True, False),
        ({"tpot": (-0.1, True), "output_throughput": (0.0, False)}, True, False),
    ],
)
def test_what_a_comparison_found(verdicts: dict[str, tuple[float, bool]], differs: bool, slower: bool) -> None:
    found = judged(document(**verdicts), "slowed")
    assert (found.differs, found.slower_found) == (differs, slower)
    assert found.tpot_deviation == 0.01


def comparison(against: str, differs: bool) -> Comparison:
    return Comparison(against, differs, differs, [], 0.1, 0.05, 0.15, 0.02)


def test_nine_of_ten_must_be_right() -> None:
    done = [comparison("same", number == 0) for number in range(10)]
    done += [comparison("slowed", number > 1) for number in range(10)]
    same, slowed = outcome(done, "same"), outcome(done, "slowed")
    assert (same.right, same.met) == (9, True)
    assert (slowed.right, slowed.met) == (8, False)
    assert slowed.repeats_for_10_percent == 4


@pytest.mark.parametrize("noise", ["plain", "drift"])
def test_only_paired_repeats_hold_their_rate_and_find(noise: str) -> None:
    """What the choice of the method rests on, at six repeats."""
    found = {method: rates(method, noise, 500, 6, 0.03) for method in METHODS}
    assert found["paired"][0] < 0.08
    assert found["paired"][1] > 0.95
    assert found["bootstrap"][0] > 0.15
    if noise == "drift":
        assert found["unpaired"][1] < 0.5
