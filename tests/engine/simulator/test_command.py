"""`paged-engine simulate` as people and scripts call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LINE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [LINE, {**LINE, "timestamp": 60_000}, {**LINE, "timestamp": 90_000, "hash_ids": [7, 9]}]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "engine.cli", "simulate", *map(str, arguments)]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


def predict(*arguments: object, **environment: str) -> dict[str, Any]:
    result = run(*arguments, "--json", **environment)
    assert result.returncode == 0, result.stderr
    prediction: dict[str, Any] = json.loads(result.stdout)
    return prediction


def test_json_tells_settings_and_figures(trace: Path) -> None:
    told = predict(trace, "--block-size", 256, "--infinite", "--step-seconds", 2, "--max-num-seqs", 3, "--repeat", 2)
    assert told["settings"]["num_blocks"] is None
    assert told["settings"]["control"]["max_num_seqs"] == 3
    assert told["settings"]["cost"]["step"] == 2.0
    assert told["settings"]["cost"]["token"] > 0
    served = {"total": 6, "completed": 6, "prompt_tokens": 3600, "output_tokens": 30}
    assert told["requests"] == {**served, "cut_short": 0, "refused": 0, "unsent": 0}
    assert told["hits"]["found_blocks"] == 8
    assert told["hits"]["looked_up_blocks"] == told["hits"]["ideal"]["blocks"] == 18
    assert told["simulation"]["complete"] is True
    assert told["simulation"]["peak_memory_bytes"] > 1 << 20


def test_text_tells_the_same(trace: Path) -> None:
    result = run(trace, "--block-size", 256, "--num-blocks", 9, "--cost", "none")
    assert result.returncode == 0, result.stderr
    for words in ("9 blocks of 256 slots", "3 of 3 served", "44.4% of blocks (4 of 9)", "this simulation"):
        assert words in result.stdout
    assert result.stderr == ""
    assert "nothing was looked up" in run(trace, "--infinite", "--no-prefix-cache", "--cost", "none").stdout


def test_memory_becomes_blocks_and_options_come_from_the_environment(trace: Path) -> None:
    told = predict(
        trace, "--kv-memory", "64KB", "--kv-bytes-per-token", 10, "--swap-space", "1600", PAGED_ENGINE_PREEMPT="swap"
    )
    assert told["settings"]["num_blocks"] == 400
    assert told["settings"]["num_host_blocks"] == 10
    assert told["settings"]["control"]["preempt"] == "swap"


def test_repetitions_of_the_same_text_hit(trace: Path) -> None:
    new, same = (predict(trace, "--requests", 5, "--repeat-as", how)["hits"]["found_tokens"] for how in ("new", "same"))
    assert new < same


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--repeat", "0"], ["--repeat", "1 to 100000"]),
        (["--repeat", "2", "--requests", "3"], ["--requests", "--repeat"]),
        (["--repeat", "99999999"], ["--repeat"]),
        (["--requests", "1e3"], ["--requests", "whole number"]),
        (["--speed", "0"], ["--speed", "0.001 to 1000000"]),
        (["--speed", "inf"], ["--speed", "0.001 to 1000000"]),
        (["--speed", "1e-300"], ["--speed", "0.001 to 1000000"]),
        (["--kv-bytes-per-token", "9" * 14], ["--kv-bytes-per-token", "1 to 2147483647"]),
        (["--max-model-len", "1"], ["--max-model-len", "from 2"]),
        (["--step-seconds", "-1"], ["--step-seconds", "0 to 3600"]),
        (["--token-seconds", "nan"], ["--token-seconds", "0 to 3600"]),
        (["--num-blocks", "3", "--infinite"], ["--infinite", "--num-blocks"]),
        (["--kv-memory", "100"], ["--kv-memory", "no block of 16 tokens", "368,640"]),
        (["--scheduling-policy", "lifo"], ["--scheduling-policy", "fcfs", "shortest_prefill"]),
        (["--preempt", "never"], ["--preempt", "recompute", "swap"]),
        (["--allocation", "reserved", "--num-blocks", "9"], ["reserved", "38 blocks", "9"]),
        (["--cost", "gpu"], ["--cost", "cpu", "none"]),
    ],
)
def test_bad_settings_are_one_line_and_code_2(trace: Path, arguments: list[str], words: list[str]) -> None:
    check_one_line(run(trace, *arguments), *words)


def test_a_bad_trace_is_one_line_and_code_2(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({**LINE, "hash_ids": []}))
    check_one_line(run(path), "bad.jsonl: line 1: hash_ids", "2 ids")
    check_one_line(run(tmp_path / "none"), "none: cannot be read")
    check_one_line(run(tmp_path), "cannot be read")


def check_one_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr


def test_an_interrupt_prints_what_is_known_so_far(trace: Path) -> None:
    process = subprocess.Popen(
        command(trace, "--requests", 10_000_000, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "requests done" in process.stderr.readline()  # its first line of progress
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    told = json.loads(output)
    assert told["simulation"]["complete"] is False
    assert 0 < told["requests"]["completed"] < told["requests"]["total"] == 10_000_000


def test_several_engines_tell_of_transfers_roles_and_limits(trace: Path) -> None:
    told = predict(trace, "--prefill", 1, "--decode", 1, "--slo", "ttft=10s,itl=1s", "--link", "1e9", "--repeat", 2)
    assert told["pools"]["control"] == {
        "separate": True, "routing": "prefix", "local_prefill": 64, "prefill": 1, "decode": 1, "replicas": 0,
    }  # fmt: skip
    assert told["requests"]["completed"] == 6
    assert told["transfers"]["done"] == told["router"]["handed_over"] > 0
    assert told["roles"].keys() == {"prefill", "decode"}
    assert told["goodput"]["met"] == 6
    assert told["queue"]["inter_token"]["count"] == 6 * 4
    text = run(trace, "--prefill", 1, "--decode", 1, "--slo", "ttft=10s").stdout
    for words in ("1P1D, routing prefix", "handed over", "blocks to filled", "goodput", "100.0% of those served"):
        assert words in text


def test_one_call_tries_several_clusters(trace: Path) -> None:
    arguments = (trace, "--workers", "1,4", "--ratios", "colocated,1:1,3:1", "--load-per-worker", "--requests", 5)
    told = predict(*arguments)["predictions"]
    sizes = [tuple(one["pools"]["control"][role] for role in ("prefill", "decode", "replicas")) for one in told]
    assert sizes == [(0, 0, 1), (0, 0, 4), (2, 2, 0), (3, 1, 0)]
    assert [one["requests"]["total"] for one in told] == [5, 20, 20, 20]
    assert [one["settings"]["crowd"] for one in told] == [1.0, 4.0, 4.0, 4.0]
    lines = run(*arguments, "--slo", "itl=1s").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["engines", "1 replica", "4 replicas", "2P2D", "3P1D"]
    counted = run(trace, "--ratios", "1:2").stdout
    assert counted.splitlines()[1].startswith("1P2D")


def test_hardware_figures_stand_for_seconds(trace: Path) -> None:
    slow, fast = (
        predict(trace, "--model", "tiny", "--flops", "1e12", "--memory-bandwidth", bandwidth)
        for bandwidth in ("1e8", "1e9")
    )
    assert slow["settings"]["kv_bytes_per_token"] == slow["settings"]["cost"]["kv_bytes"] > 0
    assert slow["queue"]["inter_token"]["p50"] > fast["queue"]["inter_token"]["p50"]
    text = run(trace, "--model", "tiny", "--flops", "1e12", "--memory-bandwidth", "1e9").stdout
    assert "bytes of weights" in text


def test_new_sessions_find_what_sessions_have_in_common(trace: Path) -> None:
    found = {
        how: predict(trace, "--requests", 6, "--repeat-as", how)["hits"]["found_tokens"]
        for how in ("new", "same", "sessions")
    }
    assert found["new"] < found["sessions"] < found["same"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prefill", "1"], ["--decode", "at least 1"]),
        (["--ratios", "1:0"], ["--ratios", "colocated", "1:1"]),
        (["--ratios", "2"], ["--ratios", "colocated", "1:1"]),
        (["--ratios", "colocated"], ["--ratios", "--workers"]),
        (["--ratios", "1:1", "--workers", "1"], ["--workers", "two at least"]),
        (["--ratios", "1:1", "--replicas", "2"], ["--ratios", "--replicas"]),
        (["--workers", "0"], ["--workers", "1 to 1024"]),
        (["--workers", "1,,2"], ["--workers", "1 to 1024"]),
        (["--slo", "ttft=soon"], ["--slo", "ttft=500ms", "soon"]),
        (["--link", "0", "--replicas", "2"], ["--link", "bytes a second"]),
        (["--replicas", "2", "--infinite"], ["--infinite", "one engine"]),
        (["--replicas", "1024", "--num-blocks", "100000"], ["--num-blocks", "1024 engines"]),
        (["--decode", "1", "--prefill", "1", "--batching", "static"], ["batching", "continuous"]),
        (["--crowd", "0"], ["--crowd", "0.001"]),
        (["--model", "tiny"], ["--flops", "--memory-bandwidth"]),
        (["--model", "tiny", "--flops", "1e9", "--memory-bandwidth", "1e9", "--step-seconds", "1"], ["--step-seconds"]),
        (["--model", "none-such", "--flops", "1e9", "--memory-bandwidth", "1e9"], ["none-such", "smollm2-135m"]),
    ],
)
def test_bad_clusters_are_one_line_and_code_2(trace: Path, arguments: list[str], words: list[str]) -> None:
    check_one_line(run(trace, *arguments), *words)


def test_an_interrupted_sweep_prints_what_is_known_so_far(trace: Path) -> None:
    process = subprocess.Popen(
        command(trace, "--requests", 1_000_000, "--workers", "2,3", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "2 replicas (1 of 2)" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    (told,) = json.loads(output)["predictions"]
    assert told["simulation"]["complete"] is False
    assert told["requests"]["completed"] > 0
