"""Tables and plots show what was measured, and say what was not."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from sample_runs import CLIENT, completed, failed, header, write_run

from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.document import Asked, document
from loadgen.results.report import print_report, print_side_by_side
from loadgen.results.run_file import RunEnd, RunFile

END = RunEnd(at=6.0, client=CLIENT)
ENGINE = {
    "modes": ["continuous+paged"],
    "steps": 2,
    "preemptions": 0,
    "swapped_out_blocks": 0,
    "mean_internal_waste_share": 0.25,
    "peak_saved_bytes": 4 * 2**20,
}
MOMENTS = ((1.0, 64, 16, 4), (2.0, 64, 8, 5), (3.0, 0, 0, 0))


def a_run(path: Path, *records: RequestRecord, end: RunEnd | None = END, **settings: Any) -> RunFile:
    turns = len(records)
    return write_run(path / f"{len(list(path.iterdir()))}.jsonl", records, end, header(1, turns, **settings))


def printed(runs: Iterable[RunFile], width: int = 100, plots: bool = True, asked: Asked | None = None) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(list(runs), console, plots, asked or Asked())
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def cells(out: str, title: str) -> list[str]:
    """Of the one row with this title."""
    (line,) = (line for line in out.splitlines() if line.strip().startswith(title))
    return line.strip().removeprefix(title).split()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_everything_at_once(tmp_path: Path, width: int) -> None:
    end = msgspec.structs.replace(END, engine=ENGINE, moments=MOMENTS)
    out = printed([a_run(tmp_path, completed(turn=0), completed(turn=1, sent=3.0), end=end)], width)
    for expected in (
        "1 of 1",
        "2 of 2",
        "output tokens (from usage)",
        "TTFT, scheduled (ms)",
        "500.0",
        "750.0",
        "25.00%",
        "4.0 MiB",
        "vllm, version 0.11.0, at http://server:8000",
        "TTFT (s) by the time of sending",
        "requests in flight",
        "output tokens/s",
        "internal waste, % of filled + internal",
        "blocks saved by sharing",
    ):
        assert expected in out
    assert "\x1b" not in out  # no terminal, no colors
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width


def test_what_an_engine_did_not_do_is_left_out(tmp_path: Path) -> None:
    end = msgspec.structs.replace(END, engine=ENGINE)
    assert "swapped" not in printed([a_run(tmp_path, completed(), end=end)], plots=False)
    end = msgspec.structs.replace(END, engine=ENGINE | {"swapped_out_blocks": 41})
    out = printed([a_run(tmp_path, completed(), end=end)], plots=False)
    assert cells(out, "blocks swapped out") == ["41"]
    assert "preemptions" in out


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_figure_is_cut_off(tmp_path: Path, width: int) -> None:
    slow = completed(sent=1.0, scheduled=0.0, chunks=(9000.5, 9000.7), ended=9001.0)
    out = printed([a_run(tmp_path, slow, end=msgspec.structs.replace(END, at=9001.0))], width)
    latency = out[out.index("Latency") : out.index("first chunk")]
    assert "…" not in latency
    assert latency.count("9,000") >= 8  # seconds from 10,000 ms on
    assert "TTFT, scheduled (s)" in latency
    assert "ITL per chunk (ms)" in latency


def test_failures_and_their_words(tmp_path: Path) -> None:
    out = printed([a_run(tmp_path, completed(), failed(), end=msgspec.structs.replace(END, notes=("a [note]",)))])
    assert "First 'HTTP 400': session s0 turn 1: 400: too [long]" in out
    assert "Note: a [note]" in out
    assert "count failed turns as infinitely slow" in out
    assert cells(out, "sessions served whole") == ["0", "of", "1"]
    assert cells(out, "HTTP 400") == ["1"]


def test_several_tokens_a_chunk_are_told(tmp_path: Path) -> None:
    assert "9 tokens came in 3 chunks with content: ITL is not per token" in printed(
        [a_run(tmp_path, completed(tokens=9))]
    )
    assert "ITL is not per token" not in printed([a_run(tmp_path, completed())])


def test_limits_and_how_many_kept_to_each(tmp_path: Path) -> None:
    run = a_run(tmp_path, completed(), completed(turn=1), failed(turn=2), slo="ttft=1s,tpot=100ms")
    out = printed([run], plots=False)
    assert cells(out, "TTFT at most") == ["1,000", "ms", "66.67%"]
    assert cells(out, "TPOT at most") == ["100.0", "ms", "0.00%"]  # it is 200 ms
    assert cells(out, "all of them") == ["0", "of", "3", "0.00%"]
    assert cells(printed([run], plots=False, asked=Asked(slo="e2e=2s")), "all of them") == ["2", "of", "3", "66.67%"]


def test_warm_up_and_cool_down_are_left_apart_and_told(tmp_path: Path) -> None:
    records = [completed(turn=turn, sent=float(turn)) for turn in range(5)]
    out = printed([a_run(tmp_path, *records, warmup="1", cooldown="2")], plots=False)
    assert cells(out, "turns completed") == ["2", "of", "2"]
    assert cells(out, "requests of the warm-up, left apart") == ["1"]
    assert "Left out of the figures: 1 requests of the warm-up, 2 of the cool-down." in out


def test_what_the_server_tells_and_whether_its_tokens_agree(tmp_path: Path) -> None:
    server = {
        "where": "http://server:8000/metrics",
        "looks": 3,
        "seconds": 5.0,
        "failed_looks": 1,
        "restarted": False,
        "prompt_tokens": 5,
        "generation_tokens": None,
        "max_kv_usage": 0.5,
        "preemptions": None,
        "mean_ttft_ms": 480.0,
        "p50_ttft_at_most_ms": 500.0,
        "p99_ttft_at_most_ms": None,
        "count_ttft": 1,
        "mean_itl_ms": None,
    }
    end = msgspec.structs.replace(END, server=server)
    out = printed([a_run(tmp_path, completed(), end=end)], plots=False)
    server_side = out[out.index("Server, from its /metrics") : out.index("Latency")]
    assert cells(server_side, "prompt tokens") == ["5"]
    assert "preemptions" not in server_side  # a server that does not tell has no 0
    assert "3 looks in 5.000 s" in server_side
    assert "1 more looks failed." in server_side
    measured = out[out.index("Latency, as client and server measured it") :]
    assert cells(measured, "TTFT, client (ms)") == ["500.0", "500.0", "500.0", "500.0", "1"]
    assert cells(measured, "TTFT, server (ms)") == ["480.0", "<=", "500.0", "-", "-", "1"]
    assert "ITL, " not in measured  # of which the server tells nothing
    assert cells(out, "prompts") == ["5", "5", "agree"]
    assert cells(out, "answers") == ["3", "-", "cannot", "be", "told"]
    assert "It cannot be told: the server does not tell, or began anew." in " ".join(out.split())


@pytest.mark.parametrize(("share", "advice"), [(0.97, "more --workers"), (0.03, "a processor that others used")])
def test_a_client_that_was_too_slow_is_told_first(tmp_path: Path, share: float, advice: str) -> None:
    """More processes help one that had no CPU left, and not one that waited for a busy machine."""
    client = CLIENT | {"client_is_bottleneck": True, "client_cpu_share": share}
    out = printed([a_run(tmp_path, completed(), end=msgspec.structs.replace(END, client=client))], 80)
    assert out.startswith(f"Warning: loadgen itself was slow (CPU {share:.0%} of a core, event loop late by 1 ms at")
    assert advice in " ".join(out[: out.index("Run  ")].split())


def test_interrupted_turns_are_told_beside_the_rates_that_leave_them_out(tmp_path: Path) -> None:
    cut = RequestRecord(
        session="s", index=0, turn=1, outcome=Outcome.INTERRUPTED, sent=2.0, chunks=(3.0, 4.0), ended=5.0
    )
    waiting = RequestRecord(session="s", index=0, turn=2, outcome=Outcome.NOT_REACHED)
    end = msgspec.structs.replace(END, stopped_by="Ctrl-C")
    out = printed([a_run(tmp_path, completed(), cut, waiting, end=end)], plots=False)
    assert out.startswith("Warning: Interrupted by Ctrl-C: the report of what was measured so far")
    assert cells(out, "chunks that they had got") == ["2"]
    assert cells(out, "turns not reached") == ["1"]
    assert "Turns interrupted in flight: 1. Tokens/s and turns/s count completed turns alone" in out


def test_a_killed_run_is_reported_as_far_as_it_came(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.jsonl", [completed()], None, header(1, 3))
    out = printed([run])
    assert "The file has no end: loadgen was killed, or still runs" in out
    assert cells(out, "turns completed") == ["1", "of", "3"]
    assert cells(out, "turns not reached") == ["2"]
    assert "loadgen's own CPU" not in out
    assert "TTFT (s) by the time of sending" in out


def test_nothing_measured(tmp_path: Path) -> None:
    out = printed([write_run(tmp_path / "run.jsonl", [], None, header(1, 1))])
    assert "TTFT (ms)" in out


def test_repeats_are_one(tmp_path: Path) -> None:
    engine = msgspec.structs.replace(END, engine=ENGINE)
    runs = [a_run(tmp_path, completed(), end=engine), a_run(tmp_path, failed(), end=engine)]
    out = printed(runs)
    assert cells(out, "turns completed") == ["1", "of", "2"]
    assert cells(out, "steps") == ["2", "2"]  # the engine's figures are each run's own
    assert "1.jsonl: First 'HTTP 400'" in out
    assert "no repeats" not in out
    other = a_run(tmp_path, completed(), end=engine, speed=2.0)
    assert "The merged runs are no repeats of each other: they differ in speed." in printed([runs[0], other])


def test_without_plots(tmp_path: Path) -> None:
    assert "by the time of sending" not in printed([a_run(tmp_path, completed())], plots=False)


def test_side_by_side(tmp_path: Path) -> None:
    a = document(a_run(tmp_path, completed(), end=msgspec.structs.replace(END, engine=ENGINE)))
    b = document(a_run(tmp_path, completed(tokens=9), end=msgspec.structs.replace(END, notes=("slow",))))
    console = Console(file=io.StringIO(), width=120)
    print_side_by_side([a, b], ["old", "new"], console)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert cells(out, "output tokens/s") == ["3.000", "9.000"]
    assert cells(out, "steps") == ["2", "-"]
    assert "goodput" not in out  # neither has limits
    assert out.splitlines()[-1] == "new: Note: slow"


@pytest.mark.parametrize(("width", "heads"), [(200, 1), (120, 1), (80, 2), (60, 4), (30, 4)])
def test_runs_stay_beside_each_other_as_far_as_the_names_of_rows_can_be_folded(
    tmp_path: Path, width: int, heads: int
) -> None:
    name = "internal waste / (filled + internal), over time"
    runs = [a_run(tmp_path, completed(), end=msgspec.structs.replace(END, engine=ENGINE)) for _ in range(4)]
    console = Console(file=io.StringIO(), width=width)
    print_side_by_side([document(run) for run in runs], ["one", "two", "three", "four"], console)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert out.count("Side by side") == heads
    assert (name in out) is (width == 200)
    if width >= 60:
        assert "…" not in out
        assert out.count("25.00%") == 4
