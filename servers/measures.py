"""What one server, one engine of it, or a fleet did between two looks, by the rules that hold for each kind of figure.

Counters add up. Shares of KV memory never do: they are weighted by capacity. Histograms are merged bucket by bucket
before anything is read off them. What was not told, or cannot be known because a counter began anew, is absent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from servers.reading import Buckets, Reading
from servers.terms import SHARES, Engine, Labels


@dataclass(frozen=True, slots=True)
class Measures:
    """Over `seconds`: the growth of counters and histograms, and the gauges of the newest look, by term.

    `restarted`: a counter fell, so what came before is not known. `parts` is how many engines it is of, and
    `told_by` how many of those told each term, where that is not all of them.
    """

    seconds: float
    gauges: Mapping[str, float] = field(default_factory=dict)
    growth: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Buckets] = field(default_factory=dict)
    restarted: bool = False
    parts: int = 1
    told_by: Mapping[str, int] = field(default_factory=dict)

    def rate(self, term: str) -> float | None:
        """A counter's growth a second."""
        grown = self.growth.get(term)
        return None if grown is None or self.seconds <= 0 else grown / self.seconds

    @property
    def hit_rate(self) -> float | None:
        """Of the prompt tokens looked up in the window, the share found; by blocks where tokens are not told."""
        for unit in ("tokens", "blocks"):
            queried, hits = self.growth.get(f"prefix_queried_{unit}"), self.growth.get(f"prefix_hit_{unit}")
            if queried and hits is not None:
                return hits / queried
        return None

    def count(self, term: str) -> float | None:
        """How many values a histogram got; None where none came, or it is not told."""
        buckets = self.histograms.get(term)
        return None if buckets is None else buckets.count

    def mean(self, term: str) -> float | None:
        buckets = self.histograms.get(term)
        return None if buckets is None else buckets.total / buckets.count

    def at_most(self, term: str, percent: float) -> float | None:
        """What that percentile is at most: its bucket's bound. `math.inf` beyond the last finite bound."""
        buckets = self.histograms.get(term)
        return None if buckets is None else buckets.at_most(percent)


def measure(before: Reading, after: Reading, seconds: float, engine: Engine | None = None) -> Measures:
    """What a server did between two looks at it; of one of its engines alone where that is named."""
    if engine is not None:
        before, after = before.of(engine), after.of(engine)
    growth: dict[str, float] = {}
    restarted = False
    for term, series in after.counters.items():
        grown = _grown(before.counters.get(term, {}), series)
        if grown is None:
            restarted = True
        else:
            growth[term] = grown
    histograms = {
        term: came
        for term, series in after.histograms.items()
        if (came := _between(before.histograms.get(term, {}), series)) is not None
    }
    return Measures(seconds, after.totals(), growth, histograms, restarted, max(1, len(after.engines)))


def total(parts: Sequence[Measures]) -> Measures:
    """A fleet's figures of those of its servers over the same seconds. Raises ValueError for none."""
    if not parts:
        raise ValueError("a total of nothing")
    gauges: dict[str, float] = {}
    told_by: dict[str, int] = {}
    for term in dict.fromkeys(term for part in parts for term in part.gauges):
        telling = [part for part in parts if term in part.gauges]
        told_by[term] = len(telling)
        if term not in SHARES:
            gauges[term] = sum(part.gauges[term] for part in telling)
        elif term == "kv_usage" and (share := weighted(telling)) is not None:
            gauges[term] = share
    growth: dict[str, float] = {}
    for term in dict.fromkeys(term for part in parts for term in part.growth):
        values = [part.growth[term] for part in parts if term in part.growth]
        told_by[term], growth[term] = len(values), sum(values)
    histograms: dict[str, Buckets] = {}
    for term in dict.fromkeys(term for part in parts for term in part.histograms):
        buckets = [part.histograms[term] for part in parts if term in part.histograms]
        told_by[term] = len(buckets)
        if (merged := merge(buckets)) is not None:
            histograms[term] = merged
    whole = len(parts)
    return Measures(
        max(part.seconds for part in parts),
        gauges,
        growth,
        histograms,
        any(part.restarted for part in parts),
        sum(part.parts for part in parts),
        {term: count for term, count in told_by.items() if count < whole},
    )


def weighted(parts: Sequence[Measures]) -> float | None:
    """The share of KV memory in use over servers of known capacity; None where one does not tell its own."""
    capacities = [part.gauges.get("kv_capacity", 0.0) for part in parts]
    if len(parts) == 1:
        return parts[0].gauges["kv_usage"]
    if not all(capacity > 0 for capacity in capacities):
        return None
    used = sum(part.gauges["kv_usage"] * capacity for part, capacity in zip(parts, capacities, strict=True))
    return used / sum(capacities)


def merge(parts: Iterable[Buckets]) -> Buckets | None:
    """Histograms as one, over the bounds that all of them have: at each of these the counts are exact."""
    parts = list(parts)
    bounds = set(parts[0].upto).intersection(*(part.upto for part in parts[1:]))
    if math.inf not in bounds:
        return None
    upto = {bound: sum(part.upto[bound] for part in parts) for bound in sorted(bounds)}
    return Buckets(upto, sum(part.total for part in parts))


def _grown(before: Mapping[Labels, float], after: Mapping[Labels, float]) -> float | None:
    """Over all series; one that was not there before began at 0."""
    if any(labels not in after or after[labels] < value for labels, value in before.items()):
        return None
    return sum(value - before.get(labels, 0.0) for labels, value in after.items())


def _between(before: Mapping[Labels, Buckets], after: Mapping[Labels, Buckets]) -> Buckets | None:
    """What came between two looks, in all series together; None if that is nothing, or unknown."""
    if not before.keys() <= after.keys():
        return None
    grown: list[Buckets] = []
    for labels, buckets in after.items():
        earlier = before.get(labels)
        if earlier is None:
            grown.append(buckets)
            continue
        if earlier.upto.keys() != buckets.upto.keys():
            return None
        upto = {bound: count - earlier.upto[bound] for bound, count in buckets.upto.items()}
        if min(upto.values()) < 0:
            return None
        grown.append(Buckets(upto, buckets.total - earlier.total))
    merged = merge(grown) if grown else None
    return merged if merged is not None and merged.count > 0 else None
