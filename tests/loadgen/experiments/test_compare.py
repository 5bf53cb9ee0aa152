"""A comparison from files to verdicts, on simulated runs whose difference is known."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from simulated_runs import write_run

from loadgen.experiments.compare import (
    Repeat,
    comparison,
    interleaved,
    ratios,
    read_repeat,
    typical,
    verdicts,
)
from loadgen.experiments.sides import Side
from loadgen.results.run_file import RunFile
from loadgen.settings import Settings

SETTINGS = Settings(file="t.jsonl")
SIDES = (Side("a", SETTINGS), Side("b", SETTINGS))


async def measured(folder: Path, repeats: int, slower: float = 1.0, seed: int = 0, **more: Any) -> list[Repeat]:
    """Simulated repeats of a side and one that is slower by a factor."""
    seeds = itertools.count(seed * 1000)

    async def measure(side: Side, repeat: int, path: Path) -> RunFile:
        factor = slower if side is SIDES[1] else 1.0
        return write_run(path, side.settings, seed=next(seeds), slower=factor, overwrite=True, **more)

    runs: tuple[list[RunFile], list[RunFile]] = ([], [])
    async for index, run in interleaved(SIDES, repeats, folder, measure):
        runs[index].append(run)
    return [read_repeat(a, b) for a, b in zip(*runs, strict=True)]


async def test_sides_take_turns(tmp_path: Path) -> None:
    asked = []

    async def measure(side: Side, repeat: int, path: Path) -> RunFile:
        asked.append((side.name, repeat, path.name))
        return write_run(path, requests=1)

    indexes = [index async for index, _ in interleaved(SIDES, 3, tmp_path, measure)]
    assert indexes == [0, 1, 1, 0, 0, 1]
    assert asked == [
        ("a", 1, "a-1.jsonl"),
        ("b", 1, "b-1.jsonl"),
        ("b", 2, "b-2.jsonl"),
        ("a", 2, "a-2.jsonl"),
        ("a", 3, "a-3.jsonl"),
        ("b", 3, "b-3.jsonl"),
    ]


def test_changes_are_of_the_same_requests(tmp_path: Path) -> None:
    """Without noise or a queue a request's latency scales as its server, whatever else the runs had."""
    a = write_run(tmp_path / "a", noise=0, rate=0.01, requests=9)
    b = write_run(tmp_path / "b", noise=0, rate=0.01, requests=7, slower=1.25, failed=2)
    repeat = read_repeat(a, b)
    for name in ("ttft_scheduled", "tpot", "e2el_scheduled"):
        assert repeat.changes[name] == pytest.approx(math.log(1.25), abs=1e-4)
    assert repeat.changes["p99_e2el_scheduled_ms"] is None  # it is among B's failures
    assert repeat.changes["failed_share"] == pytest.approx(2 / 7)
    assert repeat.changes["slo_attainment"] is None


def test_the_window_of_a_run_holds_for_its_requests(tmp_path: Path) -> None:
    settings = Settings(file="t.jsonl", warmup="8")
    a = write_run(tmp_path / "a", settings, noise=0, rate=0.01, requests=9)
    b = write_run(tmp_path / "b", settings, noise=0, rate=0.01, requests=9, slower=2)
    repeat = read_repeat(a, b)
    assert repeat.a["summary"]["completed"] == 1
    assert repeat.changes["tpot"] == pytest.approx(math.log(2), abs=1e-4)


async def test_a_slower_side_is_told_with_its_uncertainty(tmp_path: Path) -> None:
    repeats = await measured(tmp_path, 6, slower=1.1, rate=0.3)
    found = {verdict.figure: verdict for verdict in verdicts(repeats)}
    assert found.keys() == {
        *("output_throughput", "ttft_scheduled", "p99_ttft_scheduled_ms", "tpot"),
        *("e2el_scheduled", "p99_e2el_scheduled_ms"),
    }
    for name in ("ttft_scheduled", "tpot", "e2el_scheduled"):
        verdict = found[name]
        assert verdict.differs
        assert verdict.low is not None
        assert verdict.high is not None
        assert 0 < verdict.low < verdict.high < 0.25
        assert verdict.change == pytest.approx(0.1, abs=0.04)
        assert verdict.b == pytest.approx(verdict.a * 1.1, rel=0.06)  # type: ignore[operator]


@pytest.mark.parametrize(("slower", "least", "most"), [(1.0, 0, 3), (1.1, 28, 30)])
async def test_error_rates_from_files_to_verdicts(tmp_path: Path, slower: float, least: int, most: int) -> None:
    """Of 30 comparisons; the intervals, of 95 % or more, hold what is true in nearly all of them."""
    finds = holds = 0
    for seed in range(1, 31):
        found = verdicts(await measured(tmp_path, 6, slower, seed, requests=12))
        finds += any(verdict.differs for verdict in found)
        (tpot,) = (verdict for verdict in found if verdict.figure == "tpot")
        assert tpot.low is not None
        assert tpot.high is not None
        holds += tpot.low <= slower - 1 <= tpot.high
    assert least <= finds <= most
    assert holds >= 27


