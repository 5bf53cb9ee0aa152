"""Tables and plots show what was measured, and say what was not."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from steps import record, row, snapshot

from engine.protocol import SharingLedger, WasteLedger
from loadgen import metrics
from loadgen.compare import ratios
from loadgen.engine_figures import EngineFigures, Moment
from loadgen.outcome import Outcome, RequestRecord
from loadgen.plots import token_rates
from loadgen.replay import RunResult
from loadgen.report import print_comparison, print_report, text

CLIENT = {"client_cpu_share": 0.25, "client_p99_loop_lag_ms": 1.0}


def completed(turn: int, start: float, tokens: int = 3) -> RequestRecord:
    chunks = (start + 0.5, start + 0.7, start + 0.9)
    return RequestRecord(
        "s",
        turn,
        3,
        start - 0.25,
        Outcome.COMPLETED,
        sent=start,
        chunks=chunks,
        ended=start + 1,
        usage=True,
        input_tokens=5,
        output_tokens=tokens,
    )


def result(*records: RequestRecord, engine: dict[str, Any] | None = None, **changes: Any) -> RunResult:
    summary = {**metrics.summarize(records), **CLIENT}
    return RunResult(summary, engine, {}, tuple(records), start=0.0, **changes)


def printed(run: RunResult, width: int = 100, plots: bool = True) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(run, console, plots)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def engine_figures() -> tuple[dict[str, Any], tuple[Moment, ...]]:
    ledger = EngineFigures(snapshot(0, 0.0))
    waste, sharing = WasteLedger(held=64, filled=48, internal=16), SharingLedger(8, 4, 4, 4 * 2**20)
    ledger.add(record(1, 1.0, seconds=0.02, rows=(row("decode", 1),), waste=waste, sharing=sharing))
    ledger.add(record(2, 2.0))
    return ledger.figures(snapshot(2, 3.0)), tuple(ledger.moments)


def test_everything_at_once() -> None:
    figures, moments = engine_figures()
    out = printed(result(completed(0, 1.0), completed(1, 3.0), engine=figures, moments=moments))
    for expected in (
        "1 of 1 sessions",
        "2 of 2",
        "output tokens (from usage)",
        "TTFT, scheduled (ms)",
        "500.0",
        "750.0",
        "25.00%",
        "4.0 MiB",
        "TTFT (s) by the time of sending",
        "output tokens/s",
        "internal waste, % of filled + internal",
        "blocks saved by sharing",
    ):
        assert expected in out
    assert "\x1b" not in out  # no terminal, no colors
    assert max(map(len, out.splitlines())) <= 100


def test_what_an_engine_did_not_do_is_left_out() -> None:
    figures, _ = engine_figures()
    assert "swap" not in printed(result(completed(0, 1.0), engine=figures), plots=False)
    figures |= {"preemptions_swap": 3, "swapped_out_blocks": 41}
    out = printed(result(completed(0, 1.0), engine=figures), plots=False)
    for title, value in (("by swap", "3"), ("blocks swapped out", "41")):
        (line,) = (line for line in out.splitlines() if title in line)
        assert line.strip("│ ").split("│")[1].strip() == value
    assert "blocks swapped back" not in out
    other = compared(result(completed(0, 1.0), engine=figures), result(completed(0, 1.0)))
    assert "blocks swapped out" in other
    assert "blocks swapped back" not in other


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_figure_is_cut_off(width: int) -> None:
    slow = RequestRecord(
        "s", 0, 3, 0.0, Outcome.COMPLETED, 1.0, (9000.5, 9000.7), 9001.0, usage=True, input_tokens=5, output_tokens=3
    )
    out = printed(result(slow), width)
    latency = out[out.index("Latency") : out.index("first chunk")]
    assert "…" not in latency
    assert latency.count("9,000") >= 8  # seconds from 10,000 ms on
    assert "TTFT, scheduled (s)" in latency
    assert "ITL per chunk (ms)" in latency


def test_failures_and_their_words() -> None:
    failed = RequestRecord("s", 1, 3, 2.0, Outcome.HTTP_ERROR, sent=2.0, ended=2.1, detail="400: too [long]")
    out = printed(result(completed(0, 1.0), failed, notes=("a [note]",)))
    assert "First 'HTTP error': session s turn 1: 400: too [long]" in out
    assert "Note: a [note]" in out
    assert "count failed turns as infinitely slow" in out
    assert "0 of 1 sessions" in out


def test_several_tokens_a_chunk_are_told() -> None:
    assert "9 tokens came in 3 chunks with content: ITL is not per token" in printed(
        result(completed(0, 1.0, tokens=9))
    )
    assert "ITL is not per token" not in printed(result(completed(0, 1.0)))


def test_interrupted_and_nothing_measured() -> None:
    waiting = RequestRecord("s", 0, 3, None, Outcome.NOT_REACHED)
    out = printed(result(waiting, interrupted=True))
    assert "Interrupted" in out
    assert "turns not reached" in out


def test_interrupted_turns_are_told_beside_the_rates_that_leave_them_out() -> None:
    cut = RequestRecord("s", 1, 3, 2.0, Outcome.INTERRUPTED, sent=2.0, chunks=(3.0, 4.0), ended=5.0)
    out = printed(result(completed(0, 1.0), cut, interrupted=True), plots=False)
    (line,) = (line for line in out.splitlines() if "chunks that they had got" in line)
    assert line.split("│")[2].strip() == "2"
    assert "turns interrupted in flight: 1; tokens/s and turns/s count completed turns alone" in out


def test_without_plots() -> None:
    assert "by the time of sending" not in printed(result(completed(0, 1.0)), plots=False)


def test_side_by_side() -> None:
    figures, _ = engine_figures()
    a = result(completed(0, 1.0), engine=figures)
    b = result(completed(0, 1.0, tokens=9), engine=figures)
    out = compared(a, b)
    (line,) = (line for line in out.splitlines() if "output tokens/s" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["output tokens/s", "3.000", "9.000", "3.00x"]


def compared(a: RunResult, b: RunResult) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_comparison(a, b, ratios(a.document(), b.document()), ("old", "new"), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_side_by_side_has_the_notes_of_each_side_and_no_empty_ones() -> None:
    plain = compared(result(completed(0, 1.0)), result(completed(0, 1.0)))
    assert plain.splitlines()[-1].startswith("└")
    noted = compared(result(completed(0, 1.0)), result(completed(0, 1.0), notes=("slow",)))
    assert noted.splitlines()[-1] == "new: Note: slow"


def test_a_side_that_was_interrupted_is_told() -> None:
    out = compared(result(completed(0, 1.0)), result(completed(0, 1.0), interrupted=True))
    assert out.startswith("Interrupted: new is what was measured so far")


def test_a_small_ratio_is_not_0() -> None:
    out = compared(result(completed(0, 1.0), completed(1, 601.0)), result(completed(0, 1.0, tokens=4)))
    (line,) = (line for line in out.splitlines() if "wall time" in line)
    assert "0.0017x" in line


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        (None, "", "-"),
        (0.1234, "x_share", "12.34%"),
        (2**20, "x_bytes", "1.0 MiB"),
        (12345, "", "12,345"),
        (1234.5, "", "1,234"),
        (12.34, "", "12.3"),
        (0.1234, "", "0.123"),
        (["a", "b"], "", "a, b"),
        ([], "", "-"),
    ],
)
def test_figures_as_text(value: Any, name: str, expected: str) -> None:
    assert text(value, name) == expected


def test_token_rates_by_hand() -> None:
    """6 tokens over 3 chunks at 0.5, 0.7 and 0.9 s of a second: 2 each."""
    assert token_rates([completed(0, 0.0, tokens=6)], 0.0, 0.8) == [5.0, 2.5]
