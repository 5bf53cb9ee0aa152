"""The tables of what the engines of a cluster did: each pool, and each of its workers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.interference import slowdown
from loadgen.results.document import Document
from loadgen.results.tables import Table, text

_POOLS = {
    "routed": "requests",
    "prefill_tokens": "prefill",
    "decode_tokens": "decode",
    "found_tokens": "found",
    "hit_rate": "hit rate",
    "imbalance": "imbalance",
    "p50_decode_step_alone_ms": "alone p50",
    "p99_decode_step_alone_ms": "p99",
    "p50_decode_step_mixed_ms": "mixed p50",
    "p99_decode_step_mixed_ms": "p99 ",
    "slowdown": "mixed/alone",
}
_TRANSFERS = {
    "requests": "requests",
    "blocks": "blocks",
    "moved_bytes": "bytes",
    "p50_ms": "p50 (ms)",
    "p99_ms": "p99 (ms)",
    "max_ms": "max (ms)",
    "errors": "failed",
}
_SIDES = {"sent": ("gave", "sent_expired"), "received": ("took", "received_failed")}
_ALL = "all"


def cluster_tables(document: Document) -> list[Table]:
    """None for a server that is no cluster, or for runs that were merged."""
    cluster = (document["engine"] or {}).get("cluster")
    if not cluster:
        return []
    parts = list(_parts(document["engine"]))
    return [_pools(cluster, parts), *([transfers] if (transfers := _transfers(parts)).rows else [])]


def _parts(engine: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each pool with its workers below it, then all of them."""
    cluster = engine["cluster"]
    for role, pool in cluster["pools"].items():
        own = {name: worker for name, worker in cluster["workers"].items() if worker["role"] == role}
        yield f"{role} pool", {"routed": sum(worker["routed"] for worker in own.values()), **pool}
        for name, worker in sorted(own.items(), key=lambda one: (len(one[0]), one[0])):
            yield f"  {name}", worker
    whole = {"routed": sum(worker["routed"] for worker in cluster["workers"].values()), **engine}
    yield _ALL, whole | {"imbalance": cluster["imbalance"]}


def _table(
    title: str, parts: Sequence[tuple[str, Mapping[str, Any]]], columns: Mapping[str, str], caption: list[str]
) -> Table:
    known = {name: head for name, head in columns.items() if any(part.get(name) is not None for _, part in parts)}
    rows = tuple((whose, *(text(part.get(name), name) for name in known)) for whose, part in parts)
    return Table(title, rows, ("", *known.values()), tuple(caption))


def _pools(cluster: Mapping[str, Any], parts: list[tuple[str, Mapping[str, Any]]]) -> Table:
    """Tokens, hits and interference."""
    control = cluster["control"]
    separate = "separated" if control["separate"] else "colocated"
    router = cluster["router"]
    caption = [
        f"{separate}; routed by {control['routing']}; up to {control['local_prefill']:,} tokens prefilled where they "
        "decode.",
        f"Router: {text(router['decisions'])} decisions, {text(router['mean_decision_us'])} us each; "
        f"{text(router['by_prefix'])} by prefix, {text(router['bounded'])} not by it for load, {text(router['local'])} "
        f"prefilled where they decode, {text(router['handed_over'])} handed over, {text(router['recovered'])} "
        "recovered.",
        "imbalance: of the tokens that each computed, the most over the mean. alone, mixed: milliseconds of steps with",
        "decodes, without and with prefill tokens in them. found: tokens found in a worker's prefix cache.",
    ]
    with_slowdown = [(title, {**part, "slowdown": slowdown(part)}) for title, part in parts]
    return _table("Cluster", with_slowdown, _POOLS, caption)


def _transfers(parts: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """What went from one engine to another, by both of its ends."""
    caption = [
        "gave: from the offer until it was acknowledged, or expired (failed). took: from having blocks for it until",
        "they were filled; what failed was computed again there.",
    ]
    told = [
        (f"{title} {verb}", _side(part, side, errors))
        for side, (verb, errors) in _SIDES.items()
        for title, part in parts
        if title != _ALL and (part.get(f"{side}_requests") or part.get(errors))
    ]
    return _table("KV transfers", told, _TRANSFERS, caption)


def _side(part: Mapping[str, Any], side: str, errors: str) -> dict[str, Any]:
    """Its figures without the side in their names."""
    names = {
        "requests": f"{side}_requests",
        "blocks": f"{side}_blocks",
        "moved_bytes": f"{side}_bytes",
        "errors": errors,
    }
    names |= {f"{statistic}_ms": f"{statistic}_{side}_ms" for statistic in ("p50", "p99", "max")}
    return {name: part.get(of) for name, of in names.items()}
