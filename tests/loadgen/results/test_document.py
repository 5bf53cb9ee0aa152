"""The document of a run is that of its file, under the names that scripts rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sample_runs import CLIENT, completed, failed, header, write_run

from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.document import Asked, differing_settings, document, measure, read_document
from loadgen.results.run_file import ResultError, Resumed, RunEnd, RunFile, RunWriter

END = RunEnd(at=6.0, client=CLIENT)
SERVER = {"prompt_tokens": 5, "generation_tokens": 3}


def a_run(path: Path, *records: RequestRecord, end: RunEnd | None = END, **settings: Any) -> RunFile:
    name = path / f"{len(list(path.iterdir()))}.jsonl"
    return write_run(name, records, end, header(1, len(records), **settings))


def test_the_contract(tmp_path: Path) -> None:
    found = document(a_run(tmp_path, completed(), failed()))
    assert found.keys() >= {"summary", "engine", "settings", "server", "client", "notes"}
    summary = found["summary"]
    for name in (
        *("completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput"),
        *("output_throughput", "total_token_throughput", "client_cpu_share", "client_is_bottleneck"),
        *(f"{stat}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for stat in ("mean", "median", "p99")),
    ):
        assert name in summary, name
    assert (summary["completed"], summary["failed"]) == (1, 1)
    json.loads(msgspec.json.encode(found))


def test_settings_are_what_was_asked_for_and_what_that_came_to(tmp_path: Path) -> None:
    control: dict[str, Any] = {"batching": "static", "allocation": "reserved"}
    run = a_run(tmp_path, completed(), arrivals="poisson:2.5", control=control, timeout=9.0, slo="e2e=1s,ttft=1s")
    settings = document(run)["settings"]
    expected = {
        "file": "chat.jsonl",
        "url": "http://server:8000",
        "engine_started_by_loadgen": False,
        "engine_args": None,
        "model": "m",
        "sessions": 1,
        "turns": 1,
        "speed": 1.0,
        "speed_changes": [],
        "rate": 2.5,
        "concurrency": None,
        "mode": "static",
        "alloc": "reserved",
        "seed": 0,
        "timeout_s": 9.0,
        "temperature": 0.7,
        "started_at": "2026-01-02T03:04:05+00:00",
        "interrupted": False,
        "stopped_by": None,
        "slo": "ttft=1000ms,e2el=1000ms",
    }
    assert {name: settings[name] for name in expected} == expected
    own = document(a_run(tmp_path, completed(), url=None, engine_args=("--model", "tiny")))["settings"]
    assert own["engine_started_by_loadgen"]
    assert own["engine_args"] == ["--model", "tiny"]
    assert own["rate"] is None


@pytest.mark.parametrize(
    ("stopped_by", "interrupted"),
    [(None, False), ("Ctrl-C", True), ("the engine's end", True), ("requests=5", False)],
)
def test_only_what_nobody_asked_for_is_an_interruption(tmp_path: Path, stopped_by: str, interrupted: bool) -> None:
    run = a_run(tmp_path, completed(), end=msgspec.structs.replace(END, stopped_by=stopped_by))
    found = document(run)
    assert found["settings"]["interrupted"] is interrupted
    assert any(warning.startswith("Interrupted") for warning in found["warnings"]) is interrupted
    assert ("It ended early, as --until asked: requests=5." in found["notes"]) is (stopped_by == "requests=5")


def test_a_killed_run_is_an_interrupted_one(tmp_path: Path) -> None:
    found = document(a_run(tmp_path, completed(), end=None))
    assert found["settings"]["interrupted"]
    assert found["settings"]["stopped_by"] == "loadgen's own end"
    assert "client_cpu_share" not in found["summary"]
    assert found["summary"]["sessions_completed"] is None  # the session may have more turns than there are lines
    assert measure(a_run(tmp_path, completed(), end=None)).series.seconds == 2.0  # to its last moment


def test_limits_and_spans_of_the_run_or_others(tmp_path: Path) -> None:
    records = [completed(turn=turn, sent=float(turn)) for turn in range(4)]
    run = a_run(tmp_path, *records, slo="ttft=1ms", warmup="1", cooldown="1")
    summary = document(run)["summary"]
    assert (summary["slo_attainment"], summary["turns"]) == (0.0, 2)
    assert summary["sessions"] == 1
    summary = document(run, Asked("ttft=1s", "0", "0"))["summary"]
    assert (summary["slo_attainment"], summary["turns"]) == (1.0, 4)
    with pytest.raises(ValueError, match="no latency with a limit"):
        document(run, Asked(slo="x=1ms"))
    with pytest.raises(ResultError, match="line 1: settings: expected limits such as"):
        document(a_run(tmp_path, completed(), slo="fast"))


def test_tokens_are_compared_over_the_whole_run(tmp_path: Path) -> None:
    server = {"prompt_tokens": 10, "generation_tokens": 7}
    end = msgspec.structs.replace(END, server=server)
    found = document(a_run(tmp_path, completed(), completed(turn=1, sent=2.0), end=end, warmup="1"))
    assert found["summary"]["total_output_tokens"] == 3
    assert found["agreement"]["prompt"] == {"client": 10, "server": 10, "verdict": "agree", "reason": ""}
    assert (found["agreement"]["generation"]["client"], found["agreement"]["generation"]["verdict"]) == (6, "differ")
    (warning,) = found["warnings"]
    assert warning.startswith("The server counted 7 tokens of answers, its clients here 6")


def test_a_resumed_run_is_one(tmp_path: Path) -> None:
    run = a_run(
        tmp_path,
        completed(),
        RequestRecord(session="s0", index=0, turn=1, outcome=Outcome.INTERRUPTED, scheduled=2.0, sent=2.0, ended=3.0),
        end=msgspec.structs.replace(END, server=SERVER, stopped_by="Ctrl-C"),
    )
    with RunWriter.resume(run.path, Resumed(at=6.0, started_at="x", versions={})) as writer:
        writer.append(completed(sent=6.5))  # a session is played again whole
        writer.append(completed(turn=1, sent=7.0))
        writer.finish(msgspec.structs.replace(END, at=9.0, server=SERVER))
    found = document(RunFile.read(run.path))
    assert (found["summary"]["completed"], found["summary"]["interrupted"]) == (2, 0)
    assert found["settings"]["stopped_by"] is None
    assert any("resumed at 6.0 s; the figures of the engine, the server and lo" in note for note in found["notes"])
    assert found["agreement"]["generation"]["server"] == 6


def test_notes(tmp_path: Path) -> None:
    end = msgspec.structs.replace(END, speed_changes=((2.0, 5.0), (3.0, 1.0)), notes=("of the run",))
    found = document(a_run(tmp_path, completed(retries=2, asked_input=9), failed(), failed(turn=2), end=end))
    assert found["notes"] == [
        "First 'HTTP 400': session s0 turn 1: 400: too [long]",
        "1 prompts had another number of tokens, by the server's usage, than the trace asks.",
        "Requests were tried again 2 times; their latencies are from the first try.",
        "of the run",
        "The speed was changed while it ran: 1 was asked for, then 5 from second 2.0 on, 1 from second 3.0 on.",
    ]


def test_repeats_merge(tmp_path: Path) -> None:
    a, b = a_run(tmp_path, completed()), a_run(tmp_path, completed(sent=3.0, chunks=(4.0, 4.5)), failed())
    found = document([a, b])
    assert (found["summary"]["completed"], found["summary"]["failed"]) == (2, 1)
    assert found["summary"]["min_ttft_ms"] == 500.0
    assert found["summary"]["max_ttft_ms"] == 1000.0
    durations = [document(run)["summary"]["duration"] for run in (a, b)]
    assert found["summary"]["duration"] == pytest.approx(sum(durations))
    assert [one["summary"]["completed"] for one in found["runs"]] == [1, 1]
    assert found["label"] == "replay, 2 runs merged"
    with pytest.raises(ValueError, match="nothing to merge"):
        document([])


def test_runs_that_are_no_repeats(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, completed(), seed=seed, speed=speed) for seed, speed in ((0, 1.0), (1, 1.0), (2, 3.0))]
    documents = [document(run) for run in runs]
    assert differing_settings(documents[:2]) == []
    assert differing_settings(documents) == ["speed"]


def test_a_document_that_was_kept_is_read_again(tmp_path: Path) -> None:
    run = a_run(tmp_path, completed())
    kept = tmp_path / "kept.json"
    kept.write_bytes(msgspec.json.format(msgspec.json.encode(document(run)), indent=2))
    assert read_document(kept) == read_document(run.path) == document(run)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{\n", "not JSON"),
        ('{\n"a": 1}', "summary: missing; expected a run's file, or what --json of replay or report wrote"),
        ("", "is empty"),
        ('{"a": 1}', "the first line must be the header"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ResultError, match=says):
        read_document(path)
