"""What watchers cost: ratios within a round, CPU time for each token, and watchers that are what they are called."""

from __future__ import annotations

import os

import msgspec
import pytest
from rich.console import Console

from benchmarks.attached import Burst, decode_step, figures, table
from benchmarks.figures import Spread
from benchmarks.watchers import _ticks, cpu_seconds, watchers

# A machine that gets slower: each side alone says little, their ratio in a round is the same.
ROUNDS = [
    {"0": Burst(1000, 10.0, 0.1, 8.0, 1.0, 0.0), "10": Burst(1000, 12.5, 0.125, 8.4, 2.0, 10.0)},
    {"0": Burst(1000, 20.0, 0.2, 16.0, 2.0, 0.0), "10": Burst(1000, 25.0, 0.25, 16.8, 4.0, 20.0)},
    {"0": Burst(1000, 40.0, None, 32.0, 4.0, 0.0)},
]


def test_ratios_are_to_nobody_in_the_same_round():
    ten = figures(ROUNDS, "10")
    assert ten.rate == Spread(60.0, 40.0, 80.0, 2)
    assert ten.rate_ratio == Spread(0.8, 0.8, 0.8, 2)
    assert ten.step_ratio == Spread(1.25, 1.25, 1.25, 2)
    assert ten.core_cpu == Spread(pytest.approx(0.0126), pytest.approx(0.0084), pytest.approx(0.0168), 2)
    assert ten.core_cpu_ratio.median == pytest.approx(1.05)
    assert ten.server_cpu_ratio.median == pytest.approx(2.0)
    assert ten.screens_cores == Spread(0.8, 0.8, 0.8, 2)
    nobody = figures(ROUNDS, "0")
    assert (nobody.rate.rounds, nobody.step_ratio.rounds) == (3, 2)
    assert figures(ROUNDS, "1") is None


def test_without_nobody_there_are_no_ratios():
    alone = figures([{"1": ROUNDS[0]["10"]}], "1")
    assert (alone.rate_ratio, alone.core_cpu_ratio) == (None, None)
    assert alone.rate.median == 80.0


def test_the_table_has_a_column_for_each():
    found = {kind: figures(ROUNDS, kind) for kind in ("0", "10")}
    reader = msgspec.structs.replace(found["10"], screens_cores=Spread(0.0, 0.0, 0.0, 2))
    console = Console(record=True, width=120)
    console.print(table({**found, "reader": reader}))
    rows = [line.split("│") for line in console.export_text().splitlines() if "│" in line]
    cells = {row[1].strip(): [cell.strip() for cell in row[2:5]] for row in rows}
    assert cells["output tokens/s"] == ["50.0 (25.0..100)", "60.0 (40.0..80.0)", "60.0 (40.0..80.0)"]
    assert cells["screens, CPUs busy"] == ["0.00 (0.00..0.00)", "0.80 (0.80..0.80)", "—"]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("0,1,10", ("0", "1", "10")), ("0, reader,stopped", ("0", "reader", "stopped")), ("1,1,0", ("1", "0"))],
)
def test_kinds_of_watchers(text, kinds):
    assert watchers(text) == kinds


@pytest.mark.parametrize("text", ["", "0,", "-1", "101", "1.5", "many", "0,²"])
def test_what_is_no_kind_is_named(text):
    with pytest.raises(ValueError, match="numbers from 0 to 100, reader or stopped"):
        watchers(text)


def test_a_step_is_between_two_that_decode_the_largest_batch():
    def record(time, *kinds):
        return {"time": time, "rows": [{"kind": kind} for kind in kinds]}

    full = ["decode"] * 3
    records = [record(0.0, "prefill"), record(1.0, "prefill", *full), record(2.0, *full), record(2.5, *full)]
    records += [record(3.5, *full), record(9.0, *full[:2]), record(20.0)]
    assert decode_step(records) == 0.75
    assert decode_step(records[:3]) is None
    assert decode_step([]) is None


def test_cpu_time_is_the_systems_count():
    before = os.times()
    used = cpu_seconds([os.getpid(), 1 << 30])  # the other is gone
    after = os.times()
    assert before.user + before.system - 0.03 <= used <= after.user + after.system + 0.03  # both count in hundredths


def test_a_name_with_parentheses_does_not_confuse():
    assert _ticks("12 (a) b (c) S " + " ".join(str(number) for number in range(4, 53))) == 14 + 15
