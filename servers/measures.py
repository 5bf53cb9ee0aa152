"""What one server, one engine of it, or a fleet did between two looks, by the rules that hold for each kind of figure.

Counters add up. Shares of KV memory never do: they are weighted by capacity. Histograms are merged bucket by bucket
before anything is read off them. What was not told, or cannot be known because a counter began anew, is absent.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import gt, lt, sub
from typing import NamedTuple

from servers.names import engine_of
from servers.reading import Buckets, Layout, Reading
from servers.terms import LIVE, SHARES, Engine

# What was looked up in a prefix cache, and what of it was found.
PAIRS = (("prefix_queried_tokens", "prefix_hit_tokens"), ("prefix_queried_blocks", "prefix_hit_blocks"))


class Pace(NamedTuple):
    """A rate a second, of what is counted as it happens (`live`) or only when requests end."""

    rate: float
    live: bool


@dataclass(frozen=True, slots=True)
class Measures:
    """Over `seconds`: the growth of counters and histograms, and the gauges of the newest look, by term.

    `restarted`: a counter fell or went, so how much came in the window is not known, and nothing is told to have grown.
    `parts` is how many engines it is of. In a total, `told_by` is how many servers told each term, where that is not
    all of them.
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
        for queried, hits in PAIRS:
            if self.growth.get(queried) and hits in self.growth:
                return self.growth[hits] / self.growth[queried]
        return None

    def pace(self, term: str) -> Pace | None:
        """The rate of a counter that a screen asks for, as it happens where all parts tell it so."""
        live = LIVE.get(term, "")
        if live in self.growth and live not in self.told_by and (rate := self.rate(live)) is not None:
            return Pace(rate, True)
        rate = self.rate(term)
        return None if rate is None else Pace(rate, False)

    def count(self, term: str) -> float | None:
        """How many values a histogram got; None where none came, or it is not told."""
        buckets = self.histograms.get(term)
        return None if buckets is None else buckets.count

    def mean(self, term: str) -> float | None:
        buckets = self.histograms.get(term)
        return None if buckets is None else buckets.mean

    def at_most(self, term: str, percent: float) -> float | None:
        """What that percentile is at most: its bucket's bound. `math.inf` beyond the last finite bound."""
        buckets = self.histograms.get(term)
        return None if buckets is None else buckets.at_most(percent)


def measure(
    before: Reading,
    after: Reading,
    seconds: float,
    engine: Engine | None = None,
    earlier: Iterable[Layout] = (),
) -> Measures:
    """What a server did between two looks at it; of one of its engines alone where that is named.

    `earlier`: layouts of looks before these. What was told then, but not in `before`, did not begin at 0.
    """
    if engine is not None:
        before, after = before.of(engine), after.of(engine)
    parts = max(1, len(after.engines))
    if broken(before, after):
        return Measures(seconds, after.totals(), restarted=True, parts=parts)
    earlier = tuple(earlier)
    grown = {term: growth(before, after, term, earlier=earlier) for term in after.layout.counter_slots}
    histograms = {
        term: merged
        for term, came in _came(before, after, earlier).items()
        if (merged := merge(came)) is not None and merged.count > 0
    }
    return Measures(
        seconds,
        after.totals(),
        {term: count for term, count in grown.items() if count is not None},
        histograms,
        parts=parts,
    )


def growth(
    before: Reading, after: Reading, term: str, engine: Engine | None = None, earlier: Iterable[Layout] = ()
) -> float | None:
    """How far a counter went between two looks, over all its series; one that was never told before began at 0.

    None where it is not told, or unknown: a series fell, went, came back after it was away, or came when others went.
    """
    then, now = before.counted(term, engine), after.counted(term, engine)
    if not now or any(not value <= now.get(labels, -1.0) for labels, value in then.items()):
        return None
    came = now.keys() - then.keys()
    if came and (
        _lost(before.layout, after.layout)
        or any(labels in layout.counter_slots.get(term, {}) for labels in came for layout in earlier)
    ):
        return None
    grown = sum(now.values()) - sum(then.values())
    return None if math.isnan(grown) else grown


