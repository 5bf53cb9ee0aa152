"""Exports hold every request, under the names that other programs read."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import CLIENT, completed, failed, header, write_run

from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.document import Asked, Measured, measure
from loadgen.results.exports import COLUMNS, VLLM_COLUMNS, write_csv, write_vllm
from loadgen.results.run_file import RunEnd

END = RunEnd(at=6.0, client=CLIENT)
NOT_REACHED = RequestRecord(session="s9", index=9, turn=0, outcome=Outcome.NOT_REACHED)
# The keys that `vllm bench serve --save-detailed` writes (vllm/benchmarks/serve.py, 2026), but for generated texts.
VLLM = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "input_lens"),
    *("output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors"),
    *("max_output_tokens_per_s", "max_concurrent_requests"),
    *(f"{stat}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for stat in ("mean", "median", "std", "p99")),
}


def a_run(path: Path, *records: RequestRecord, asked: Asked | None = None, **settings: Any) -> Measured:
    name = path / f"{len(list(path.iterdir()))}.jsonl"
    return measure(write_run(name, records, END, header(len(records), len(records), **settings)), asked or Asked())


def rows(*runs: Measured) -> list[dict[str, str]]:
    file = io.BytesIO()
    write_csv(file, runs)
    return list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))


def vllm(run: Measured) -> dict[str, Any]:
    file = io.BytesIO()
    write_vllm(file, run)
    return json.loads(file.getvalue())  # type: ignore[no-any-return]


def test_a_line_for_each_request(tmp_path: Path) -> None:
    run = a_run(
        tmp_path, completed(finish="length"), failed(detail='400: "a",\nb'), NOT_REACHED, slo="ttft=1s", warmup="1"
    )
    first, second, third = rows(run)
    assert tuple(first) == COLUMNS
    wanted = {
        "run": "0.jsonl",
        "session": "s0",
        "part": "warm-up",
        "outcome": "completed",
        "sent_s": "1.0",
        "ttft_ms": "500.0",
        "ttft_scheduled_ms": "750.0",
        "tpot_ms": "200.0",
        "max_itl_ms": "200.0",
        "e2el_ms": "900.0",
        "send_lag_ms": "250.0",
        "output_tokens": "3",
        "token_source": "usage",
        "within_limits": "True",
        "finish_reason": "length",
        "server": "vllm 0.11.0",
    }
    assert {name: first[name] for name in wanted} == wanted
    assert (second["part"], second["detail"], second["ttft_ms"], second["within_limits"]) == (
        "measured",
        '400: "a",\nb',
        "",
        "False",
    )
    assert (third["outcome"], third["sent_s"]) == ("not reached before the stop", "")


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    assert [row["run"] for row in rows(a_run(tmp_path, completed()), a_run(tmp_path, completed()))] == [
        "0.jsonl",
        "1.jsonl",
    ]


def test_the_shape_of_vllm(tmp_path: Path) -> None:
    run = a_run(
        tmp_path, completed(), completed(turn=1, sent=1.5, tokens=6), failed(turn=2), arrivals="gamma:4,burstiness=0.5"
    )
    result = vllm(run)
    assert result.keys() >= VLLM
    assert (result["completed"], result["failed"], result["num_prompts"]) == (2, 1, 3)
    assert (result["request_rate"], result["burstiness"], result["request_goodput"]) == (4.0, 0.5, None)
    assert (result["date"], result["model_id"], result["backend"]) == ("20260102-030405", "m", "openai-chat")
    assert result["ttfts"] == [0.5, 0.5, 0.0]
    assert result["itls"] == [[0.2, 0.2], [0.2, 0.2], []]
    assert result["latencies"] == [0.9, 0.9, 0.0]
    assert result["input_lens"] == [5, 5, None]
    assert result["output_lens"] == [3, 6, 0]
    assert result["start_times"] == [1.0, 1.5, 2.0]
    assert result["queue_times"] == [0.25, 0.25, 0.0]
    assert result["errors"] == ["", "", "400: too [long]"]
    assert result["max_concurrent_requests"] == 2  # from 1.5 s to 1.9 s
    assert result["max_output_tokens_per_s"] == 6.0  # of the second request, all in second 2
    assert result["median_ttft_ms"] == 500.0


def test_goodput_of_vllm_and_only_what_counts(tmp_path: Path) -> None:
    records = [completed(turn=turn, sent=float(turn)) for turn in range(4)]
    result = vllm(a_run(tmp_path, *records, NOT_REACHED, asked=Asked(slo="ttft=1s", warmup="1")))
    assert result["request_goodput"] == 3 / result["duration"]
    assert [len(result[name]) for name in VLLM_COLUMNS] == [3] * len(VLLM_COLUMNS)


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ("inf", ("inf", 1.0)),
        (" poisson:2.5", (2.5, 1.0)),
        ("gamma: burstiness = 0.5, 4", (4.0, 0.5)),
        ("recorded", (None, None)),
    ],
)
def test_rates_of_vllm(tmp_path: Path, arrivals: str, expected: tuple[object, object]) -> None:
    result = vllm(a_run(tmp_path, arrivals=arrivals))
    assert (result["request_rate"], result["burstiness"]) == expected
    assert result["itls"] == []


def test_a_rate_of_sessions_is_none_of_requests(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a.jsonl", [completed(), completed(turn=1)], head=header(1, 2, arrivals="poisson:4"))
    assert vllm(measure(run))["request_rate"] is None


def test_an_answer_in_one_piece_has_no_ttft(tmp_path: Path) -> None:
    result = vllm(a_run(tmp_path, completed(streamed=False, chunks=(1.9,))))
    assert (result["ttfts"], result["latencies"]) == ([None], [0.9])


spans = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10)), max_size=12)


@given(spans)
def test_requests_at_once_by_counting(tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]) -> None:
    path = tmp_path_factory.mktemp("runs")
    records = [
        completed(index=index, sent=float(start), chunks=(float(start + length),), ended=float(start + length))
        for index, (start, length) in enumerate(spans)
    ]
    at_once = max((sum(s <= moment < s + length for s, length in spans) for moment in range(31)), default=0)
    assert vllm(a_run(path, *records))["max_concurrent_requests"] == at_once
