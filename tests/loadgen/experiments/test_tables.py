"""What a reader is told of verdicts."""

from __future__ import annotations

import pytest

from loadgen.experiments.compare import Verdict
from loadgen.experiments.tables import explanation, findings, verdict_table

NAMES = ("old", "new")
SHORTER = Verdict(
    figure="tpot",
    title="TPOT",
    a=20.0,
    b=17.6,
    change=-0.12,
    low=-0.16,
    high=-0.08,
    error_rate=0.025,
    chance=0.001,
    differs=True,
    found_from=0.05,
    repeats_for_5_percent=9,
)
ALIKE = Verdict(
    figure="output_throughput",
    title="output tokens/s",
    a=100.0,
    b=100.4,
    change=0.004,
    low=-0.03,
    high=0.04,
    error_rate=0.05,
    chance=0.7,
    differs=False,
    found_from=0.061,
    repeats_for_5_percent=8,
)
TIMES = Verdict(
    figure="ttft_scheduled", title="TTFT", a=100.0, b=850.0, change=7.5, low=6.9, high=8.1, differs=True, found_from=0.2
)
POINTS = Verdict(
    figure="failed_share",
    title="turns failed",
    a=0.0,
    b=0.075,
    points=True,
    change=0.075,
    low=0.01,
    high=0.14,
    differs=True,
)
UNTOLD = Verdict(figure="p99_ttft_scheduled_ms", title="TTFT, p99", a=None, b=3.0, untold="among failed requests")


def test_findings_in_sentences() -> None:
    assert findings([ALIKE, SHORTER, TIMES, POINTS, UNTOLD], NAMES) == [
        "new differs from old:",
        "  TPOT: 12 % shorter (8.0 to 16 %)",
        "  TTFT: 8.5 times as long (7.9 to 9.1)",
        "  turns failed: 7.5 points more (1.0 to 14 points)",
        "No difference found in:",
        "  output tokens/s: between 3.0 % fewer and 4.0 % more",
        "  TTFT, p99: not told, among failed requests",
    ]


def test_no_difference_is_no_proof_of_none() -> None:
    """It says between what the difference lies."""
    assert findings([ALIKE], NAMES) == [
        "No difference found between old and new.",
        "  output tokens/s: between 3.0 % fewer and 4.0 % more",
    ]


def test_too_few_repeats_have_no_verdict() -> None:
    (line,) = findings([UNTOLD], NAMES)
    assert line.startswith("No verdict: fewer than 3 repeats")


def test_the_table_has_a_line_for_each_figure() -> None:
    table = verdict_table([ALIKE, SHORTER, TIMES, POINTS, UNTOLD])
    assert table.rows == (
        ("output tokens/s", "100.0", "100.4", "+0.4 %", "-3.0 to +4.0 %", "no", "6.1 %"),
        ("TPOT (ms)", "20.0", "17.6", "-12 %", "-16 to -8.0 %", "yes", "5.0 %"),
        ("TTFT (ms)", "100.0", "850.0", "x 8.5", "7.9 to 9.1", "yes", "20 %"),
        ("turns failed", "0.00%", "7.50%", "+7.5 points", "+1.0 to +14 points", "yes", "-"),
        ("TTFT, p99 (ms)", "-", "3.000", "-", "-", "-", "-"),
    )
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_explanation_says_how_many_repeats_would_be_enough() -> None:
    told = explanation([ALIKE, SHORTER, TIMES, POINTS, UNTOLD], NAMES, 6)
    assert told.startswith("A: old. B: new. A and B are medians of 6 repeats")
    assert told.endswith("about --repeat 8.")  # of what was not found
    assert "by t over the repeats, 95 to 97.5 % sure." in told
    assert "by t over the repeats, 95 % sure." in explanation([ALIKE], NAMES, 6)


@pytest.mark.parametrize("repeats", [1, 8])
def test_what_needs_no_more_repeats_asks_for_none(repeats: int) -> None:
    assert "--repeat" not in explanation([ALIKE], NAMES, repeats)
