"""What a reader must know of a run beside its figures, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadgen.agreement import Agreement, Found, PrefixHits, Verdict
from loadgen.outcome import RequestRecord
from loadgen.quirks import IgnoreEos, quirks_of
from loadgen.results.run_file import BY_HAND, ENGINE_ENDED, RunFile
from loadgen.self_watch import CPU_SHARE_LIMIT

_REMEDY = "Give it more --workers or a faster machine."
_OTHERS = "It waited for a processor that others used: leave the machine to it, or give it one of its own."


def warnings(run: RunFile, summary: Mapping[str, Any], agree: Agreement, kind: str = "unknown") -> list[str]:
    """What may make the figures wrong, or not those that were asked for: told before them."""
    told = []
    if summary.get("client_is_bottleneck"):
        share, lag = summary.get("client_cpu_share") or 0.0, summary.get("client_p99_loop_lag_ms") or 0.0
        told.append(
            f"loadgen itself was slow (CPU {share:.0%} of a core, event loop late by {lag:.0f} ms at p99): latencies "
            f"include that. {_REMEDY if share > CPU_SHARE_LIMIT else _OTHERS}"
        )
    if run.end is None:
        told.append(
            "The file has no end: loadgen was killed, or still runs. These are the requests written so far, and what "
            "was in flight counts as not reached."
        )
    elif run.end.stopped_by in (BY_HAND, ENGINE_ENDED):
        told.append(f"Interrupted by {run.end.stopped_by}: the report of what was measured so far.")
    for what, tokens in (("prompts", agree.prompt), ("answers", agree.generation)):
        if tokens.verdict is Verdict.DIFFER:
            told.append(
                f"The server counted {tokens.server:,} tokens of {what}, its clients here {tokens.client:,}: either it "
                "served others too, or its usage is wrong, and so are tokens/s."
            )
    if agree.prefix.verdict is Verdict.DIFFER:
        found = [f"{count.tokens:,}" for count in _counts(agree.prefix) if count.tokens is not None]
        told.append(
            f"Prompt tokens found in the prefix cache: {found[0]} by the usage of the answers, "
            f"{' and '.join(found[1:])} by the server: somebody else used it, or one of them counts wrongly."
        )
    if run.header.settings.ignore_eos and (shorter := summary.get("shorter_than_asked")):
        told.append(
            f"{shorter:,} of {summary['completed']:,} answers were shorter than the trace asks, by "
            f"{summary['tokens_short']:,} tokens in all: {_why_shorter(run, kind)}. The load was lighter than the "
            "trace's."
        )
    if run.header.settings.insecure:
        told.append("The server's certificate was not checked (--insecure): who answered is not known.")
    if run.torn:
        told.append("The last line of the file was cut while it was written, and is left out.")
    return told


def _counts(prefix: PrefixHits) -> list[Found]:
    return [count for count in (prefix.client, prefix.server, prefix.engine) if count is not None]


def _why_shorter(run: RunFile, kind: str) -> str:
    quirks = quirks_of(kind)
    if "ignore_eos" in run.header.server.get("left_out", {}) or quirks.ignore_eos is IgnoreEos.REFUSED:
        return f"{quirks.title} takes no ignore_eos"
    if quirks.ignore_eos is IgnoreEos.IGNORED:
        return f"{quirks.title} has no ignore_eos, and takes it without effect"
    return "the server took ignore_eos, and they ended all the same"


def notes(run: RunFile, summary: Mapping[str, Any], first_failures: Iterable[RequestRecord]) -> list[str]:
    """The first failure of each kind in the server's own words, and what makes this run unlike another."""
    told = [
        f"First '{record.kind}': session {record.session} turn {record.turn}: {record.detail}"
        for record in first_failures
    ]
    if cut := summary["interrupted"]:
        told.append(
            f"Turns interrupted in flight: {cut:,}. Tokens/s and turns/s count completed turns alone, "
            "over the whole time."
        )
    if mismatches := summary["asked_input_mismatches"]:
        told.append(f"{mismatches:,} prompts had another number of tokens, by the server's usage, than the trace asks.")
    if retries := summary["retries"]:
        told.append(f"Requests were tried again {retries:,} times; their latencies are from the first try.")
    if refusals := summary.get("refusals"):
        told.append(
            f"The server refused {refusals:,} times (429 or 503) and was asked again after a wait, "
            f"{summary['refusal_wait_s']:,.1f} s in all: that is in the latencies."
        )
    if summary["warmup_requests"] or summary["cooldown_requests"]:
        told.append(
            f"Left out of the figures: {summary['warmup_requests']:,} requests of the warm-up, "
            f"{summary['cooldown_requests']:,} of the cool-down. Figures of the engine and the server include them."
        )
    if run.resumed:
        when = ", ".join(f"{resumed.at:.1f} s" for resumed in run.resumed)
        told.append(
            f"The run was resumed at {when}; the figures of the engine, the server and loadgen itself are of its last "
            "part."
        )
    if run.end is not None:
        told += _of_end(run, run.header.settings.speed)
    return told


def _of_end(run: RunFile, asked_speed: float) -> list[str]:
    assert run.end is not None
    told = list(run.end.notes)
    if (rule := run.end.stopped_by) not in (None, BY_HAND, ENGINE_ENDED):
        told.append(f"It ended early, as --until asked: {rule}.")
    if changes := run.end.speed_changes:
        speeds = ", ".join(f"{speed:g} from second {second:.1f} on" for second, speed in changes)
        told.append(f"The speed was changed while it ran: {asked_speed:g} was asked for, then {speeds}.")
    return told
