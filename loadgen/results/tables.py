"""The tables of a report, as text in cells: what a terminal and a page show alike. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.quirks import NOWHERE, place
from loadgen.results.document import Document

STATISTICS = ("mean", "std", "min", "p50", "p90", "p95", "p99", "max")
FEWER_STATISTICS = ("mean", "p50", "p90", "p99", "max")
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
TITLES = {name: title for name, title, _ in LATENCIES}
ENGINE_ROWS = (
    ("modes", "modes seen (batching+allocation)"),
    ("steps", "steps"),
    ("mean_step_ms", "mean step (ms)"),
    ("mean_batch_rows", "mean rows of a step"),
    ("peak_batch_rows", "peak rows of a step"),
    ("decode_steps_alone", "steps with decodes alone"),
    ("p50_decode_step_alone_ms", "  p50 (ms)"),
    ("p99_decode_step_alone_ms", "  p99 (ms)"),
    ("max_decode_step_alone_ms", "  longest (ms)"),
    ("decode_steps_mixed", "steps with decodes and prefill tokens"),
    ("p50_decode_step_mixed_ms", "  p50 of these (ms)"),
    ("p99_decode_step_mixed_ms", "  p99 of these (ms)"),
    ("max_decode_step_mixed_ms", "  longest of these (ms)"),
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
    ("sent_requests", "requests handed over to other engines"),
    ("sent_blocks", "  blocks"),
    ("sent_bytes", "  bytes"),
    ("p50_sent_ms", "  blocks held for it, p50 (ms)"),
    ("p99_sent_ms", "  blocks held for it, p99 (ms)"),
    ("sent_expired", "  leases that expired"),
    ("received_requests", "requests received from other engines"),
    ("received_blocks", "  blocks moved"),
    ("received_bytes", "  bytes moved"),
    ("p50_received_ms", "  time of a transfer, p50 (ms)"),
    ("p99_received_ms", "  time of a transfer, p99 (ms)"),
    ("received_failed", "  transfers that failed"),
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
        *(f"{statistic}_decode_step_{steps}_ms" for statistic in ("p50", "p99", "max") for steps in ("alone", "mixed")),
        *(
            f"{side}_{what}"
            for side in ("sent", "received")
            for what in ("requests", "blocks", "bytes", "expired", "failed")
        ),
        *(f"{statistic}_{side}_ms" for statistic in ("p50", "p99") for side in ("sent", "received")),
    }
)


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row names it; the others are figures. Without `columns` there is no head."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...] = ()
    caption: tuple[str, ...] = ()
    prose: bool = False  # the cells are words, not figures

    @property
    def widths(self) -> tuple[int, ...]:
        """Of its columns, in letters."""
        lines = (self.columns, *self.rows) if self.columns else self.rows
        return tuple(max(map(len, cells)) for cells in zip(*lines, strict=True))

    def part(self, begin: int, end: int) -> Table:
        """The names with some of the columns of figures."""
        chosen = slice(begin + 1, end + 1)
        rows = tuple((row[0], *row[chosen]) for row in self.rows)
        caption = self.caption if end >= len(self.columns) - 1 else ()
        return Table(self.title, rows, (self.columns[0], *self.columns[chosen]), caption, self.prose)


def text(value: Any, name: str = "") -> str:
    """A figure for a table; a dash for one that does not exist."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(text(one) for one in value) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text(one)}" for key, one in value.items()) or "-"
    if isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        return f"{value / 2**20:,.1f} MiB"
    if name.endswith(("_share", "_rate", "_usage", "attainment")):
        return f"{value:.2%}"
    if isinstance(value, float):
        decimals = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 3
        return f"{value:,.{decimals}f}"
    return f"{value:,}"


def _present(*pairs: tuple[str, Any]) -> str:
    """What is known, with its words, in one line."""
    return ", ".join(words.format(text(value)) for words, value in pairs if value not in (None, "", [], ()))


