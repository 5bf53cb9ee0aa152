"""A fleet's figures: of each server, and of those together that tell now. Pure, and reckoned once per look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from servers.looks import Looks
from servers.measures import Measures, total
from tui.sources.view import FleetView, ServerView

KEPT = 2_048  # figures of as many looks: of a fleet of a thousand, those of now and those before


@dataclass(frozen=True, slots=True)
class Row:
    """A server, its place among those named, and what it did in the last `seconds`; None: it has told nothing yet."""

    server: ServerView
    place: int
    seconds: float
    measures: Measures | None

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def tells(self) -> bool:
        """Whether its figures are of now: else they are shown with their age, and belong to no total."""
        return self.measures is not None and self.server.link.fresh

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(engine.model for engine in self.server.engines if engine.model))


@dataclass(frozen=True, slots=True)
class Totals:
    """Of the servers that tell now, `parts`, together; None: none tells. `servers`: how many there are."""

    parts: tuple[Measures, ...]
    measures: Measures | None
    servers: int
    restarts: int

    def sum(self, value: Callable[[Measures], float | None]) -> float | None:
        """Rates add up one by one: a server that was started again is measured over fewer seconds."""
        values = [found for part in self.parts if (found := value(part)) is not None]
        return sum(values) if values else None

    def gauge(self, term: str) -> float | None:
        """The sum; of shares of KV memory the mean by capacity, None where one capacity is not known."""
        return self.measures.gauges.get(term) if self.measures else None

    def at_most(self, term: str, percent: float) -> float | None:
        return self.measures.at_most(term, percent) if self.measures else None

    @property
    def hit_rate(self) -> float | None:
        """Of all that was looked up, the share found. What servers reckon themselves has no sum."""
        telling = [part for part in self.parts if part.hit_rate is not None]
        return total(telling).hit_rate if telling else None


def rows(fleet: FleetView, seconds: float) -> tuple[Row, ...]:
    """In the order in which the servers were named."""
    return tuple(
        Row(server, place, seconds, _measures(server.looks, _newest(server.looks), seconds))
        for place, server in enumerate(fleet.servers)
    )


def totals(rows: Sequence[Row]) -> Totals:
    """Of some rows, all over the same seconds."""
    telling = [row for row in rows if row.tells]
    parts: tuple[Measures, ...] = ()
    measures = None
    if telling:
        parts, measures = _together(
            tuple((row.server.looks, _newest(row.server.looks)) for row in telling), telling[0].seconds
        )
    return Totals(parts, measures, len(rows), sum(len(row.server.restarts) for row in telling))


def pace(measures: Measures, term: str) -> float | None:
    """A counter's growth a second: as it happens, where a server tells that."""
    found = measures.pace(term)
    return found.rate if found is not None else None


def _newest(looks: Looks) -> float:
    return looks.newest.time if looks.newest is not None else 0.0


@lru_cache(maxsize=KEPT)
def _measures(looks: Looks, newest: float, seconds: float) -> Measures | None:
    """`newest`: the time of the last look; the same one is the same figures. After a first look: gauges alone."""
    measures = looks.measure(seconds)
    if measures is not None:
        return measures
    look = looks.newest_reading
    if look is None or look.reading is None:
        return None
    return Measures(0.0, look.reading.totals(), parts=max(1, len(look.reading.engines)))


def series(row: Row, term: str, cells: int) -> tuple[float | None, ...]:
    """What the plot of a row has in each of so many parts of its window."""
    return _series(row.server.looks, _newest(row.server.looks), term, row.seconds, cells)


@lru_cache(maxsize=KEPT)
def _series(looks: Looks, newest: float, term: str, seconds: float, cells: int) -> tuple[float | None, ...]:
    return tuple(looks.series(term, seconds, cells))


@lru_cache(maxsize=8)
def _together(heard: tuple[tuple[Looks, float], ...], seconds: float) -> tuple[tuple[Measures, ...], Measures]:
    parts = [_measures(looks, newest, seconds) for looks, newest in heard]
    known = tuple(part for part in parts if part is not None)
    return known, total(known)
