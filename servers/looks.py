"""One server's looks, the newest last, in bounded memory: what a screen asks of the last seconds or minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from servers.measures import EVERY, Measures, broken, growth, measure
from servers.reading import Layout, Reading
from servers.terms import Engine

KEPT = 1_200  # looks: twenty minutes at one a second; fewer where they have
MOST_BYTES = 32 << 20  # together, about: of pages of many engines, or of labels without end
_LEAST = 2  # looks that are kept however large they are: to have rates
_NUMBER = 8  # bytes
_LAYOUTS = 64  # remembered, to know a series that comes back, and
LAYOUT_BYTES = 32 << 20  # of them together, about
_OVER = 2  # so many times a window is what is measured of it at most, unless there is nothing nearer


@dataclass(frozen=True, slots=True)
class Look:
    """One scrape at `time`, in seconds of the watcher's clock; `reading` is None where it failed, `failed` says why.

    `changed`: the reading before had another layout, or there was none."""

    time: float
    reading: Reading | None
    took: float = 0.0  # seconds
    failed: str = ""
    changed: bool = False

    @property
    def bytes(self) -> int:
        """About: of its numbers, and of a layout that the look before does not have."""
        if self.reading is None:
            return 0
        return _NUMBER * len(self.reading.values) + (self.reading.layout.bytes if self.changed else 0)


def kept_from(looks: Sequence[Look], end: int, kept: int = KEPT) -> int:
    """The first of those that are kept when the newest is the one before place `end`."""
    size, first = 0, end
    while first > 0 and end - first < kept:
        size += looks[first - 1].bytes
        if size > MOST_BYTES and end - first >= _LEAST:
            break
        first -= 1
    return first


@dataclass(frozen=True, slots=True)
class Marks:
    """What was found by laying looks side by side: when counters had begun anew, and of which engines; and the layouts
    since then, each with its first look's time."""

    breaks: tuple[tuple[float, frozenset[Engine]], ...] = ()
    layouts: Mapping[Layout, float] = field(default_factory=dict)

    def after(self, before: Reading | None, look: Look) -> Marks:
        """These with one more look; the same ones where nothing is new."""
        reading = look.reading
        if reading is None:
            return self
        if before is not None and (engines := broken(before, reading)):
            return Marks((*self.breaks, (look.time, engines)), {reading.layout: look.time})
        if reading.layout in self.layouts:
            return self
        layouts = {**self.layouts, reading.layout: look.time}
        while len(layouts) > _LAYOUTS or (len(layouts) > 1 and sum(one.bytes for one in layouts) > LAYOUT_BYTES):
            del layouts[next(iter(layouts))]
        return Marks(self.breaks, layouts)

    def since(self, time: float) -> Marks:
        """Without breaks before then."""
        if not self.breaks or self.breaks[0][0] >= time:
            return self
        return Marks(tuple(one for one in self.breaks if one[0] >= time), self.layouts)


