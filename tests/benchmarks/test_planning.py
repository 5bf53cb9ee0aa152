"""What a plan is held against is counted as it is meant, and its verdict is that of its figures."""

from __future__ import annotations

import argparse
import json

import msgspec
import pytest

from benchmarks.planning import (
    CALIBRATED,
    ROUGHLY,
    WAYS,
    CannotMeasure,
    Compared,
    Figures,
    measured,
    outside,
    predict,
    predicted,
    report,
    sessions,
)
from engine.protocol import Arrived, EngineInfo
from engine.simulator.runner import StepCost
from tests.engine.cluster.records import record
from tests.loadgen.results.sample_runs import completed, failed, write_run

FIGURES = Figures(100.0, 0.1, 0.2, 0.4, 0.01, 0.05, 5_000)
COST = StepCost(step=0.01, token=0.0003)


def compared(**changes: object) -> Compared:
    one = Compared("two", COST, 900, 1.0, 0.1, 0.01, 5.0, 88, 0.7, 0.2, FIGURES, FIGURES, 44, 210.0, 200.0)
    return msgspec.structs.replace(one, **changes)


def told(*found: Compared) -> str:
    return report(found, argparse.Namespace(model="tiny", seconds=60.0))


def test_sessions_come_as_far_apart_as_in_the_trace_and_begin_at_once(tmp_path) -> None:
    head, *lines = sessions(7, 60.0, tmp_path / "some.jsonl").read_text().splitlines()
    arrivals = [json.loads(line)["arrival"] for line in lines]
    assert "systems" in json.loads(head)
    assert arrivals[0] == 0.0
    assert len(arrivals) > 3
    assert arrivals[-1] <= 60.0
    earlier = sessions(6, 60.0, tmp_path / "all.jsonl").read_text().splitlines()[2:4]
    assert [json.loads(line)["session"] for line in earlier] == [json.loads(line)["session"] for line in lines[:2]]
    begin = json.loads(earlier[0])["arrival"]
    assert [json.loads(line)["arrival"] - begin for line in earlier] == pytest.approx(arrivals[:2])


def test_a_run_is_measured_from_when_its_requests_were_due(tmp_path) -> None:
    found = measured(write_run(tmp_path / "run.jsonl", [completed(0), completed(1, sent=3.0, tokens=5)]))
    assert found.ttft_p50 == pytest.approx(0.75)  # sent a quarter of a second late, and half a second to the first text
    assert found.itl_p50 == pytest.approx(0.2)
    assert found.output_tokens_per_second == pytest.approx(8 / 3.25)
    assert found.prompt_tokens == 10
    with pytest.raises(CannotMeasure, match="1 of 2 requests failed"):
        measured(write_run(tmp_path / "other.jsonl", [completed(), failed()]))


def test_a_slower_engine_is_predicted_to_be_slower(tmp_path) -> None:
    info = EngineInfo(
        model="tiny", dtype="float32", device="cpu", block_size=16, num_blocks=4_000, kv_bytes_per_token=512,
        max_model_len=4_096, version="0.1.0",
    )  # fmt: skip
    trace = sessions(0, 100.0, tmp_path / "some.jsonl")
    quick, slow = (
        predicted([predict(trace, WAYS[1], msgspec.structs.replace(COST, step=step), info, 100.0)], 0.0)
        for step in (0.01, 0.03)
    )
    assert slow.itl_p50 > 2 * quick.itl_p50
    assert slow.ttft_p90 > quick.ttft_p90
    assert slow.output_tokens_per_second < quick.output_tokens_per_second


def test_what_passes_outside_the_engines_is_told_of_as_many_requests(tmp_path) -> None:
    run = write_run(tmp_path / "run.jsonl", [completed(0), completed(1, sent=3.0)])  # 0.75 s each
    records = [
        [record(1, "decode", time=came + seconds, arrived=(Arrived("r0", 40, 8, came),))]
        for came, seconds in ((10.0, 0.5), (12.0, 0.7))
    ]
    assert outside(run, records) == pytest.approx(0.15)
    with pytest.raises(ValueError, match="the client has 2 first tokens, and the engines' records 1"):
        outside(run, records[:1])


def test_the_verdict_is_that_of_throughput_and_ttft_p90() -> None:
    near = msgspec.structs.replace(FIGURES, ttft_p90=0.229, itl_p99=0.5)
    text = told(compared(), compared(predicted=near))
    assert "are off by 5.0% in the median and 14.5% at most; aim 15%: met." in text
    assert "210.0, 200.0 (+5.0%)" in text
    for missed in (
        compared(predicted=msgspec.structs.replace(FIGURES, ttft_p90=0.24)),
        compared(predicted=msgspec.structs.replace(FIGURES, output_tokens_per_second=80.0)),
        compared(full_predicted=240.0),
    ):
        assert "**missed**" in told(missed)


def test_sessions_that_are_kept_for_something_else_are_not_taken(tmp_path) -> None:
    for first in (0, ROUGHLY, CALIBRATED):
        with pytest.raises(CannotMeasure, match=f"from session {first} on that are for this, and 9,000 are asked for"):
            sessions(first, 9_000.0, tmp_path / "some.jsonl")
    lines = sessions(ROUGHLY, 60.0, tmp_path / "some.jsonl").read_text().splitlines()[1:]
    assert {json.loads(line)["session"] for line in lines} <= {
        f"s{number + 1:04}" for number in range(ROUGHLY, CALIBRATED)
    }
