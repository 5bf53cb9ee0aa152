"""Whether client and server counted the same tokens, and the same prefix hits, over a run. Pure.

They must: the client adds up the usage of its answers, the server what it computed for them. Where they do not, either
somebody else used the server, or one of them counts wrongly, and every rate of tokens is in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest

import msgspec

from loadgen.metrics.summary import Figures
from loadgen.metrics.window import WHOLE_RUN
from loadgen.outcome import Outcome, TokenSource
from loadgen.quirks import Quirks, quirks_of
from loadgen.server_figures import COUNTERS


class Verdict(StrEnum):
    AGREE = "agree"
    DIFFER = "differ"
    UNKNOWN = "cannot be told"


class Tokens(msgspec.Struct, frozen=True):
    """One kind of tokens by both counts; None: not counted. `reason` says why it cannot be told."""

    client: int | None
    server: int | None
    verdict: Verdict
    reason: str = ""


class Found(msgspec.Struct, frozen=True):
    """Prompt tokens found in the prefix cache, `of` so many looked up, by one count; None: not told."""

    tokens: int | None = None
    of: int | None = None


class PrefixHits(msgspec.Struct, frozen=True):
    """The same hits by the usage of the answers, by the server's metrics, and by a paged-engine's own step stream."""

    client: Found = Found()
    server: Found = Found()
    engine: Found | None = None  # None: there is no step stream
    verdict: Verdict = Verdict.UNKNOWN
    reason: str = ""


class Agreement(msgspec.Struct, frozen=True):
    """Of a whole run, warm-up and all: the server knows no window.

    `model`: that which the server's counts are of, where its page has others too; empty: they are of all.
    """

    prompt: Tokens
    generation: Tokens
    prefix: PrefixHits = PrefixHits()
    model: str = ""


def agreement(
    whole: Figures,
    parts: Sequence[Mapping[str, object] | None],
    engines: Sequence[Mapping[str, object] | None] = (),
    kind: str = "unknown",
    model: str = "",
) -> Agreement:
    """Lay the figures of a run beside those of `ServerMetrics`, one for each part of a run that was resumed.

    `engines` are those of an engine's step stream, likewise; `kind` is the server's, `model` the one that was asked;
    a trace may name others. Raises ValueError for figures that leave out requests of the run.
    """
    if whole.window != WHOLE_RUN:
        raise ValueError("tokens are compared over the whole run, not over a window of it")
    summary = whole.summary()
    parts = [_counted_once(part, engine) for part, engine in zip_longest(parts, engines)]
    engines = [_counted_once(engine, engine) for engine in engines]
    own = [_of_model(part, model) for part in parts]
    if own == list(parts) or _sum(parts, "prompt_tokens") == summary["total_input_tokens"]:
        model = ""
    else:
        parts = own
    doubts = [*_doubts(whole, len(parts)), *_doubts_of_clusters(engines)]
    not_usage = [
        str(source) for source, count in whole.token_sources.items() if count and source is not TokenSource.USAGE
    ]
    by_usage = [f"the client counts by {' and '.join(not_usage)}, not by the server's usage"] if not_usage else []
    return Agreement(
        prompt=_compare(summary["total_input_tokens"], [_told(part, "prompt_tokens") for part in parts], doubts),
        generation=_compare(
            summary["total_output_tokens"], [_told(part, "generation_tokens") for part in parts], by_usage + doubts
        ),
        prefix=_prefix(whole, parts, engines, quirks_of(kind), doubts),
        model=model,
    )


_ONCE = {  # what a request that went from one engine to another is counted in by both, and the second's part of it
    "prompt_tokens": "continued_prompt_tokens",
    "prefix_queried_tokens": "continued_looked_up_tokens",
    "prefix_hit_tokens": "continued_found_tokens",
    "looked_up_tokens": "continued_looked_up_tokens",
    "found_tokens": "continued_found_tokens",
}


def _counted_once(
    part: Mapping[str, object] | None, engine: Mapping[str, object] | None
) -> Mapping[str, object] | None:
    """A part's counts without what engines went on with after others; its own engines' are left as they are."""
    if part is None or engine is None:
        return part
    once: dict[str, object] = {}
    for name, again in _ONCE.items():
        count, twice = _told(part, name), _told(engine, again)
        if count is not None and twice:
            once[name] = count - twice
    return {**part, **once}


def _doubts_of_clusters(engines: Sequence[Mapping[str, object] | None]) -> list[str]:
    """Why a cluster's counts and the client's may differ, and nobody counted wrongly."""
    doubts = []
    for engine in engines:
        cluster = (engine or {}).get("cluster")
        if not isinstance(cluster, dict):
            continue
        if recovered := cluster["router"]["recovered"]:
            doubts.append(f"{recovered:,} requests went on elsewhere, after a death, a drain or an overdue transfer")
        restarted = sorted(name for name, worker in cluster["workers"].items() if worker["restarts"])
        doubts += [f"{name} was started again" for name in restarted]
        if any(not worker["streamed"] for worker in cluster["workers"].values()):
            doubts.append("not every worker's step stream was read")
    return doubts


def _of_model(part: Mapping[str, object] | None, model: str) -> Mapping[str, object] | None:
    """A part's figures of one model, where its page has that one beside others; else all there are."""
    engines = (part or {}).get("engines")
    if part is None or not isinstance(engines, list):
        return part
    own = [engine for engine in engines if engine["model"] == model]
    if len(own) in (0, len(engines)):
        return part
    return {**part, **{name: _sum(own, name) for name in COUNTERS}}


