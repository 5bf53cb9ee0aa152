"""What a reader is told of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_runs import write_run

from loadgen.experiments.knee import Goodput, Knee, Peak
from loadgen.experiments.sweep import Found, Over, Point, find, read_point
from loadgen.experiments.sweep_report import draw, sentences, sweep_table
from loadgen.settings import Settings

BEST = Goodput(4.0, 3.5, 3.2, 3.8)


def point(folder: Path, load: float, slo: str | None = None) -> Point:
    run = write_run(folder / f"{load}", Settings(file="t.jsonl", slo=slo), requests=30, rate=load)
    return read_point(load, run, Over.RATE)


def test_the_table_has_a_line_for_each_load(tmp_path: Path) -> None:
    plain = sweep_table(find([point(tmp_path, load) for load in (2.0, 1.0)]), Over.RATE)
    assert [row[0] for row in plain.rows] == ["1", "2"]
    limited = sweep_table(find([point(tmp_path, load, "ttft=1s") for load in (3.0, 4.5)]), Over.RATE)
    assert limited.columns[-2:] == ("within", "good")
    narrow = sweep_table(find([point(tmp_path, 5.0)]), Over.CONCURRENCY, narrow=True)
    assert len(narrow.columns) == len(plain.columns) - 2
    for table in (plain, limited, narrow):
        assert all(len(row) == len(table.columns) for row in table.rows)


@pytest.mark.parametrize(
    ("knee", "said"),
    [
        (None, "Knee: not found, nothing was completed."),
        (Knee(4, None, None), "Knee: not found, it takes at least three loads."),
        (Knee(4, 2, None), "Knee: not found up to 4 sessions/s; throughput / latency still rises there."),
        (Knee(1, None, 2), "Knee: below 2 sessions/s, the second load; throughput / latency falls from the first on."),
        (Knee(3.1234, 2, 4), "Knee: at about 3.12 sessions/s, between 2 and 4;"),
    ],
)
def test_the_knee_in_words(knee: Knee | None, said: str) -> None:
    (line,) = sentences(Found((), knee, None), Over.RATE)
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("peak", "said"),
    [
        (None, "Most goodput: none, no request met the limits at any load."),
        (
            Peak(BEST, 3, 5),
            "(95 %, near saturation 75 %: 3.200 to 3.800) at 4 sessions/s; the peak is between 3 and 5.",
        ),
        (Peak(BEST, None, None), "no other load can be told from it."),
        (Peak(BEST, 3, None), "the peak is above 3, and may be beyond the highest load."),
        (Peak(BEST, None, 5), "the peak is below 5, and may be under the lowest load."),
    ],
)
def test_the_peak_in_words(tmp_path: Path, peak: Peak | None, said: str) -> None:
    limited = point(tmp_path, 4.0, "ttft=1s")
    _, line = sentences(Found((limited,), None, peak), Over.RATE)
    assert line.endswith(said)


def test_plots_of_several_loads(tmp_path: Path) -> None:
    pictures = list(draw(find([point(tmp_path, load, "ttft=1s") for load in (1.0, 4.0, 16.0)]), Over.RATE, 80, False))
    assert [name for name in ("E2E (ms)", "TTFT (ms)", "turns/s") if any(name in one.plain for one in pictures)] == [
        "E2E (ms)",
        "TTFT (ms)",
        "turns/s",
    ]
    assert all(len(line) <= 80 for one in pictures for line in one.plain.splitlines())
    assert "within the limits" in pictures[-1].plain


def test_one_load_is_no_curve(tmp_path: Path) -> None:
    assert list(draw(find([point(tmp_path, 1.0)]), Over.RATE, 80, False)) == []
