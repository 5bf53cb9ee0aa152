"""One server's looks, the newest last, in bounded memory: what a screen asks of the last seconds or minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from servers.measures import EVERY, Measures, broken, measure
from servers.names import engine_of
from servers.reading import Layout, Reading
from servers.terms import Engine

KEPT = 1_200  # looks: twenty minutes at one a second
_LAYOUTS = 64  # remembered, to know a series that comes back


@dataclass(frozen=True, slots=True)
class Look:
    """One scrape at `time`, in seconds of the watcher's clock; `reading` is None where it failed, `failed` says why."""

    time: float
    reading: Reading | None
    took: float = 0.0  # seconds
    failed: str = ""


class Looks:
    """Fed with looks in order of time. A moment of it (`upto`) stays as it is while the feed goes on."""

    def __init__(self, looks: Sequence[Look] = (), kept: int = KEPT) -> None:
        self._kept = kept
        self._looks: deque[Look] = deque(maxlen=kept)
        self._last: Reading | None = None
        self._breaks: deque[tuple[float, frozenset[Engine]]] = deque(maxlen=kept)
        self._layouts: dict[Layout, None] = {}
        for look in looks:
            self.add(look)

    def add(self, look: Look) -> None:
        self._looks.append(look)
        if (reading := look.reading) is not None:
            if self._last is not None and (engines := self._broken(self._last, reading)):
                self._breaks.append((look.time, engines))
            self._last = reading
            if reading.layout not in self._layouts:
                self._layouts[reading.layout] = None
                if len(self._layouts) > _LAYOUTS:
                    del self._layouts[next(iter(self._layouts))]
        while self._breaks and self._breaks[0][0] < self._looks[0].time:
            self._breaks.popleft()

    def _broken(self, before: Reading, after: Reading) -> frozenset[Engine]:
        """As `broken`; and where a series came back after it was away, how far it went meanwhile is not known."""
        engines = broken(before, after)
        if before.layout is after.layout:
            return engines
        came = {*after.layout.counters, *after.layout.histograms}
        came.difference_update(before.layout.counters, before.layout.histograms)
        back = {series[1] for layout in self._layouts for series in came.intersection(layout.counters)}
        back |= {series[1] for layout in self._layouts for series in came.intersection(layout.histograms)}
        return engines | {engine_of(labels) for labels in back}

    def __len__(self) -> int:
        return len(self._looks)

    @property
    def newest(self) -> Look | None:
        return self._looks[-1] if self._looks else None

    @property
    def newest_reading(self) -> Look | None:
        """The newest look that has a reading."""
        return next((look for look in reversed(self._looks) if look.reading is not None), None)

    @property
    def restarts(self) -> list[float]:
        """The times of the looks at which counters had begun anew, or could not be followed for another reason."""
        return [time for time, _ in self._breaks]

    def tells(self, term: str) -> bool:
        """Whether the newest reading has a term."""
        reading = self._last
        return reading is not None and (
            reading.counter(term) is not None
            or term in reading.layout.gauge_slots
            or any(name == term for name, _, _ in reading.layout.histograms)
        )

    def upto(self) -> Looks:
        """A copy that does not change: looks themselves are shared."""
        copy = Looks(kept=self._kept)
        copy._looks.extend(self._looks)
        copy._breaks.extend(self._breaks)
        copy._last = self._last
        copy._layouts = dict(self._layouts)
        return copy

    def measure(self, seconds: float, engine: Engine | None = None) -> Measures | None:
        """The last `seconds` up to the newest reading, or as much of them as was seen since the last restart.

        None before two looks could be laid side by side.
        """
        last: Look | None = None
        first: Look | None = None
        begun = max(self._breaks_of(engine), default=float("-inf"))
        for look in reversed(self._looks):
            if look.reading is None:
                continue
            if last is None:
                last = look
                continue
            if first is not None and look.time < begun:
                break
            first = look
            if last.time - look.time >= seconds:
                break
        if last is None or first is None or last.reading is None or first.reading is None:
            return None
        return measure(first.reading, last.reading, last.time - first.time, engine)

    def series(self, term: str, seconds: float, columns: int, engine: Engine | None = None) -> list[float | None]:
        """A gauge's last value, or a counter's rate a second, in each of so many equal spans of time up to the newest
        look. A span in which no look fell has what held between those around it.

        None where the term was not told, a look failed, or a counter began anew.
        """
        newest = self.newest
        if newest is None or columns < 1 or seconds <= 0:
            return [None] * max(0, columns)
        looks = list(self._looks)
        breaks = self._breaks_of(engine)
        gauge = any(look.reading is not None and term in look.reading.layout.gauge_slots for look in looks)
        found: list[float | None] = []
        start, place = newest.time - seconds, 0  # `place`: of the first look after the span's end
        earlier = None  # the place of the last look with a reading up to the span's start
        for column in range(columns):
            end = newest.time if column == columns - 1 else start + seconds * (column + 1) / columns
            begin = start + seconds * column / columns
            while place < len(looks) and looks[place].time <= end:
                if looks[place].time <= begin and looks[place].reading is not None:
                    earlier = place
                elif earlier is None and looks[place].reading is not None:
                    earlier = place  # nothing is known of before
                place += 1
            found.append(
                _level(looks, place, term, engine) if gauge else _rate(looks, earlier, place, term, engine, breaks)
            )
            for passed in range(place - 1, -1 if earlier is None else earlier, -1):
                if looks[passed].reading is not None:
                    earlier = passed
                    break
        return found

    def _breaks_of(self, engine: Engine | None) -> list[float]:
        alone = self._last is not None and self._last.engines == (engine,)
        if engine is None or alone:
            return [time for time, _ in self._breaks]
        wanted = {EVERY, engine, Engine(engine.model)}
        return [time for time, engines in self._breaks if wanted & engines]


def _level(looks: Sequence[Look], place: int, term: str, engine: Engine | None) -> float | None:
    """A gauge at the last look before that place."""
    if place == 0 or (reading := looks[place - 1].reading) is None:
        return None
    if engine is None:
        return reading.totals().get(term)
    return reading.gauges.get(term, {}).get(engine)


def _rate(
    looks: Sequence[Look],
    earlier: int | None,
    place: int,
    term: str,
    engine: Engine | None,
    breaks: Sequence[float],
) -> float | None:
    """A counter's rate from a look to the last one before that place, or to the next one if none is between."""
    if earlier is None or (place > 0 and looks[place - 1].reading is None):
        return None
    later = place - 1 if place - 1 > earlier else place
    if later >= len(looks):
        return None
    first, last = looks[earlier], looks[later]
    if first.reading is None or last.reading is None or last.time <= first.time:
        return None
    if any(first.time < time <= last.time for time in breaks):
        return None
    then, now = first.reading.counter(term, engine), last.reading.counter(term, engine)
    if now is None:
        return None
    if then is None:
        if term in first.reading.layout.counter_slots:
            return None
        then = 0.0
    return (now - then) / (last.time - first.time)