def run_table(document: Document) -> Table:
    """What was asked for, of whom, by what."""
    settings, server = document["settings"], document["server"]
    versions, machine = document["client"]["versions"], document["client"]["machine"]
    load = _present(
        ("arrivals {}", settings["arrivals"]),
        ("speed {}", None if settings["speed"] == 1 else f"{settings['speed']:g}"),
        ("at most {} in flight", settings["concurrency"]),
        ("seed {}", settings["seed"]),
        ("{} client processes", settings["workers"] if settings["workers"] != 1 else None),
        ("answers of the model's own length", None if settings["ignore_eos"] else True),
        ("not streamed", None if settings["stream"] else True),
        ("lengths times {}", settings["length_scale"] and f"{settings['length_scale']:.15g}"),
        ("until {}", settings["until"]),
        ("retries {}", settings["retries"] or None),
        ("refusals tried again {} times at most", settings.get("retry_refused") or None),
    )
    control = ", ".join(f"{name} {text(value)}" for name, value in settings["control"].items())
    whose = "an engine of loadgen's own" if settings["engine_started_by_loadgen"] else None
    metrics = server.get("metrics") or {}
    kind = server.get("kind") if server.get("kind") != "unknown" else metrics.get("names_of")
    memory = machine.get("memory_bytes")
    rows = [
        ("trace", _present(("{}", settings["file"]), ("{}", settings["format"]))),
        ("played", f"{settings['sessions']:,} sessions, {settings['turns']:,} turns, from {settings['started_at']}"),
        ("load", load),
        ("control", control),
        ("pools", settings.get("pools") or ""),
        ("limits (SLO)", settings["slo"] or ""),
        (
            "server",
            _present(
                ("{}", whose),
                ("{}", kind),
                ("version {}", server.get("version") or metrics.get("version")),
                ("at {}", settings["url"]),
                ("metrics at {}", settings.get("metrics_url")),
            ),
        ),
        ("found out", _found_out(server.get("found") or {})),
        (
            "let in",
            _present(
                ("headers {}", settings.get("headers")),
                ("certificates of {}", settings.get("ca_file")),
                ("no certificate checked", settings.get("insecure") or None),
            ),
        ),
        ("model", _present(("{}", settings["model"]), ("context of {} tokens", server.get("max_model_len")))),
        ("engine arguments", " ".join(settings["engine_args"] or ())),
        (
            "client",
            _present(
                ("{}", machine.get("processor")),
                ("{} cores", machine.get("cores")),
                ("{} GiB", None if memory is None else round(memory / 2**30)),
                ("load {} before the run", machine.get("load_1_min")),
                ("{}", machine.get("system")),
            ),
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    return Table("Run", tuple(row for row in rows if row[1]), prose=True)


def _found_out(found: Mapping[str, Any]) -> str:
    """What the trial's answer had."""
    done, role, eos = found.get("done"), found.get("opens_with_role"), found.get("ignore_eos")
    usage, cached = found.get("usage"), found.get("cached")
    return _present(
        ("tokens told {}", usage and place(usage)),
        ("cached ones {}", None if cached in (None, NOWHERE) else place(cached)),  # it had none, perhaps
        ("ignore_eos {}", eos),
        ("a chat opens with a chunk of no text" if role else "a chat opens with text", role is not None or None),
        ("streams end with [DONE]" if done else "streams end without [DONE]", done is not None or None),
    )


def _of(count: int | None, every: int) -> str:
    return f"not known, of {every:,}" if count is None else f"{count:,} of {every:,}"


def outcome_table(document: Document) -> Table:
    """What became of the turns, and how much there was in how long."""
    summary, engine = document["summary"], document["engine"]
    rows = [
        ("sessions served whole", _of(summary["sessions_completed"], summary["sessions"])),
        ("turns completed", f"{summary['completed']:,} of {summary['turns']:,}"),
        ("turns failed", text(summary["failed"])),
        *((f"  {outcome}", text(count)) for outcome, count in summary["failures"].items()),
    ]
    if summary["interrupted"] or summary["not_reached"]:
        rows += [
            ("turns interrupted in flight", text(summary["interrupted"])),
            ("  chunks that they had got", text(summary["interrupted_chunks"])),
            ("turns not reached", text(summary["not_reached"])),
        ]
    for name, title in (
        ("warmup_requests", "requests of the warm-up, left apart"),
        ("cooldown_requests", "requests of the cool-down, left apart"),
        ("retries", "requests sent again"),
        ("refusals", "  after 429 or 503"),
        ("refusal_wait_s", "  seconds waited for that, within the latencies"),
    ):
        if summary.get(name):
            rows.append((title, text(summary[name])))
    rows += [
        ("wall time, first send to last response (s)", text(summary["duration"])),
        ("input tokens", text(summary["total_input_tokens"])),
    ]
    if summary["hit_rate"] is not None:
        rows.append(("  found in the server's prefix cache, by its usage", text(summary["hit_rate"], "_rate")))
    rows += [
        (f"output tokens (from {summary['token_source']})", text(summary["total_output_tokens"])),
        ("turns/s", text(summary["request_throughput"])),
        ("output tokens/s", text(summary["output_throughput"])),
        ("all tokens/s", text(summary["total_token_throughput"])),
    ]
    if summary["other_length_than_asked"]:
        rows.append(("answers of another length than asked", text(summary["other_length_than_asked"])))
    if summary.get("shorter_than_asked"):
        rows.append(("  shorter ones", text(summary["shorter_than_asked"])))
        rows.append(("  tokens that they lack", text(summary["tokens_short"])))
    if len(summary.get("finish_reasons") or ()) > 1:
        rows.append(("answers by finish_reason", text(summary["finish_reasons"])))
    if summary["asked_input_mismatches"]:
        rows.append(("prompts of another length than asked", text(summary["asked_input_mismatches"])))
    if engine and engine.get("peak_rss_bytes"):
        rows.append(("peak memory of the engine", text(engine["peak_rss_bytes"], "_bytes")))
    for name, title in (
        ("client_cpu_share", "loadgen's own CPU (share of one core)"),
        ("client_p99_loop_lag_ms", "loadgen's event loop late, p99 (ms)"),
    ):
        if name in summary:
            rows.append((title, text(summary[name], name)))
    return Table("Outcome", tuple(rows))


def failure_table(document: Document) -> Table | None:
    """How often each kind of failure came, and the request by which the first one is found in the server's logs."""
    firsts = document.get("first_failures") or {}
    rows = tuple(
        (kind, text(count), firsts[kind]["request_id"] or "-")
        for kind, count in document["summary"]["failures"].items()
        if kind in firsts
    )
    if not any(row[2] != "-" for row in rows):
        return None
    return Table("Failures", rows, ("", "turns", "X-Request-Id of the first"))


def goodput_table(document: Document) -> Table | None:
    """Which share of the requests kept to each limit, and how many a second to all; None without limits."""
    summary = document["summary"]
    if not summary["slo"]:
        return None
    by_limit = summary["slo_attainment_by_limit"]
    rows = [
        (f"{TITLES[name]} at most", f"{text(limit)} ms", text(by_limit[name], "attainment"))
        for name, limit in summary["slo"].items()
    ]
    together = f"{text(summary['slo_met'])} of {text(summary['slo_met'] + summary['slo_missed'])}"
    rows += [
        ("all of them", together, text(summary["slo_attainment"], "attainment")),
        ("goodput", "requests/s", text(summary["goodput"])),
    ]
    return Table("Goodput", tuple(rows), ("", "limit", "attained"), ("A failed request misses every limit.",))


def latency_table(document: Document, statistics: Sequence[str] = STATISTICS) -> Table:
    """Every latency's statistics with the count behind them."""
    summary = document["summary"]
    rows = []
    for name, title, _ in LATENCIES:
        seconds = (summary[f"max_{name}_ms"] or 0) >= IN_SECONDS_FROM
        values = [summary[f"{statistic}_{name}_ms"] for statistic in statistics]
        if seconds:
            values = [None if value is None else value / 1000 for value in values]
        rows.append((f"{title} ({'s' if seconds else 'ms'})", *map(text, values), text(summary[f"count_{name}"])))
    caption = [f"{title}: {definition}." for _, title, definition in LATENCIES]
    if summary["failed"]:
        caption.append("TTFT and E2E percentiles count failed turns as infinitely slow; - is among those.")
    chunks, tokens = summary["total_chunks"], summary["total_output_tokens"]
    if chunks != tokens:
        caption.append(f"{tokens:,} tokens came in {chunks:,} chunks with content: ITL is not per token.")
    return Table("Latency", tuple(rows), ("", *statistics, "n"), tuple(caption))


def engine_table(document: Document) -> Table | None:
    """What the engine tells of itself; a column for each run where several were merged, or for each of its lives."""
    runs = document.get("runs", [document])
    engines = [run["engine"] or {} for run in runs]
    if not any(engines):
        return None
    named = "run"
    if len(runs) == 1 and (earlier := engines[0].get("earlier_lives")):
        engines, named = [*earlier, engines[0]], "life"
    rows = tuple(
        (title, *(text(engine.get(name), name) for engine in engines))
        for name, title in ENGINE_ROWS
        if any(name in engine and (engine[name] or name not in ONLY_IF_ANY) for engine in engines)
    )
    columns = () if len(engines) == 1 else ("", *(f"{named} {number}" for number in range(1, len(engines) + 1)))
    cluster = len(engines) == 1 and "cluster" in engines[0]
    title = "Engines of the cluster together, from their step streams" if cluster else "Engine, from its step stream"
    return Table(title, rows, columns)


def side_by_side(documents: Sequence[Document], names: Sequence[str], ratio: bool = False) -> Table:
    """Several runs' main figures, a column each, and with `ratio` one of the second of two / the first."""
    rows = []
    for part, name, title in _COMPARED:
        values = [(document[part] or {}).get(name) for document in documents]
        if all(value is None for value in values) or (name in ONLY_IF_ANY and not any(values)):
            continue
        rows.append((title, *(text(value, name) for value in values), *((_times(*values),) if ratio else ())))
    return Table("Side by side", tuple(rows), ("", *names, *(("ratio",) if ratio else ())))


def _times(before: Any, after: Any) -> str:
    """A ratio with two digits at least: one that is small is not 0."""
    if not isinstance(before, int | float) or not isinstance(after, int | float) or not before:
        return "-"
    quotient = after / before
    return f"{quotient:.2g}x" if 0 < abs(quotient) < 0.1 else f"{quotient:,.2f}x"


_COMPARED = (
    ("summary", "completed", "turns completed"),
    ("summary", "failed", "turns failed"),
    ("summary", "duration", "wall time (s)"),
    ("summary", "output_throughput", "output tokens/s"),
    ("summary", "request_throughput", "turns/s"),
    ("summary", "goodput", "goodput (turns/s within the limits)"),
    ("summary", "slo_attainment", "turns within the limits"),
    *(
        ("summary", f"{stat}_{name}_ms", f"{stat} {title} (ms)")
        for name, title, _ in LATENCIES
        for stat in ("p50", "p99")
    ),
    *(("engine", name, title) for name, title in ENGINE_ROWS),
)
