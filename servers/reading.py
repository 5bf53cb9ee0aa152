"""One look at a server's /metrics, read into the terms. Pure.

Counters and histograms keep their series, so that one that began anew is seen among others that went on; gauges are of
each engine. What every rank of one engine, or every process of one server, repeats is counted once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from servers.dialects import DIALECTS, Dialect
from servers.terms import SHARES, Engine, Labels

Samples = Mapping[str, Mapping[Labels, float]]  # by name, then by labels

# Ranks of one engine, and processes of one server, repeat the same value.
_REPEATED = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@dataclass(frozen=True, slots=True)
class Buckets:
    """A Prometheus histogram: how many values are at most each bound, the last of which is infinite, and their sum."""

    upto: Mapping[float, float]
    total: float

    @property
    def count(self) -> float:
        return max(self.upto.values(), default=0.0)

    def at_most(self, percent: float) -> float:
        """The bound below which that many percent of the values are; `math.inf` beyond the last finite one.

        Prometheus would go on to guess a place between the bounds, which may be far from each other.
        """
        wanted = self.count * percent / 100
        return min(bound for bound, count in self.upto.items() if count >= wanted)


@dataclass(frozen=True, slots=True)
class Reading:
    """`kind` is the server's, as `servers.dialects` names it. By term: counters and histograms by series, gauges by
    engine. `facts` are what a server tells of itself once: its version, its block size."""

    kind: str
    counters: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    gauges: Mapping[str, Mapping[Engine, float]] = field(default_factory=dict)
    histograms: Mapping[str, Mapping[Labels, Buckets]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All that are told apart, in order."""
        found = {engine for series in self.gauges.values() for engine in series}
        return tuple(sorted(found))

    def of(self, engine: Engine) -> Reading:
        """What is of one engine alone."""
        return Reading(
            self.kind,
            {t: kept for t, series in self.counters.items() if (kept := _of(series, engine))},
            {t: {engine: values[engine]} for t, values in self.gauges.items() if engine in values},
            {t: kept for t, series in self.histograms.items() if (kept := _of(series, engine))},
            self.facts,
        )

    def totals(self) -> dict[str, float]:
        """Each gauge over all engines: counts added up, shares of KV memory weighted by it."""
        totals = {t: sum(values.values()) for t, values in self.gauges.items() if t not in SHARES}
        if shares := self.gauges.get("kv_usage"):
            totals["kv_usage"] = _weighted(shares, self.gauges.get("kv_capacity", {}))
        if len(rates := self.gauges.get("hit_rate", {})) == 1:
            totals["hit_rate"] = next(iter(rates.values()))
        return totals


def engine_of(labels: Labels) -> Engine:
    known = dict(labels)
    return Engine(known.get("model_name", ""), known.get("engine") or known.get("dp_rank") or "")


def _of(series: Mapping[Labels, object], engine: Engine) -> dict:  # type: ignore[type-arg]
    return {labels: value for labels, value in series.items() if engine_of(labels) == engine}


def read(text: str) -> Reading | None:
    """One scrape; None if no server known here speaks so. Raises ValueError for a line that cannot be read."""
    for dialect in DIALECTS:
        if dialect.prefix not in text:
            continue
        samples = _samples(text, _names(dialect))
        if samples:
            return Reading(
                dialect.kind, _counters(dialect, samples), _gauges(dialect, samples), _histograms(dialect, samples)
            )
    return None


def _names(dialect: Dialect) -> frozenset[str]:
    gauges = {name for names in dialect.gauges.values() for name in names}
    counters = {name for names in dialect.counters.values() for sum_of in names for name in sum_of.split("+")}
    histograms = {
        f"{name}_{part}"
        for names in dialect.histograms.values()
        for name in names
        for part in ("bucket", "sum", "count")
    }
    return frozenset(gauges | counters | histograms | {*dialect.kv_usage, dialect.kv_capacity.partition("#")[0]})


def _samples(text: str, names: frozenset[str]) -> dict[str, dict[Labels, float]]:
    """Those of the names alone: the rest of a page, often a thousand lines, is not parsed. Repetitions are one."""
    lines = [line for line in text.splitlines() if (found := _NAME.match(line)) is not None and found[0] in names]
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families("".join(f"{line}\n" for line in lines)):
        for sample in family.samples:
            if math.isnan(sample.value):
                continue
            series = samples.setdefault(sample.name, {})
            labels = frozenset(item for item in sample.labels.items() if item[0] not in _REPEATED)
            series[labels] = max(series.get(labels, -math.inf), sample.value)
    return samples


def _first(names: Iterable[str], samples: Samples) -> str | None:
    return next((name for name in names if name in samples), None)


def _counters(dialect: Dialect, samples: Samples) -> dict[str, dict[Labels, float]]:
    counters: dict[str, dict[Labels, float]] = {}
    for term, alternatives in dialect.counters.items():
        for names in (alternative.split("+") for alternative in alternatives):
            if all(name in samples for name in names):
                counters[term] = {
                    labels | {("__name__", name)}: value
                    for name in names
                    for labels, value in _parts(samples[name]).items()
                }
                break
    return counters


def _parts(series: Mapping[Labels, float]) -> Mapping[Labels, float]:
    """Without the series that is the sum of the others, as SGLang tells of its cached tokens."""
    if all(("cache_source", "total") in labels for labels in series):
        return series
    return {labels: value for labels, value in series.items() if ("cache_source", "total") not in labels}


def _gauges(dialect: Dialect, samples: Samples) -> dict[str, dict[Engine, float]]:
    gauges: dict[str, dict[Engine, float]] = {}
    for term, names in {**dialect.gauges, "kv_usage": dialect.kv_usage}.items():
        if (name := _first(names, samples)) is not None:
            values = gauges.setdefault(term, {})
            for labels, value in samples[name].items():
                engine = engine_of(labels)
                values[engine] = values.get(engine, 0.0) + value
    return gauges


def _weighted(shares: Mapping[Engine, float], capacities: Mapping[Engine, float]) -> float:
    """The mean share, by capacity where that of every engine is known."""
    weights = {engine: capacities.get(engine, 0.0) for engine in shares}
    if not all(weight > 0 for weight in weights.values()):
        weights = dict.fromkeys(shares, 1.0)
    return sum(share * weights[engine] for engine, share in shares.items()) / sum(weights.values())


def _histograms(dialect: Dialect, samples: Samples) -> dict[str, dict[Labels, Buckets]]:
    histograms = {}
    for term, names in dialect.histograms.items():
        if (name := _first((f"{name}_bucket" for name in names), samples)) is None:
            continue
        upto: dict[Labels, dict[float, float]] = {}
        for labels, value in samples[name].items():
            bound = dict(labels).get("le")
            if bound is not None:
                upto.setdefault(labels - {("le", bound)}, {})[float(bound)] = value
        totals = samples.get(f"{name.removesuffix('_bucket')}_sum", {})
        histograms[term] = {labels: Buckets(bounds, totals.get(labels, 0.0)) for labels, bounds in upto.items()}
    return histograms
