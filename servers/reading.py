"""One look at a server's /metrics, read into the terms. Pure.

Counters and histograms keep their series, so that one that began anew is seen among others that went on; gauges are of
each engine. What every rank of one engine repeats is counted once.

Twenty minutes of looks are kept of each server, so a look is no more than its numbers: what they are of is its
layout, which all looks at a server share until a series comes or goes.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from sys import getsizeof
from typing import TypeVar
from weakref import WeakValueDictionary

from servers.dialects import DIALECTS, Dialect
from servers.doubts import MOST_SHARE, Doubt, doubts
from servers.exposition import Samples, known, samples
from servers.names import SPELLINGS, engine_of, first_told, joined, levels, parse, texts, told
from servers.sized_cache import ENTRY_BYTES, SizedCache, bytes_of
from servers.terms import SHARES, Engine, Labels

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Buckets:
    """A Prometheus histogram: how many values are at most each bound, the last of which is infinite, and their sum;
    None: that is not told."""

    upto: Mapping[float, float]
    total: float | None

    @property
    def count(self) -> float:
        return max(self.upto.values(), default=0.0)

    @property
    def mean(self) -> float | None:
        return None if self.total is None or self.count <= 0 else self.total / self.count

    def at_most(self, percent: float) -> float:
        """The bound below which that many percent of the values are; `math.inf` beyond the last finite one.

        Prometheus would go on to guess a place between the bounds, which may be far from each other.
        """
        wanted = min(self.count, self.count * percent / 100)  # not more, by rounding or beyond the largest number
        return min(bound for bound, count in self.upto.items() if count >= wanted)


@dataclass(frozen=True)
class Layout:
    """What a reading's numbers are of, in their order: one for each counter, then each gauge, then of each histogram
    one for each bound and their sum. A counter's series has its metric's name among its labels, so that one that was
    renamed is another one."""

    kind: str
    facts: tuple[tuple[str, str], ...]
    counters: tuple[tuple[str, Labels], ...]
    gauges: tuple[tuple[str, Engine], ...]
    histograms: tuple[tuple[str, Labels, tuple[float, ...]], ...]

    @cached_property
    def counter_slots(self) -> dict[str, dict[Labels, int]]:
        slots: dict[str, dict[Labels, int]] = {}
        for slot, (term, labels) in enumerate(self.counters):
            slots.setdefault(term, {})[labels] = slot
        return slots

    @cached_property
    def all_counter_slots(self) -> dict[tuple[str, Labels], int]:
        return {series: slot for slot, series in enumerate(self.counters)}

    @cached_property
    def gauge_slots(self) -> dict[str, dict[Engine, int]]:
        slots: dict[str, dict[Engine, int]] = {}
        for slot, (term, engine) in enumerate(self.gauges, len(self.counters)):
            slots.setdefault(term, {})[engine] = slot
        return slots

    @cached_property
    def histogram_slots(self) -> dict[tuple[str, Labels, tuple[float, ...]], int]:
        """Where the first bound of each is."""
        slots = {}
        slot = len(self.counters) + len(self.gauges)
        for histogram in self.histograms:
            slots[histogram] = slot
            slot += len(histogram[2]) + 1
        return slots

    @cached_property
    def bytes(self) -> int:
        """About what it takes, with the places of its numbers."""
        labels = (*(one for _, one in self.counters), *(one for _, one, _ in self.histograms))
        engines = (engine for _, engine in self.gauges)
        return (
            sum(ENTRY_BYTES + bytes_of(one) for one in labels)
            + sum(ENTRY_BYTES + sum(map(getsizeof, engine)) for engine in engines)
            + sum(getsizeof(bounds) for _, _, bounds in self.histograms)
            + sum(ENTRY_BYTES + getsizeof(text) for _, text in self.facts)
        )

    @cached_property
    def engines(self) -> tuple[Engine, ...]:
        """All that are told apart, in order."""
        found = {engine for _, engine in self.gauges} or {engine_of(labels) for _, labels in self.counters}
        ranked = {engine.model for engine in found if engine.rank}
        return tuple(sorted(engine for engine in found if engine.rank or engine.model not in ranked))


# By their hash: keys are held for as long as values are.
_LAYOUTS: WeakValueDictionary[int, Layout] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Reading:
    """By term: counters and histograms by series, gauges by engine. What is not a number there is not told, and gauges
    that are not believed are in `doubts` alone."""

    layout: Layout
    values: array[float] = field(repr=False)
    doubts: tuple[Doubt, ...] = ()

    @property
    def kind(self) -> str:
        """The server's, as `servers.dialects` names it."""
        return self.layout.kind

    @property
    def facts(self) -> Mapping[str, str]:
        """What a server tells of itself once: its block size, when it began."""
        return dict(self.layout.facts)

    @property
    def counters(self) -> dict[str, dict[Labels, float]]:
        found: dict[str, dict[Labels, float]] = {}
        for (term, labels), value in zip(self.layout.counters, self.values, strict=False):
            if value >= 0:
                found.setdefault(term, {})[labels] = value
        return found

    @property
    def gauges(self) -> dict[str, dict[Engine, float]]:
        return {
            term: {engine: self.values[slot] for engine, slot in slots.items()}
            for term, slots in self.layout.gauge_slots.items()
        }

    @property
    def histograms(self) -> dict[str, dict[Labels, Buckets]]:
        found: dict[str, dict[Labels, Buckets]] = {}
        for (term, labels, bounds), slot in self.layout.histogram_slots.items():
            end = slot + len(bounds)
            upto = dict(zip(bounds, self.values[slot:end], strict=True))
            total = self.values[end]
            found.setdefault(term, {})[labels] = Buckets(upto, None if math.isnan(total) else total)
        return found

    @property
    def engines(self) -> tuple[Engine, ...]:
        return self.layout.engines

    def of(self, engine: Engine) -> Reading:
        """What is of one engine alone: all there is where it is the only one."""
        if self.engines == (engine,):
            return self
        return reading(
            self.kind,
            {t: kept for t, counts in self.counters.items() if (kept := _of(counts, engine))},
            {t: {engine: values[engine]} for t, values in self.gauges.items() if engine in values},
            {t: found for t, buckets in self.histograms.items() if (found := _of(buckets, engine))},
            self.facts,
            [doubt for doubt in self.doubts if doubt.engine == engine or doubt.engine not in self.engines],
        )

    def doubt(self, term: str) -> str:
        """Why a gauge that is told is not believed; empty where there is none."""
        return next((doubt.why for doubt in self.doubts if doubt.term == term), "")

    def totals(self) -> dict[str, float]:
        """Each gauge over all engines: counts added up, shares of KV memory weighted by it.

        A share of unknown memory has no total over several engines, nor has memory that not all of them tell, nor what
        one of them tells that is not believed."""
        doubted = {doubt.term for doubt in self.doubts}
        gauges = self.gauges
        shares = gauges.get("kv_usage", {})
        capacities = gauges.get("kv_capacity", {})
        totals = {}
        for term, values in gauges.items():
            if term in doubted or (term in ("kv_capacity", "kv_used") and not shares.keys() <= values.keys()):
                continue
            if term not in SHARES:
                totals[term] = sum(values.values())
            elif len(values) == 1:
                totals[term] = next(iter(values.values()))
            elif term == "kv_usage" and all(capacities.get(engine, 0.0) > 0 for engine in values):
                used = sum(share * capacities[engine] for engine, share in values.items())
                totals[term] = used / sum(capacities[engine] for engine in values)
        return totals

    def counted(self, term: str, engine: Engine | None = None) -> dict[Labels, float]:
        """A counter's series, or those of one engine; NaN where a number is not told."""
        slots = self.layout.counter_slots.get(term, {})
        if engine is None or self.engines == (engine,):
            return {labels: self.values[slot] for labels, slot in slots.items()}
        return {labels: self.values[slot] for labels, slot in slots.items() if engine_of(labels) == engine}


