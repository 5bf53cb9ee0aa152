"""Servers' figures as data, for `--json`: what is not told is null, and quantiles are what they are at most."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from servers.measures import Measures
from servers.terms import COUNTERS, GAUGES, HISTOGRAMS
from tui.sources.fleet import Row, rows, totals
from tui.sources.view import FleetView, ServerView

_UNSEEN = re.compile(r"[^\n -~]")
PERCENTILES = (50, 90, 99)
# Terms that a server may have and does not tell are null; those behind these are of the project's own engine alone.
_COMMON = frozenset((*COUNTERS[: COUNTERS.index("steps") + 1], *GAUGES[: GAUGES.index("hit_rate") + 1]))


def server_report(view: ServerView, seconds: float) -> dict[str, Any]:
    """One server over the last `seconds`, which are its `window_seconds`; `observed_seconds` is how much of them there
    was, or a look more."""
    (row,) = rows(FleetView((view,), view.now), seconds)
    return _of_row(row)


def fleet_report(view: FleetView, seconds: float) -> dict[str, Any]:
    """All of them, and the total of those that tell now."""
    found = rows(view, seconds)
    together = totals(found)
    measures = together.measures
    total = {
        "servers": together.servers,
        "telling": len(together.parts),
        "window_seconds": seconds,
        **_figures(measures, together.hit_rate, lambda term: together.sum(lambda part: part.rate(term))),
        "told_by": dict(measures.told_by) if measures is not None else {},
    }
    return {"servers": [_of_row(row) for row in found], "total": total}


def encode(report: dict[str, Any]) -> str:
    """JSON for people and programs: what a server calls itself is escaped where it could move a terminal's cursor."""
    text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    return _UNSEEN.sub(lambda found: found[0] if found[0].isprintable() else _escaped(found[0]), text)


def _escaped(sign: str) -> str:
    return json.dumps(sign)[1:-1]


def _of_row(row: Row) -> dict[str, Any]:
    """Figures of a server that does not tell now are not given as if it did: `age` says when it last told."""
    view = row.server
    measures = row.measures if row.tells else None
    engines = view.engines if row.tells and len(view.engines) > 1 else ()
    return {
        "name": view.name,
        "url": view.url,
        "kind": view.kind or None,
        "version": view.version or None,
        "phase": view.link.phase,
        "detail": view.link.detail,
        "age_seconds": view.link.age,
        "models": list(row.models),
        "facts": view.facts,
        "window_seconds": row.seconds,
        "observed_seconds": measures.seconds if measures is not None else None,
        "restarted": measures.restarted if measures is not None else None,
        **_of_measures(measures),
        "engines": [
            {"model": engine.model, "rank": engine.rank, **_of_measures(view.measure(row.seconds, engine))}
            for engine in engines
        ],
        "slots": msgspec.to_builtins(view.slots) if view.slots is not None and row.tells else None,
        "kv_events": [
            {
                "endpoint": kv.endpoint,
                "phase": kv.phase,
                "detail": kv.detail,
                "messages": kv.heard,
                "resident_blocks": kv.tree.resident,
                "complete": kv.tree.complete,
                "of_process_before": view.outlived(kv) is not None,
            }
            for kv in view.kv
        ],
    }


def _of_measures(measures: Measures | None) -> dict[str, Any]:
    if measures is None:
        return _figures(None, None, lambda term: None)
    return _figures(measures, measures.hit_rate, measures.rate)


def _figures(measures: Measures | None, hit_rate: float | None, rate: Callable[[str], float | None]) -> dict[str, Any]:
    gauges = measures.gauges if measures is not None else {}
    rates = {term: rate(term) for term in COUNTERS}
    return {
        "gauges": {term: gauges.get(term) for term in GAUGES if term in gauges or term in _COMMON},
        "rates": {term: value for term, value in rates.items() if value is not None or term in _COMMON},
        "hit_rate": hit_rate,
        "quantiles": {term: _quantiles(measures, term) for term in HISTOGRAMS},
    }


def _quantiles(measures: Measures | None, term: str) -> dict[str, Any] | None:
    """None where none came. Beyond the last bound of its buckets nothing is known but that it is more."""
    count = measures.count(term) if measures is not None else None
    if measures is None or not count:
        return None
    out: dict[str, Any] = {"count": count, "mean": measures.mean(term)}
    bounds = [bound for bound in measures.histograms[term].upto if bound < math.inf]
    for percent in PERCENTILES:
        most = measures.at_most(term, percent)
        beyond = most is None or math.isinf(most)
        out[f"p{percent}_at_most"] = None if beyond else most
        if beyond and bounds:
            out[f"p{percent}_more_than"] = max(bounds)
    return out
