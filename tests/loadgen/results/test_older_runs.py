"""A run's file from before loadgen kept what it found out about a server: of a real vLLM 0.32, in tests/data."""

from __future__ import annotations

import json
from pathlib import Path

from servers_like import ServerLike
from test_breaking import loadgen, write_trace

from loadgen.results.document import document
from loadgen.results.run_file import RunFile

OLDER = Path(__file__).parents[2] / "data" / "loadgen_runs" / "without_facts.jsonl"


def test_its_figures_are_those_that_it_had() -> None:
    told = document([RunFile.read(OLDER)])
    assert (told["summary"]["completed"], told["summary"]["total_output_tokens"]) == (4, 38)
    assert (told["summary"]["finish_reasons"], told["warnings"], told["notes"]) == ({}, [], [])
    assert {told["agreement"][side]["verdict"] for side in ("prompt", "generation", "prefix")} == {"agree"}
    assert told["agreement"]["prefix"]["server"] == {"tokens": 32, "of": 126}
    ttft = told["latency_by_both"]["ttft"]["server"]
    assert (ttft["p50_at_most"], ttft["p99_at_most"], ttft["count"]) == (40.0, 60.0, 4)
    assert [told["settings"][name] for name in ("metrics_url", "headers", "insecure")] == [None, [], False]


async def test_it_is_reported_exported_and_held_against_another(tmp_path: Path) -> None:
    names = ("json", "csv", "html", "vllm-json")
    exports = [word for name in names for word in (f"--{name}", tmp_path / name)]
    code, out, err = await loadgen("report", OLDER, *exports, "--no-plots")
    assert (code, "Tokens, counted by both" in out) == (0, True), err
    assert {path.name for path in tmp_path.iterdir()} == {*names}
    code, out, err = await loadgen("diff", OLDER, OLDER)
    assert (code, "hit_rate" in out) == (0, True), err


async def test_it_is_gone_on_with(tmp_path: Path) -> None:
    trace, cut = tmp_path / "t.jsonl", tmp_path / "cut.jsonl"
    write_trace(trace, 4)
    async with ServerLike("vllm") as server:
        code, _, err = await loadgen("replay", trace, "--url", server.url, "--out", cut)
        assert code == 0, err
        lines = [json.loads(line) for line in cut.read_text().splitlines()]
        for name in ("metrics_url", "headers", "ca_file", "insecure"):
            del lines[0]["settings"][name]
        for name in ("found", "differs", "left_out", "tokenize_by"):
            lines[0]["server"].pop(name, None)
        cut.write_text("".join(json.dumps(line) + "\n" for line in lines[:3]))
        code, out, err = await loadgen("resume", cut, "--no-plots")
    assert code == 0, err
    assert "The client's are of the whole run, the server's of its last part" in " ".join(out.split())
