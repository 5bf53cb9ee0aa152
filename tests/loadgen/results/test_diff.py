"""Differences by hand, and conditions that are read, judged or refused, but never passed unseen."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import CLIENT, completed, failed, write_run

from loadgen.cli import main
from loadgen.results.diff import ConditionError, Pair, diff_document, diff_table, pairs, parse_condition
from loadgen.results.document import document
from loadgen.results.run_file import RunEnd

END = RunEnd(at=6.0, client=CLIENT)


def figures(tmp_path: Path) -> dict[str, Pair]:
    """A: TTFT 500 ms; B: 600 ms, and one request of two failed."""
    a = write_run(tmp_path / "a.jsonl", [completed()], msgspec.structs.replace(END, engine={"steps": 4, "model": "m"}))
    b = write_run(tmp_path / "b.jsonl", [completed(chunks=(1.6, 1.7, 1.9)), failed()], END)
    return pairs(document(a), document(b))


def test_every_figure_of_both(tmp_path: Path) -> None:
    found = figures(tmp_path)
    assert (found["ttft.min"].a, found["ttft.min"].b) == pytest.approx((500.0, 600.0))
    assert found["ttft.p50"].b is None  # it falls among the failures
    assert found["failed"] == Pair(0, 1)
    assert found["engine.steps"] == Pair(4, None)
    assert found["client_cpu_share"] == Pair(0.25, 0.25)
    assert not {"engine.model", "failures", "client_is_bottleneck", "slo"} & found.keys()
    cells = {row[0]: row[1:] for row in diff_table(found, ("A", "B"), also=None).rows}
    assert cells.keys() == found.keys()
    assert cells["ttft.min"] == ("500.0", "600.0", "+100.0", "+20.0%")
    assert cells["failed"] == ("0", "1", "+1", "from 0")
    assert cells["completed"] == ("1", "1", "0", "same")
    assert cells["engine.steps"] == ("4", "-", "-", "-")


def test_what_matters_most_and_what_is_judged(tmp_path: Path) -> None:
    found = figures(tmp_path)
    table = diff_table(found, ("A", "B"), also=["engine.steps"])
    names = [row[0] for row in table.rows]
    assert {"ttft.p99", "output_throughput", "failed", "engine.steps"} <= set(names)
    assert len(names) < 40 < len(found)
    assert f"{len(found) - len(names)} more with --all." in table.caption


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("ttft.min > +10%", True),
        ("ttft.min>10%", True),
        ("ttft.min > +20.1%", False),
        ("ttft.min > 590ms", True),
        ("ttft.min > 0.61s", False),
        ("ttft.min > +90ms", True),
        ("ttft.min > +0.2s", False),
        ("ttft.min < -5%", False),
        ("ttft_scheduled.min >= 850ms", True),
        ("e2e.min <= 900 ms", True),
        ("ttft.count >= 1", True),
        ("ttft.count < 0", False),
        ("failed > 0", True),
        ("failed > +10%", True),  # from 0: any is infinitely more
        ("retries > +10%", False),  # 0 both times
        ("failed >= +1", True),
        ("output_throughput < -5%", True),
        ("total_output_tokens < 3", False),
    ],
)
def test_conditions(tmp_path: Path, condition: str, holds: bool) -> None:
    assert parse_condition(condition).holds(figures(tmp_path)) is holds


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("", "expected FIGURE, one of >= <= > <, and a number, like 'ttft.p99 > +10%'"),
        ("ttft.p99", "expected FIGURE"),
        ("ttft.p99 > ", "expected FIGURE"),
        ("ttft.p99 == 5ms", "expected FIGURE"),
        ("ttft.p99 > 5min", "expected FIGURE"),
        ("ttft.p99 > nan", "expected FIGURE"),
        ("p99.ttft > 5ms", "'p99' is no latency; allowed are ttft, tpot, itl, e2el"),
        ("ttft.p98 > 5ms", "'p98' is no statistic; allowed are mean, std, min, max, p50, p90, p95, p99, count, median"),
        ("ttft.p99 > 5", "ttft.p99 is a time: give its unit, ms or s, or % for a change"),
        ("failed > 5ms", "failed is no latency: its number has no unit, or %"),
        ("ttft.count > 5ms", "ttft.count is no latency"),
    ],
)
def test_what_cannot_be_read_is_refused(condition: str, says: str) -> None:
    with pytest.raises(ConditionError) as caught:
        parse_condition(condition)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("no_such_figure > 0", "neither run has no_such_figure; both have completed, failed"),
        ("engine.steps > +1%", "B has no engine.steps, so it cannot be told"),
        ("engine.steps > 1", "B has no engine.steps"),
        ("ttft.median > +1%", "B has no ttft.p50"),
        ("goodput < 5", "neither run has goodput"),
    ],
)
def test_what_cannot_be_told_is_no_pass(tmp_path: Path, condition: str, says: str) -> None:
    with pytest.raises(ConditionError) as caught:
        parse_condition(condition).holds(figures(tmp_path))
    assert says in str(caught.value)


numbers = st.floats(-1e6, 1e6)


@given(numbers, numbers)
def test_a_change_and_its_share_have_the_same_sign(a: float, b: float) -> None:
    pair = Pair(a, b)
    assert pair.change is not None
    assert pair.relative is not None
    if pair.change and a:
        assert math.copysign(1, pair.relative) == math.copysign(1, pair.change)
    assert Pair(a, a).relative == 0


def test_the_document_of_a_difference(tmp_path: Path) -> None:
    found = figures(tmp_path)
    judged = {condition: condition.holds(found) for condition in map(parse_condition, ["failed > 0", "retries > 0"])}
    written = json.loads(msgspec.json.encode(diff_document(found, judged)))
    assert written["figures"]["failed"] == {"a": 0, "b": 1, "change": 1, "relative": None}
    assert written["conditions"] == [
        {"condition": "failed > 0", "figure": "failed", "holds": True},
        {"condition": "retries > 0", "figure": "retries", "holds": False},
    ]
    assert written["failed"] is True


def test_a_killed_run_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(whole := tmp_path / "a.jsonl", [completed()], END)
    write_run(killed := tmp_path / "b.jsonl", [completed()])
    assert main(["diff", str(whole), str(killed), "--fail-if", "failed > 0"]) == 2
    assert f"{killed}: was killed before its end" in capsys.readouterr().err
    assert main(["diff", str(whole), str(killed)]) == 0