class Looks:
    """Fed with looks in order of time. A moment of it (`upto`) stays as it is while the feed goes on.

    `marks` and `last`, the newest reading, are those that the same looks had when they were fed: nothing is laid side
    by side again then.
    """

    def __init__(
        self, looks: Sequence[Look] = (), kept: int = KEPT, marks: Marks | None = None, last: Reading | None = None
    ) -> None:
        self._kept = kept
        self._looks: deque[Look] = deque()
        self._bytes = 0
        self._last = last
        self.marks = Marks() if marks is None else marks
        if marks is None:
            for look in looks:
                self.add(look)
        else:
            self._looks.extend(looks)
            self._bytes = sum(look.bytes for look in looks)
            self._drop_marks()

    def add(self, look: Look) -> None:
        self._looks.append(look)
        self._bytes += look.bytes
        while len(self._looks) > self._kept or (self._bytes > MOST_BYTES and len(self._looks) > _LEAST):
            self._bytes -= self._looks.popleft().bytes
        self.marks = self.marks.after(self._last, look)
        self._last = look.reading or self._last
        self._drop_marks()

    def _drop_marks(self) -> None:
        if self._looks:
            self.marks = self.marks.since(self._looks[0].time)

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
        return [time for time, _ in self.marks.breaks]

    def tells(self, term: str) -> bool:
        """Whether the newest reading has a term."""
        reading = self._last
        return reading is not None and (
            term in reading.layout.counter_slots
            or term in reading.layout.gauge_slots
            or any(name == term for name, _, _ in reading.layout.histograms)
        )

    def upto(self) -> Looks:
        """A copy that does not change: looks themselves are shared."""
        copy = Looks((), self._kept, self.marks, self._last)
        copy._looks, copy._bytes = self._looks.copy(), self._bytes
        return copy

    def measure(self, seconds: float, engine: Engine | None = None) -> Measures | None:
        """The last `seconds` up to the newest reading, or as much of them as was seen since the last restart, and since
        a server that was away for long came back.

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
            if first is not None and (look.time < begun or last.time - look.time > seconds * _OVER):
                break
            first = look
            if last.time - look.time >= seconds:
                break
        if last is None or first is None or last.reading is None or first.reading is None:
            return None
        return measure(first.reading, last.reading, last.time - first.time, engine, self._layouts_before(first.time))

    def series(self, term: str, seconds: float, columns: int, engine: Engine | None = None) -> list[float | None]:
        """A gauge's highest value, or a counter's mean rate a second, in each of so many equal spans of time up to the
        newest look: a peak is seen however long a span is. One in which no look fell has what held between those
        around it.

        None where the term was not told, the looks at a gauge or the last one at a counter failed, or it began anew.
        """
        looks = list(self._looks)
        if not looks or columns < 1 or seconds <= 0:
            return [None] * max(0, columns)
        gauge = any(look.reading is not None and term in look.reading.layout.gauge_slots for look in looks)
        newest = looks[-1].time
        ends = [newest - seconds * (columns - 1 - column) / columns for column in range(columns)]
        place, earlier = 0, -1
        found: list[float | None] = []
        for begin, end in pairwise((newest - seconds, *ends)):
            # `earlier` is the last reading up to the span's begin, or else the first one in it; `place` is after its
            # last look.
            first = place
            while place < len(looks) and looks[place].time <= end:
                if looks[place].reading is not None and (looks[place].time <= begin or earlier < 0):
                    earlier = place
                place += 1
            if gauge:
                within = [look for look in looks[first:place] if look.time > begin] or looks[max(0, place - 1) : place]
                levels = [level for look in within if (level := _level(look, term, engine)) is not None]
                found.append(max(levels, default=None))
            else:
                found.append(self._rate(looks, earlier, place, begin, term, engine))
            earlier = next((p for p in range(place - 1, earlier, -1) if looks[p].reading is not None), earlier)
        return found

    def _rate(
        self, looks: Sequence[Look], earlier: int, place: int, begin: float, term: str, engine: Engine | None
    ) -> float | None:
        """A counter's rate from one look to the last before a place, or to the next one where a span that begins after
        the former has none."""
        if earlier < 0 or looks[place - 1].reading is None:
            return None
        later = place - 1
        if later == earlier and looks[earlier].time <= begin:
            later = place
        if later >= len(looks):
            return None
        first, last = looks[earlier], looks[later]
        if first.reading is None or last.reading is None or last.time <= first.time:
            return None
        if any(first.time < time <= last.time for time in self._breaks_of(engine)):
            return None
        before = () if first.reading.layout is last.reading.layout else self._layouts_before(first.time)
        grown = growth(first.reading, last.reading, term, engine, before)
        return None if grown is None else grown / (last.time - first.time)

    def _breaks_of(self, engine: Engine | None) -> list[float]:
        if engine is None or (self._last is not None and self._last.engines == (engine,)):
            return [time for time, _ in self.marks.breaks]
        wanted = {EVERY, engine, Engine(engine.model)}
        return [time for time, engines in self.marks.breaks if wanted & engines]

    def _layouts_before(self, time: float) -> list[Layout]:
        return [layout for layout, seen in self.marks.layouts.items() if seen < time]


def _level(look: Look, term: str, engine: Engine | None) -> float | None:
    if look.reading is None:
        return None
    slots = look.reading.layout.gauge_slots.get(term, {})
    if engine is not None:
        return look.reading.values[slots[engine]] if engine in slots else None
    if len(slots) == 1 and len(look.reading.engines) == 1:  # a total of one: there are many looks
        return look.reading.values[next(iter(slots.values()))]
    return look.reading.totals().get(term)
