"""Runs against a real cluster of tiny engines: client, metrics and step streams count alike, in pools and without."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_with_engine import SYSTEM, TINY, start, turn

from loadgen.engine_process import EngineProcess
from loadgen.engine_watch import EngineError
from loadgen.perform import perform
from loadgen.results.document import document
from loadgen.results.report import print_report
from loadgen.results.run_file import RunFile
from loadgen.settings import Settings
from loadgen.target import Steering, Target

POOLS = (*TINY, "--prefill", "1", "--decode", "1", "--local-prefill", "8")


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """Chats that share a system prompt, so that prompts are found in part; their later turns go where they were."""
    header = {"format": "paged-top-chat", "version": 1, "systems": {"main": SYSTEM}, "temperature": 0.7}
    turns = [turn(1), turn(2, think=0.5), turn(3, regenerates=1, think=0.2)]
    sessions = [
        {"session": f"s{n}", "arrival": n / 10, "system": "main", "turns": turns[: 1 + n % 3]} for n in range(8)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *sessions]))
    return path


async def test_a_cluster_in_pools_and_without(trace_file: Path, tmp_path: Path) -> None:
    async with EngineProcess(POOLS, lambda _: None) as engine:

        async def ran(name: str, **options: Any) -> tuple[RunFile, dict[str, Any]]:
            settings, target = Settings(file=str(trace_file), speed=20.0, **options), Target(engine.url, engine)
            console = Console(file=io.StringIO())
            run = await perform(settings, target, tmp_path / name, console, Steering())
            return run, document(run)

        run, separated = await ran("separated", pools="separated")
        _counted_alike(separated)
        told, cluster = separated["engine"], separated["engine"]["cluster"]
        handed_over = cluster["router"]["handed_over"]
        assert handed_over == told["sent_requests"] == told["continued_requests"] > 0
        assert told["received_requests"] == handed_over
        assert (told["received_failed"], told["sent_expired"], told["records_lost"]) == (0, 0, 0)
        workers = cluster["workers"]
        assert workers["prefill-0"]["decode_tokens"] == 0
        assert workers["prefill-0"]["sent_bytes"] > 0
        assert workers["decode-0"]["p99_received_ms"] > 0
        assert told["continued_found_tokens"] > 0  # the system prompt is there already, and was not moved again
        shown = io.StringIO()
        print_report([run], Console(file=shown, width=160), plots=False)
        assert "prefill-0" in shown.getvalue()
        assert f"{handed_over} handed over" in shown.getvalue()
        assert "KV transfers" in shown.getvalue()

        _, colocated = await ran("colocated", pools="colocated", control={"chunked_prefill": False})
        _counted_alike(colocated)
        told, cluster = colocated["engine"], colocated["engine"]["cluster"]
        assert (cluster["control"]["separate"], cluster["router"]["handed_over"]) == (False, 0)
        assert (told["sent_requests"], told["continued_requests"]) == (0, 0)

        with pytest.raises(EngineError, match="answered 400: batching must be 'continuous'"):
            await ran("static", control={"batching": "static"})


def _counted_alike(told: dict[str, Any]) -> None:
    """Nothing failed, and whoever counted counted the same."""
    summary, engine, agreement = told["summary"], told["engine"], told["agreement"]
    assert (summary["failed"], told["warnings"]) == (0, [])
    assert {agreement[side]["verdict"] for side in ("prompt", "generation", "prefix")} == {"agree"}, agreement
    prefix = agreement["prefix"]
    assert prefix["client"] == prefix["engine"] == prefix["server"]
    assert prefix["client"]["tokens"] == summary["cached_tokens"] > 0
    assert engine["sampled_tokens"] == summary["total_output_tokens"]
    assert engine["hit_rate"] == pytest.approx(summary["hit_rate"])
    assert engine["prefill_tokens"] == summary["total_input_tokens"] - summary["cached_tokens"]


async def test_compare_switches_one_cluster_between_its_sides(trace_file: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "out.json"
    sides = ("--a", "pools=colocated", "--b", "pools=1P1D", "--split-prompt-tokens", 290)
    process = await start("compare", trace_file, "--speed", 20, "--repeat", 1, "--json", out_file, *sides)
    out, err = await process.communicate()
    assert process.returncode == 0, err
    told = json.loads(out_file.read_text())
    a, b = told["a"], told["b"]
    assert a["settings"]["url"] == b["settings"]["url"]
    assert err.count(b"engine at http") == 1
    assert (a["settings"]["pools"], b["settings"]["pools"]) == ("colocated", "separated")
    assert a["engine"]["cluster"]["router"]["handed_over"] == 0 < b["engine"]["cluster"]["router"]["handed_over"]
    assert a["summary"]["failed"] == b["summary"]["failed"] == 0
    assert {one["title"] for one in told["tails"]} >= {"ITL of short prompts, p99", "TTFT of long prompts, p90"}
    said = b" ".join(out.split()).decode()
    assert "1P1D: ITL of short prompts, p99, " in said
    assert "not shown): nothing is shown by fewer than 3 whole repeats." in said
    assert "one cluster for both sides, switched while it ran" in said