def _lost(before: Layout, after: Layout) -> bool:
    """Whether a series went: then those that came may be what an upgraded server tells instead, and did not begin at 0
    between the looks."""
    return bool(
        before.all_counter_slots.keys() - after.all_counter_slots.keys()
        or before.histogram_slots.keys() - after.histogram_slots.keys()
    )


EVERY = Engine()  # all engines of a page that does not tell them apart


def broken(before: Reading, after: Reading) -> frozenset[Engine]:
    """The engines of which one counter fell, or none is left, as it is when a server is started again, upgraded to
    one with other names, or left out of a page: theirs cannot be followed from the one look to the other."""
    if before.layout is after.layout and before.values == after.values:
        return frozenset()
    if len({dict(look.layout.facts).get("process_start") for look in (before, after)} - {None}) > 1:
        return frozenset((EVERY, *before.engines, *after.engines))
    fell: set[Engine] = set()
    stayed: dict[Engine, bool] = {}
    later = after.layout.all_counter_slots
    for series, slot in before.layout.all_counter_slots.items():
        engine = engine_of(series[1])
        stayed[engine] = stayed.get(engine, False) or series in later
        if series in later and after.values[later[series]] < before.values[slot]:
            fell.add(engine)
    for histogram, slot in before.layout.histogram_slots.items():
        _, labels, bounds = histogram
        engine = engine_of(labels)
        start = after.layout.histogram_slots.get(histogram)
        stayed[engine] = stayed.get(engine, False) or start is not None
        if start is not None:
            end = slot + len(bounds)
            if any(map(lt, after.values[start : start + len(bounds)], before.values[slot:end])):
                fell.add(engine)
    return frozenset(fell | {engine for engine, stays in stayed.items() if not stays})


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
        elif len(parts) == 1:
            gauges[term] = parts[0].gauges[term]
        elif term == "kv_usage" and (share := weighted(telling)) is not None:
            gauges[term] = share
    growth: dict[str, float] = {}
    for term in dict.fromkeys(term for part in parts for term in part.growth):
        needed = next((pair for pair in PAIRS if term in pair), (term,))
        values = [part.growth[term] for part in parts if all(name in part.growth for name in needed)]
        told_by[term] = len(values)
        if values:
            growth[term] = sum(values)
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
    totals = [part.total for part in parts if part.total is not None]
    return Buckets(upto, sum(totals) if len(totals) == len(parts) else None)


def _came(before: Reading, after: Reading, earlier: Sequence[Layout]) -> dict[str, list[Buckets]]:
    """What came in each histogram's series between two looks; all there is in one that was never told before.

    A term is left out if a series went or came back, or if more came below a bound than below the next."""
    came: dict[str, list[Buckets]] = {}
    then, now = before.layout.histogram_slots, after.layout.histogram_slots
    unknown = {term for term, _, _ in then.keys() - now.keys()} if then is not now else set()
    lost = then is not now and _lost(before.layout, after.layout)
    for histogram, slot in now.items():
        term, _, bounds = histogram
        end = slot + len(bounds)
        counts, total = after.values[slot:end], after.values[end]
        start = then.get(histogram)
        if start is not None:
            counts = array("d", map(sub, counts, before.values[start : start + len(bounds)]))
            total -= before.values[start + len(bounds)]
        elif lost or any(histogram in layout.histogram_slots for layout in earlier):
            unknown.add(term)
        if any(map(gt, counts, counts[1:])):
            unknown.add(term)
        upto = dict(zip(bounds, counts, strict=True))
        came.setdefault(term, []).append(Buckets(upto, total if total >= 0 else None))
    return {term: series for term, series in came.items() if term not in unknown}
