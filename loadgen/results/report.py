"""What a run measured, as tables for a person."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from loadgen.replay import RunResult

COLUMNS = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")
NARROW_COLUMNS = ("mean", "p50", "p90", "p99", "max")
WIDE = 100  # columns of a terminal that has room for all of them; the JSON has them anyway
IN_SECONDS_FROM = 10_000  # milliseconds
LATENCIES = (
    ("ttft", "TTFT", "first chunk with content - sent"),
    ("ttft_scheduled", "TTFT, scheduled", "the same - scheduled: hides no queueing"),
    ("e2el", "E2E", "last chunk with content - sent"),
    ("e2el_scheduled", "E2E, scheduled", "the same - scheduled"),
    ("tpot", "TPOT", "(E2E - TTFT) / (output tokens - 1); not for one token"),
    ("itl", "ITL per chunk", "gaps between chunks with content, pooled"),
    ("send_lag", "send lag", "sent - scheduled"),
)
ENGINE_ROWS = (
    ("modes", "modes seen (batching+allocation)"),
    ("steps", "steps"),
    ("mean_step_ms", "mean step (ms)"),
    ("mean_batch_rows", "mean rows of a step"),
    ("peak_batch_rows", "peak rows of a step"),
    ("prefill_tokens", "prefill tokens"),
    ("decode_tokens", "decode tokens"),
    ("held_tokens", "held tokens (padding of static batches)"),
    ("preemptions", "preemptions"),
    ("preemptions_recompute", "  by recompute"),
    ("recomputed_tokens", "  tokens lost to it"),
    ("preemptions_swap", "  by swap"),
    ("swapped_out_blocks", "  blocks swapped out"),
    ("swapped_in_blocks", "  blocks swapped back"),
    ("peak_host_blocks", "  peak of the swap space (blocks)"),
    ("forks", "forks"),
    ("forked_tokens", "  prompt tokens shared with their parents"),
    ("copied_blocks", "blocks copied (writes to shared ones, parts found)"),
    ("transfer_s", "time in copies and swaps (s)"),
    ("mean_internal_waste_share", "internal waste / (filled + internal), over time"),
    ("peak_internal_waste_share", "  its peak"),
    ("mean_external_waste_share", "external waste / all slots, over busy time"),
    ("peak_external_waste_share", "  its peak"),
    ("mean_saved_blocks", "blocks saved by sharing, over busy time"),
    ("peak_saved_blocks", "  their peak"),
    ("peak_saved_bytes", "  its bytes"),
    ("hit_rate", "prefix hit rate (tokens found / looked up)"),
    ("found_prompt_tokens", "  tokens found in blocks of prompts"),
    ("found_decoded_tokens", "  tokens found in blocks with answers"),
    ("found_copied_tokens", "  of both, copied out of a part of a block"),
    ("evicted_tokens", "  tokens missed: cached once, evicted since"),
    ("tokens_not_recomputed", "prompt tokens not recomputed"),
    ("records_lost", "step records lost"),
    ("peak_rss_bytes", "peak memory of the engine's processes, summed"),
)
# Of what an engine may not do at all: left out where it did not, but for the JSON.
ONLY_IF_ANY = frozenset(
    {
        "preemptions_recompute",
        "recomputed_tokens",
        "preemptions_swap",
        "swapped_out_blocks",
        "swapped_in_blocks",
        "peak_host_blocks",
        "forks",
        "forked_tokens",
        "copied_blocks",
        "transfer_s",
        "found_prompt_tokens",
        "found_decoded_tokens",
        "found_copied_tokens",
        "evicted_tokens",
    }
)


def text(value: Any, name: str = "") -> str:
    """A figure for the table; a dash for one that does not exist."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if name.endswith("_bytes"):
        return f"{value / 2**20:,.1f} MiB"
    if name.endswith(("_share", "_rate")):
        return f"{value:.2%}"
    if isinstance(value, float):
        decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 3
        return f"{value:,.{decimals}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _outcome_table(result: RunResult) -> Table:
    summary = result.summary
    table = Table(title="Outcome", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    served = f"{summary['sessions_completed']} of {summary['sessions']} sessions"
    table.add_row("sessions served whole", served)
    table.add_row("turns completed", f"{summary['completed']} of {summary['turns']}")
    table.add_row("turns failed", text(summary["failed"]))
    for outcome, count in summary["failures"].items():
        table.add_row(f"  {outcome}", text(count))
    if result.interrupted:
        table.add_row("turns interrupted in flight", text(summary["interrupted"]))
        table.add_row("  chunks that they had got", text(summary["interrupted_chunks"]))
        table.add_row("turns not reached", text(summary["not_reached"]))
    table.add_row("wall time, first send to last response (s)", text(summary["duration"]))
    table.add_row("input tokens", text(summary["total_input_tokens"]))
    table.add_row(f"output tokens (from {summary['token_source']})", text(summary["total_output_tokens"]))
    table.add_row("turns/s", text(summary["request_throughput"]))
    table.add_row("output tokens/s", text(summary["output_throughput"]))
    table.add_row("all tokens/s", text(summary["total_token_throughput"]))
    if summary["other_length_than_asked"]:
        table.add_row("answers of another length than recorded", text(summary["other_length_than_asked"]))
    if result.engine and result.engine.get("peak_rss_bytes"):
        table.add_row("peak memory of the engine", text(result.engine["peak_rss_bytes"], "_bytes"))
    table.add_row("loadgen's own CPU (share of one core)", text(summary["client_cpu_share"], "_share"))
    table.add_row("loadgen's event loop late, p99 (ms)", text(summary["client_p99_loop_lag_ms"]))
    return table


def _latency_table(summary: dict[str, Any], width: int) -> Table:
    caption = "\n".join(f"{title}: {definition}." for _, title, definition in LATENCIES)
    if summary["failed"]:
        caption += "\nTTFT and E2E percentiles count failed turns as infinitely slow; - is among those."
    chunks, tokens = summary["total_chunks"], summary["total_output_tokens"]
    if chunks != tokens:
        caption += f"\n{tokens:,} tokens came in {chunks:,} chunks with content: ITL is not per token."
    table = Table(title="Latency", title_justify="left", caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    columns = COLUMNS if width >= WIDE else NARROW_COLUMNS
    table.add_column("", no_wrap=True)
    for column in (*columns, "n"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, title, _ in LATENCIES:
        in_seconds = (summary[f"max_{name}_ms"] or 0) >= IN_SECONDS_FROM
        values = [summary[f"{column}_{name}_ms"] for column in columns]
        if in_seconds:
            values = [None if value is None else value / 1000 for value in values]
        unit = "s" if in_seconds else "ms"
        table.add_row(f"{title} ({unit})", *map(text, values), text(summary[f"count_{name}"]))
    return table


def _engine_table(engine: dict[str, Any]) -> Table:
    table = Table(title="Engine, from its step stream", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, title in ENGINE_ROWS:
        if name in engine and (engine[name] or name not in ONLY_IF_ANY):
            table.add_row(title, text(engine[name], name))
    return table


def print_notes(result: RunResult, console: Console, side: str = "") -> None:
    """What a reader must know, and the first failure of each kind in the server's own words; `side` begins each."""
    told: set[str] = set()
    for record in result.records:
        if record.outcome.failed and record.detail and record.outcome not in told:
            told.add(record.outcome)
            where = f"session {record.session} turn {record.turn}"
            console.print(f"{side}First '{record.outcome}': {where}: {record.detail}", markup=False, highlight=False)
    if cut := result.summary["interrupted"]:
        what = f"turns interrupted in flight: {cut:,}; tokens/s and turns/s count completed turns alone"
        console.print(f"{side}Note: {what}, over the whole time.", markup=False, highlight=False)
    for note in result.notes:
        console.print(f"{side}Note: {note}", markup=False, highlight=False)


def print_report(result: RunResult, console: Console, plots: bool) -> None:
    """Tables, plots and notes of one run."""
    if result.interrupted:
        console.print("Interrupted: the report of what was measured so far.")
    console.print(_outcome_table(result))
    console.print(_latency_table(result.summary, console.width))
    if result.engine is not None:
        console.print(_engine_table(result.engine))
    if plots:
        from loadgen.plots import draw

        for picture in draw(result, min(console.width, 110), console.is_terminal):
            console.print(picture)
    print_notes(result, console)


def print_comparison(
    a: RunResult, b: RunResult, ratio: dict[str, Any], names: tuple[str, str], console: Console
) -> None:
    """Two runs side by side, with b / a, and the notes of each."""
    for name, side in zip(names, (a, b), strict=True):
        if side.interrupted:
            console.print(f"Interrupted: {name} is what was measured so far, so the ratios are of unequal work.")
    table = Table(title="Side by side", title_justify="left")
    table.add_column("")
    for column in (*names, "ratio"):
        table.add_column(column, justify="right")
    rows = [
        ("summary", "completed", "turns completed"),
        ("summary", "failed", "turns failed"),
        ("summary", "duration", "wall time (s)"),
        ("summary", "output_throughput", "output tokens/s"),
        ("summary", "request_throughput", "turns/s"),
        *[
            ("summary", f"{stat}_{name}_ms", f"{stat} {title} (ms)")
            for name, title, _ in LATENCIES
            for stat in ("p50", "p99")
        ],
        *[("engine", name, title) for name, title in ENGINE_ROWS],
    ]
    for part, name, title in rows:
        values = [(getattr(side, part) or {}).get(name) for side in (a, b)]
        if name in ONLY_IF_ANY and not any(values):
            continue
        cells = [text(value, name) for value in values]
        if cells != ["-", "-"]:
            quotient = (ratio.get(part) or {}).get(name)
            table.add_row(title, *cells, _times(quotient))
    console.print(table)
    for name, side in zip(names, (a, b), strict=True):
        print_notes(side, console, f"{name}: ")


def _times(quotient: float | None) -> str:
    """A ratio with two digits at least: one that is small is not 0."""
    if quotient is None:
        return "-"
    return f"{quotient:.2g}x" if 0 < abs(quotient) < 0.1 else f"{quotient:,.2f}x"
