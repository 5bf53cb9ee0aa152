"""Ratios are taken within a round, and a round that lacks one side counts for nothing."""

from __future__ import annotations

import pytest

from benchmarks.aims import Aim, aims, memory_allowed
from benchmarks.figures import Spread, computed_share, rate, ratio, seconds, spread, token_seconds
from benchmarks.messages import Facts, Run, Settings

# A machine that gets slower from round to round: each side alone says little, their ratio in a round is the same.
ROUNDS = [
    {"offline": Run(10.0, 100, 0.02), "floor": Run(8.0, 100, 0.015)},
    {"offline": Run(20.0, 100, 0.04), "floor": Run(15.0, 100, 0.03)},
    {"offline": Run(30.0, 100, 0.06)},
]
SETTINGS = Settings("tiny", "auto", 512 << 20, 512)
FACTS = Facts(vocab_size=259, max_model_len=2048, weight_bytes=270_000_000, kv_bytes_per_token=1, dtype="bfloat16")


def test_a_ratio_is_of_the_same_round():
    assert ratio(ROUNDS, "floor", "offline", seconds) == Spread(0.775, 0.75, 0.8, 2)
    assert ratio(ROUNDS, "floor", "offline", token_seconds) == Spread(0.75, 0.75, 0.75, 2)
    assert ratio(ROUNDS, "offline", "nobody", rate) is None


def test_a_spread_is_of_the_rounds_that_have_the_value():
    assert spread(ROUNDS, "offline", seconds) == Spread(20.0, 10.0, 30.0, 3)
    assert spread(ROUNDS, "floor", rate) == Spread(pytest.approx((12.5 + 100 / 15) / 2), 100 / 15, 12.5, 2)
    assert spread([{"http": Run(1.0, 1)}], "http", token_seconds) is None


def test_computed_tokens_are_told_by_those_that_know_them():
    assert computed_share(Run(1.0, 1, prefill_tokens=110, distinct_tokens=100)) == 1.1
    assert computed_share(Run(1.0, 1)) is None


@pytest.mark.parametrize(
    ("sense", "median", "met"), [("at least", 0.7, True), ("at least", 0.69, False), ("at most", 0.71, False)]
)
def test_an_aim_is_judged_by_the_median(sense, median, met):
    assert Aim("burst", "", 0.7, sense, Spread(median, 0.1, 0.9, 3)).met is met
    assert Aim("burst", "", 0.7, sense, None).met is None


def test_each_aim_finds_its_figures():
    run = Run(10.0, 100, 0.02, prefill_tokens=102, distinct_tokens=100)
    everyone = ("offline", "floor", "static", "http", "generate", "my-vLLM", "llama.cpp")
    works = {work: [dict.fromkeys(everyone, run)] for work in ("burst", "single", "ragged", "shared-prefix")}
    quantized = Settings("tiny", "auto", 512 << 20, 512, "int8")
    found = aims(works, everyone, quantized, FACTS, 1 << 30)
    assert len(found) == 12
    assert all(aim.measured is not None for aim in found)
    medians = {aim.text: aim.measured.median for aim in found}
    assert medians.pop("prefill tokens computed / distinct") == 1.02
    assert medians.pop("offline, int8, time per token") == 20.0
    assert medians.pop("peak of the engine's processes") == 1024
    assert set(medians.values()) == {1.0}
    alone = aims({"burst": [{"offline": run}]}, (), SETTINGS, FACTS, None)
    assert len(alone) == 10
    assert all(aim.measured is None and aim.met is None for aim in alone)


def test_memory_is_allowed_by_weights_and_pool():
    assert memory_allowed(SETTINGS, FACTS) == 1.3 * 270e6 + (512 << 20) + 700e6