@pytest.mark.parametrize("repeats", [1, 2])
async def test_too_few_repeats_give_ratios_and_no_verdict(tmp_path: Path, repeats: int) -> None:
    (verdict, *_) = verdicts(await measured(tmp_path, repeats, slower=2.0))
    assert (verdict.differs, verdict.low) == (None, None)
    assert verdict.change is not None
    assert verdict.untold == "fewer than 3 repeats tell too little of its uncertainty"


async def test_equal_runs_differ_in_nothing(tmp_path: Path) -> None:
    repeats = await measured(tmp_path, 3, noise=0)
    for verdict in verdicts(repeats):
        assert (verdict.change, verdict.differs, verdict.low, verdict.high) == (0, False, 0, 0)
        assert verdict.repeats_for_5_percent == 2


async def test_failures_and_limits_are_compared_by_points(tmp_path: Path) -> None:
    limited = Settings(file="t.jsonl", slo="ttft=10s")
    runs = [
        (
            write_run(tmp_path / f"a{number}", limited, seed=number),
            write_run(tmp_path / f"b{number}", limited, seed=number + 9, failed=3 + number % 2),
        )
        for number in range(4)
    ]
    found = {verdict.figure: verdict for verdict in verdicts([read_repeat(a, b) for a, b in runs])}
    failed, met = found["failed_share"], found["slo_attainment"]
    assert failed.points
    assert failed.differs
    assert failed.change == pytest.approx(3.5 / 40)
    assert met.change == pytest.approx(-3.5 / 40)
    assert met.differs
    tail = found["p99_ttft_scheduled_ms"]
    assert (tail.change, tail.differs) == (None, None)
    assert tail.untold == "a side has none, or it is among its failed requests"


def test_ratios() -> None:
    a = {
        "summary": {"x": 2, "y": 0.5, "zero": 0, "gone": None, "name": "m", "ok": True, "only_a": 1},
        "engine": {"n": 4},
    }
    b = {
        "summary": {"x": 6, "y": 0.25, "zero": 3, "gone": 1.0, "name": "m", "ok": True},
        "engine": {"n": 4, "only_b": 1},
    }
    assert ratios(a, b) == {"summary": {"x": 3.0, "y": 0.5, "zero": None, "gone": None}, "engine": {"n": 1.0}}


def test_a_side_without_an_engine() -> None:
    assert ratios({"engine": None}, {"engine": {"n": 1}}) == {}


def test_nothing_in_common_is_left_out() -> None:
    assert ratios({"failures": {"HTTP error": 1}, "n": 1}, {"failures": {}, "n": 2}) == {"n": 2.0}


def test_a_typical_document_has_the_median_of_every_number() -> None:
    documents = [
        {"n": 1, "x": 1.0, "name": "m", "ok": True, "gone": None, "list": [1], "deep": {"y": 3.0}, "late": None},
        {"n": 2, "x": 2.0, "name": "other", "ok": False, "gone": None, "list": [2], "deep": {"y": 1.0}, "late": 5.0},
        {"n": 9, "x": 9.0, "name": "m", "ok": True, "gone": None, "list": [3], "deep": {"y": 2.0}, "late": 7.0},
        {"n": 9, "x": 4.0, "name": "m", "ok": True, "gone": None, "list": [3], "deep": None, "late": 7.0},
    ]
    assert typical(documents) == {
        "n": 2,
        "x": 3.0,
        "name": "m",
        "ok": True,
        "gone": None,
        "list": [1],
        "deep": {"y": 2.0},
        "late": 7.0,
    }


def test_a_side_tells_what_is_alike_once() -> None:
    documents = [
        {"warnings": ["late by 3.5 ms"], "notes": []},
        {"warnings": ["late by 12 ms", "torn"], "notes": ["First failure: x"]},
        {"warnings": [], "notes": ["First failure: x"]},
    ]
    assert typical(documents) == {
        "warnings": ["late by 3.5 ms (the like in 1 more of 3 repeats)", "torn"],
        "notes": ["First failure: x (the like in 1 more of 3 repeats)"],
    }


async def test_the_document_keeps_its_shape(tmp_path: Path) -> None:
    document = comparison(await measured(tmp_path, 2, slower=1.5), "as it was")
    assert document.keys() == {"a", "b", "ratio", "conditions", "repeats", "verdicts", "tails"}
    for part in ("summary", "engine"):
        for name, quotient in document["ratio"][part].items():
            if quotient is not None:
                assert quotient == pytest.approx(document["b"][part][name] / document["a"][part][name])
    assert document["a"]["summary"]["completed"] == 40
    assert len(document["repeats"]) == 2
    assert {verdict["figure"] for verdict in document["verdicts"]} >= {"tpot", "output_throughput"}


def test_a_document_of_one_side_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    alone = read_repeat(run, run).a
    document = comparison([], "as it was", alone)
    assert (document["a"], document["b"], document["ratio"], document["verdicts"]) == (alone, None, {}, [])
    assert comparison([], "as it was")["a"] is None
