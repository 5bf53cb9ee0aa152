"""A server's own figures over a run, from looks at its /metrics: how it grew, and how high its gauges were. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servers.measures import Measures
from servers.reading import Reading
from servers.terms import Engine

COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "requests",
    "preemptions",
    "prefix_hit_tokens",
    "prefix_queried_tokens",
)
GAUGES = ("running", "waiting", "kv_usage")
HISTOGRAMS = ("ttft", "itl", "tpot", "e2el", "queue")
PERCENTILES = (50, 90, 99)
_BY_BLOCKS = {"prefix_hit_tokens": "prefix_hit_blocks", "prefix_queried_tokens": "prefix_queried_blocks"}

Figures = dict[str, Any]


@dataclass(slots=True)
class _Level:
    looks: int = 0
    total: float = 0.0
    most: float = -math.inf


@dataclass(slots=True)
class Levels:
    """Each gauge of a server and of each of its engines, over all looks that told it, in memory that does not grow."""

    _levels: dict[tuple[Engine | None, str], _Level] = field(default_factory=dict)

    def take(self, reading: Reading) -> None:
        """Count a look in."""
        for term, total in reading.totals().items():
            self._add(None, term, total)
        for term in GAUGES:
            for engine, value in reading.gauges.get(term, {}).items():
                self._add(engine, term, value)

    def _add(self, engine: Engine | None, term: str, value: float) -> None:
        if not math.isfinite(value):
            return
        level = self._levels.setdefault((engine, term), _Level())
        level.looks += 1
        level.total += value
        level.most = max(level.most, value)

    def figures(self, engine: Engine | None = None) -> Figures:
        """Mean and maximum of each gauge, of all engines together or of one; None where the server has none.

        Shares of KV memory are weighted by its size, never added up.
        """
        figures: Figures = {}
        for term in GAUGES:
            level = self._levels.get((engine, term))
            figures[f"mean_{term}"] = None if level is None else level.total / level.looks
            figures[f"max_{term}"] = None if level is None else level.most
        return figures


def growth(measures: Measures) -> Figures:
    """How much was counted between two looks, in tokens, requests and milliseconds. None: not told, or unknown."""
    figures: Figures = {}
    for term in COUNTERS:
        grown = measures.growth.get(term)
        figures[term] = None if grown is None or not math.isfinite(grown) else round(grown)
    figures["prefix_hit_rate"] = measures.hit_rate
    for term in HISTOGRAMS:
        figures |= _latency(term, measures)
    return figures


def _latency(term: str, measures: Measures) -> Figures:
    """The mean, and what the percentiles are at most: their bucket's bound. From seconds to milliseconds."""
    count = measures.count(term)
    figures: Figures = {f"mean_{term}_ms": _milliseconds(measures.mean(term))}
    for percent in PERCENTILES:
        figures[f"p{percent}_{term}_at_most_ms"] = _milliseconds(measures.at_most(term, percent))
    figures[f"count_{term}"] = None if count is None else round(count)
    return figures


def _milliseconds(seconds: float | None) -> float | None:
    """None too for what is beyond the last bound of a histogram."""
    return None if seconds is None or not math.isfinite(seconds) else seconds * 1000


def untold(reading: Reading, missing: Mapping[str, str]) -> dict[str, str]:
    """What a reader of the figures looks for and the server does not tell; with why, where `missing` knows it."""
    told = {*reading.counters, *reading.gauges, *reading.histograms}
    wanted = (*COUNTERS, *GAUGES, *HISTOGRAMS)
    lacking = [term for term in wanted if term not in told and _BY_BLOCKS.get(term) not in told]
    return {term: missing.get(term, "") for term in lacking}