def _prefix(
    whole: Figures,
    parts: Sequence[Mapping[str, object] | None],
    engines: Sequence[Mapping[str, object] | None],
    quirks: Quirks,
    doubts: Sequence[str],
) -> PrefixHits:
    """Hits of the same lookups are equal, whatever share each side makes of them.

    An answer that tells none where others tell some had none, unless some tell a 0: older servers leave it out.
    """
    sums = whole.sums
    client = Found(sums.cached_tokens, sums.looked_up) if sums.caches_told else Found()
    server = Found(_sum(parts, "prefix_hit_tokens"), _sum(parts, "prefix_queried_tokens"))
    engine = None
    if any(one is not None for one in engines):
        engine = Found(_sum(engines, "found_tokens"), _sum(engines, "looked_up_tokens"))

    def told(verdict: Verdict, *reasons: str) -> PrefixHits:
        return PrefixHits(client, server, engine, verdict, "; ".join(reasons))

    known = [count.tokens for count in (server, engine or Found()) if count.tokens is not None]
    if client.tokens is None:
        flag = f"; {quirks.title} does when it is started with {quirks.cached_flag}" if quirks.cached_flag else ""
        if not sums.inputs_told:
            return told(Verdict.UNKNOWN, "no answer told its tokens")
        return told(Verdict.UNKNOWN, f"no answer told how many of its tokens were found{flag}")
    if not known:
        return told(Verdict.UNKNOWN, _why_untold(parts))
    if all(tokens == client.tokens for tokens in known):
        return told(Verdict.AGREE)
    untold = whole.outcomes[Outcome.COMPLETED] - sums.inputs_told
    counted = (
        (untold, "told no tokens"),
        (sums.uncached_untold, "did not tell how many of their tokens were found, as others did"),
    )
    excuses = [*doubts, *(f"{count:,} answers {what}" for count, what in counted if count)]
    if quirks.metrics_find_more and min(known) >= client.tokens and _sum(parts, "preemptions"):
        excuses.append(quirks.metrics_find_more)
    if quirks.usage_finds_more and max(known) <= client.tokens:
        excuses.append(quirks.usage_finds_more)
    return told(Verdict.UNKNOWN if excuses else Verdict.DIFFER, *excuses)


def _sum(parts: Sequence[Mapping[str, object] | None], name: str) -> int | None:
    """Of all parts; None if one does not tell."""
    told = [_told(part, name) for part in parts]
    return sum(tokens for tokens in told if tokens is not None) if told and None not in told else None


def _why_untold(parts: Sequence[Mapping[str, object] | None]) -> str:
    """Why there is no count of hits but that of usage."""
    if not any(parts):
        return "there are no figures from the server's metrics"
    if any(part is not None and part.get("restarted") for part in parts):
        return "the server began anew"
    if any(part is not None and part.get("prefix_hit_rate") is not None for part in parts):
        return "its metrics count blocks, not tokens"
    return "its metrics do not tell what was found in its prefix cache"


def _doubts(whole: Figures, parts: int) -> list[str]:
    """Why a difference may be nobody's mistake: the server worked for answers that the client never had whole."""
    failed = sum(
        count for outcome, count in whole.outcomes.items() if outcome.failed and outcome is not Outcome.NOT_SENT
    )
    counted = (
        (failed, "failed"),
        (whole.outcomes[Outcome.INTERRUPTED], "were interrupted"),
        (whole.sums.retries, "were tried again"),
    )
    doubts = [f"{count} requests {what}" for count, what in counted if count]
    return [*doubts, "the run was resumed"] if parts > 1 else doubts


def _told(part: Mapping[str, object] | None, name: str) -> int | None:
    value = None if part is None else part.get(name)
    return value if isinstance(value, int) else None


def _compare(client: object, parts: Sequence[int | None], doubts: Sequence[str]) -> Tokens:
    told = [part for part in parts if part is not None]
    server = sum(told) if told and len(told) == len(parts) else None
    if not isinstance(client, int):
        return Tokens(None, server, Verdict.UNKNOWN, "not every answer told its tokens")
    if server is None:
        return Tokens(client, None, Verdict.UNKNOWN, "the server does not tell, or began anew")
    if server == client:
        return Tokens(client, server, Verdict.AGREE)
    if doubts:
        return Tokens(client, server, Verdict.UNKNOWN, "; ".join(doubts))
    return Tokens(client, server, Verdict.DIFFER)