def reading(
    kind: str,
    counters: Mapping[str, Mapping[Labels, float]] | None = None,
    gauges: Mapping[str, Mapping[Engine, float]] | None = None,
    histograms: Mapping[str, Mapping[Labels, Buckets]] | None = None,
    facts: Mapping[str, str] | None = None,
    doubted: Iterable[Doubt] = (),
) -> Reading:
    """A reading of what is known; its layout is shared with all that are alike."""
    values = array("d")
    series: list[tuple[str, Labels]] = []
    for term, counts in (counters or {}).items():
        series.extend((term, labels) for labels in counts)
        values.extend(counts.values())
    levels: list[tuple[str, Engine]] = []
    for term, by_engine in (gauges or {}).items():
        levels.extend((term, engine) for engine in by_engine)
        values.extend(by_engine.values())
    bounded: list[tuple[str, Labels, tuple[float, ...]]] = []
    for term, by_labels in (histograms or {}).items():
        for labels, buckets in by_labels.items():
            bounded.append((term, labels, tuple(buckets.upto)))
            values.extend(buckets.upto.values())
            values.append(math.nan if buckets.total is None else buckets.total)
    layout = Layout(kind, tuple(sorted((facts or {}).items())), tuple(series), tuple(levels), tuple(bounded))
    shared = _LAYOUTS.setdefault(hash(layout), layout)
    return Reading(shared if shared == layout else layout, values, tuple(doubted))


