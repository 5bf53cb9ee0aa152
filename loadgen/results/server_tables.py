"""The tables of what a server tells of itself, and of that beside what its client saw. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.quirks import quirks_of
from loadgen.results.document import Document, kind_of
from loadgen.results.tables import Table, text

SERVER_ROWS = (
    ("requests", "requests ended"),
    ("prompt_tokens", "prompt tokens"),
    ("generation_tokens", "tokens generated"),
    ("prefix_hit_rate", "prefix hit rate"),
    ("preemptions", "preemptions"),
    ("mean_running", "requests running, mean"),
    ("max_running", "  most"),
    ("mean_waiting", "requests waiting, mean"),
    ("max_waiting", "  most"),
    ("mean_kv_usage", "KV memory in use, mean"),
    ("max_kv_usage", "  most"),
)
_OF_ENGINES = {
    "requests": "requests",
    "prompt_tokens": "prompts",
    "generation_tokens": "answers",
    "prefix_hit_rate": "hit rate",
    "preemptions": "preempted",
    "mean_running": "running",
    "mean_waiting": "waiting",
    "mean_kv_usage": "KV memory",
    "max_kv_usage": "most",
}
_TITLES = {
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "tokens generated",
    "requests": "requests ended",
    "preemptions": "preemptions",
    "prefix_hit_tokens": "prefix hits",
    "prefix_queried_tokens": "prefix hits",
    "running": "requests running",
    "waiting": "requests waiting",
    "kv_usage": "KV memory",
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2el": "E2E",
    "queue": "queueing",
}


def server_table(document: Document) -> Table | None:
    """What the server's /metrics told over the run, of all its engines; None if none are known."""
    metrics = document["server"]["metrics"]
    if not metrics:
        return None
    rows = [(title, text(metrics.get(name), name)) for name, title in SERVER_ROWS if metrics.get(name) is not None]
    looks = "1 look" if metrics.get("looks") == 1 else f"{text(metrics.get('looks'))} looks"
    caption = [f"{looks} in {text(metrics.get('seconds'))} s at {metrics.get('where')}."]
    if failed := metrics.get("failed_looks"):
        caption.append(f"{text(failed)} more looks failed.")
    if metrics.get("restarted"):
        caption.append("A counter fell: the server was restarted, and what it had counted is not known.")
    if untold := metrics.get("untold"):
        lacking: dict[str, list[str]] = {}
        for term, why in untold.items():
            lacking.setdefault(why, []).append(_TITLES.get(term, term))
        caption += [
            f"Not told: {', '.join(dict.fromkeys(terms))}{why and f' ({why})'}." for why, terms in lacking.items()
        ]
    return Table("Server, from its /metrics", tuple(rows), caption=tuple(caption))


def engines_table(document: Document) -> Table | None:
    """The same of each engine behind a server's page, a row each; None where it does not tell several apart."""
    metrics = document["server"]["metrics"] or {}
    engines = sorted(metrics.get("engines") or [], key=_by_name)
    columns = [
        (name, title) for name, title in _OF_ENGINES.items() if any(engine.get(name) is not None for engine in engines)
    ]
    if not engines:
        return None
    one_model = len({engine["model"] for engine in engines}) == 1
    rows = [
        (_name(engine, with_model=not one_model), *(text(engine.get(name), name) for name, _ in columns))
        for engine in engines
    ]
    told = metrics.get("mean_kv_usage") is not None
    weighted = "that of each, weighted by its size" if told else "not known: not all tell how large theirs is"
    kv = any(name == "mean_kv_usage" for name, _ in columns)
    caption = ["Running, waiting and KV memory in use are means over the looks."]
    if kv:
        caption.append(f"KV memory in use of all together is {weighted}.")
    return Table("Engines of the server", tuple(rows), ("", *(title for _, title in columns)), tuple(caption))


def _name(engine: Mapping[str, Any], *, with_model: bool) -> str:
    return " ".join(filter(None, (engine["model"] if with_model or not engine["rank"] else "", engine["rank"])))


def _by_name(engine: Mapping[str, Any]) -> tuple[str, int, str]:
    """Ranks that are numbers in their order."""
    rank = engine["rank"]
    return engine["model"], int(rank) if rank.isdecimal() else -1, rank


def server_latency_table(document: Document) -> Table | None:
    """The latencies that the server itself measured, below those of the client; None if it tells none."""
    both = document.get("latency_by_both") or {}
    rows: list[tuple[str, ...]] = []
    beyond = False
    for name, title in (("ttft", "TTFT"), ("e2el", "E2E"), ("tpot", "TPOT"), ("itl", "ITL"), ("queue", "queueing")):
        sides = both.get(name)
        if sides is None or sides["server"]["mean"] is None:
            continue
        for side, values in sides.items():
            if side == "client" and values["mean"] is None:
                continue
            bound, ending = ("", "") if side == "client" else ("<= ", "_at_most")
            parts = [values[f"{part}{ending}"] for part in ("p50", "p90", "p99")]
            beyond = beyond or (side == "server" and None in parts)
            cells = ["-" if value is None else f"{bound}{text(value)}" for value in parts]
            rows.append((f"{title}, {side} (ms)", text(values["mean"]), *cells, text(values["count"])))
    if not rows:
        return None
    whole = "Of the whole run."
    if document.get("parts", 1) > 1:
        whole = "The client's are of the whole run, the server's of its last part: it was resumed."
    caption = [
        f"{whole} The server's percentiles are the bounds of its buckets: the value is at most that.",
        "It measures without the network, and may count tokens where the client counts chunks.",
    ]
    if beyond:
        caption.append("-: it is beyond the last of the server's bounds.")
    columns = ("", "mean", "p50", "p90", "p99", "n")
    return Table("Latency, as client and server measured it", tuple(rows), columns, tuple(caption))


def agreement_table(document: Document) -> Table | None:
    """Both counts of tokens and whether they agree; None where the server tells nothing."""
    agreement = document["agreement"]
    if agreement is None:
        return None
    counts, prefix = [agreement["prompt"], agreement["generation"]], agreement.get("prefix")
    told = [tokens["server"] for tokens in counts]
    if prefix is not None:
        told += [prefix["server"]["tokens"], (prefix["engine"] or {}).get("tokens")]
    if all(count is None for count in told):
        return None
    rows = [
        (title, text(tokens["client"]), text(tokens["server"]), tokens["verdict"])
        for title, tokens in zip(("prompts", "answers"), counts, strict=True)
    ]
    if prefix is not None:
        rows.append(
            ("found in the prefix cache", _found(prefix["client"]), _found(prefix["server"]), prefix["verdict"])
        )
        counts.append(prefix)
    reasons = dict.fromkeys(tokens["reason"] for tokens in counts if tokens["reason"])
    caption = [f"It cannot be told: {reason}." for reason in reasons]
    if model := agreement.get("model"):
        caption.append(f"The server's counts are of {model} alone.")
    quirks = quirks_of(kind_of(document["server"], document["server"]["metrics"]))
    if prefix is not None and quirks.counts_hits:
        caption.append(f"{quirks.title} counts prefix hits so: {quirks.counts_hits}.")
    if prefix is not None and prefix["engine"] is not None:
        caption.append(f"Found in the prefix cache by the engine's step stream: {_found(prefix['engine'])}.")
    return Table("Tokens, counted by both", tuple(rows), ("", "client", "server", ""), tuple(caption))


def _found(count: Mapping[str, Any]) -> str:
    """Tokens, and which share they are of those looked up."""
    tokens, of = count["tokens"], count["of"]
    return text(tokens) if tokens is None or not of else f"{tokens:,} ({tokens / of:.2%})"