def read(text: str) -> Reading | None:
    """One scrape; None if no server known here speaks so.

    Raises ValueError for a line with a known name that cannot be read, or for a page that is too long.
    """
    for dialect in DIALECTS:
        if all(mark.search(text) for mark in _MARKS[dialect.kind]):
            found = samples(text, SPELLINGS[dialect.kind])
            if found:
                gauges = _gauges(dialect, found)
                return reading(
                    dialect.kind,
                    _counters(dialect, found),
                    gauges,
                    _histograms(dialect, found),
                    _facts(dialect, found),
                    doubts(dialect, found, gauges, text),
                )
    return None


def lines_known(text: str) -> str:
    """The lines of a page that some dialect reads: what a recording keeps."""
    return known(text, _ALL_NAMES)


def _mark(*spelt: str) -> re.Pattern[str]:
    """Found where a line begins so: labels may hold anything."""
    return re.compile(rf"^[ \t]*(?:{'|'.join(map(re.escape, spelt))})", re.MULTILINE)


_MARKS = {
    dialect.kind: [_mark(dialect.marks[0], *dialect.spellings), *map(_mark, dialect.marks[1:])] for dialect in DIALECTS
}
_ALL_NAMES = frozenset(name for names in SPELLINGS.values() for name in names)


def _counters(dialect: Dialect, found: Samples) -> dict[str, dict[Labels, float]]:
    counters = {}
    for term, alternatives in dialect.counters.items():
        if (expression := first_told(alternatives, found)) is not None:
            counters[term] = {
                _named[labels, name.name]: value
                for name in expression.names
                for labels, value in told(name, found).items()
            }
    return counters


def _gauges(dialect: Dialect, found: Samples) -> dict[str, dict[Engine, float]]:
    gauges = {}
    for term, alternatives in dialect.gauges.items():
        for text in alternatives:
            values = levels(parse(text), found, share=term in SHARES)
            if term in SHARES:
                values = {engine: min(share, 1.0) for engine, share in values.items() if share <= MOST_SHARE}
            if values:
                gauges[term] = values
                break
    return joined(gauges)


def _histograms(dialect: Dialect, found: Samples) -> dict[str, dict[Labels, Buckets]]:
    histograms: dict[str, dict[Labels, Buckets]] = {}
    for term, alternatives in dialect.histograms.items():
        name = next((name for name in alternatives if f"{name}_bucket" in found), None)
        if name is None:
            continue
        units = 1000.0 if name.endswith("_ms") else 1.0  # in a second, or in what is counted
        upto: dict[Labels, dict[float, float]] = {}
        for labels, value in found[f"{name}_bucket"].items():
            series, bound = _bucket[labels]
            upto.setdefault(series, {})[bound / units] = value
        sums, counts = found.get(f"{name}_sum", {}), found.get(f"{name}_count", {})
        for series, bounds in upto.items():
            if series in counts:
                bounds.setdefault(math.inf, counts[series])
            ordered = {bound: bounds[bound] for bound in sorted(bounds)}
            if math.inf in ordered and _rises(ordered.values()):
                total = sums.get(series, math.nan) / units
                histograms.setdefault(term, {})[_named[series, name]] = Buckets(
                    ordered, None if math.isnan(total) else total
                )
    return histograms


def _rises(counts: Iterable[float]) -> bool:
    """Whether each is at least the one before it; nothing is below or above NaN."""
    return all(lower <= upper for lower, upper in pairwise((0.0, *counts)))


def _facts(dialect: Dialect, found: Samples) -> dict[str, str]:
    facts = {}
    for term, alternatives in dialect.facts.items():
        for text in alternatives:
            if values := texts(parse(text), found):
                facts[term] = ", ".join(sorted(values))
                break
    return facts


def _with_name(series: tuple[Labels, str]) -> Labels:
    labels, name = series
    return labels | {("__name__", name)}


_named = SizedCache(_with_name, lambda series, labels: 2 * bytes_of(labels))


def _read_bucket(labels: Labels) -> tuple[Labels, float]:
    """A bucket's series and its bound."""
    bound = dict(labels).get("le", "")
    try:
        value = float(bound)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"cannot read a bucket of metrics: its bound le is {bound!r}")
    return labels - {("le", bound)}, value


_bucket = SizedCache(_read_bucket, lambda labels, found: 2 * bytes_of(labels))


def _of(series: Mapping[Labels, Value], engine: Engine) -> dict[Labels, Value]:
    return {labels: value for labels, value in series.items() if engine_of(labels) == engine}
