"""What the figures of one draw are of: a server, one of its engines or all, and the seconds behind its rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from servers.looks import Look
from servers.measures import Measures
from servers.reading import Reading
from servers.terms import Engine
from tui import figures
from tui.panels.line import Span, clean
from tui.panels.server import words
from tui.sources.view import ServerView
from tui.view import Frame


@dataclass(frozen=True, slots=True)
class Seen:
    """`reading` is the newest there is, and `measures` the window up to it; None before one and two looks.

    `engine`: the one that both are of, None: all of them. `window`: the seconds that were asked for.
    """

    server: ServerView
    engine: Engine | None
    window: float
    reading: Reading | None
    measures: Measures | None
    told: frozenset[str]  # terms that the reading has
    levels: Mapping[str, Mapping[Engine, float]]  # its gauges
    totals: Mapping[str, float]  # of these over all engines, where there is such a thing
    steps: str = ""  # why its metrics are shown and not its steps, where it has these
    columns: dict[tuple[str, int], Sequence[float | None]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, frame: Frame) -> Seen:
        """Raises ValueError for a frame without a server."""
        server, window, engine = server_of(frame), frame.focus.ledgers.window, chosen(frame)
        newest = server.looks.newest_reading
        known = _latest.get(server.name)
        same = known is not None and known.engine == engine and known.window == window
        if known is not None and same and known.newest is newest and known.looks == len(server.looks):
            return replace(known.seen, server=server, steps=frame.status.no_steps)
        seen = replace(cls._new(server, window, engine), steps=frame.status.no_steps)
        if len(_latest) >= _KEPT:
            _latest.clear()
        _latest[server.name] = _Latest(seen, newest, len(server.looks), engine, window)
        return seen

    @classmethod
    def _new(cls, server: ServerView, window: float, engine: Engine | None) -> Seen:
        newest = server.looks.newest_reading
        reading = newest.reading if newest is not None else None
        if reading is None:
            return cls(server, engine, window, None, None, frozenset(), {}, {})
        if engine is not None:
            reading = reading.of(engine)
        levels = reading.gauges
        told = frozenset((*levels, *reading.counters, *reading.histograms))
        return cls(server, engine, window, reading, server.measure(window, engine), told, levels, reading.totals())

    @property
    def title(self) -> str:
        """What people call this kind of server."""
        return words.title(self.server.kind)

    @property
    def fresh(self) -> bool:
        return self.server.link.fresh

    @property
    def as_of(self) -> str:
        """When the figures are of, where that is not now; empty where it is."""
        link = self.server.link
        if link.fresh or self.reading is None:
            return ""
        return f"as of {figures.seconds(link.age)} ago"

    @property
    def old(self) -> str:
        """The same in short."""
        return f"{figures.seconds(self.server.link.age)} old" if self.as_of else ""

    @property
    def over(self) -> str:
        """How long the rates are over, or why there are none."""
        if self.measures is not None:
            return f"over {figures.seconds(self.measures.seconds)}"
        return words.ONE_LOOK if self.reading is not None else words.unread(self.server)

    @property
    def several(self) -> bool:
        return len(self.server.engines) > 1

    def gauges(self, term: str) -> Mapping[Engine, float]:
        """A gauge of each engine."""
        return self.levels.get(term, {})

    def gauge(self, term: str) -> float | None:
        """As of the newest reading: counts added up over engines, shares of KV memory weighted by it."""
        return self.totals.get(term)

    def series(self, term: str, columns: int) -> Sequence[float | None]:
        """A gauge's highest value, or a counter's mean rate, in each of so many equal parts of the window."""
        if (term, columns) not in self.columns:
            self.columns[term, columns] = self.server.looks.series(term, self.window, columns, self.engine)
        return self.columns[term, columns]

    def rate(self, term: str) -> float | None:
        return self.measures.rate(term) if self.measures is not None else None

    def tells(self, term: str) -> bool:
        """Whether the newest reading has a term at all."""
        return term in self.told

    def doubt(self, term: str) -> str:
        """Why a gauge that is told is not believed; empty where there is none."""
        return self.reading.doubt(term) if self.reading is not None else ""

    def why(self, term: str, *panels: str) -> str:
        """Why a figure is not there: the server does not tell it, or it has not been read long enough."""
        if self.reading is None:
            return words.unread(self.server)
        if doubt := self.doubt(term):
            return doubt
        if not self.tells(term):
            if self.engine is not None and term in self._of_all:
                return words.NOT_BY_ENGINE
            return words.missing(self.server.kind, term, *panels)
        if self.measures is None:
            return words.ONE_LOOK
        return words.BEGAN_ANEW if self.measures.restarted else words.NONE_CAME

    @property
    def _of_all(self) -> frozenset[str]:
        """The terms that the newest reading has of any engine."""
        newest = self.server.looks.newest_reading
        reading = newest.reading if newest is not None else None
        return (
            frozenset((*reading.gauges, *reading.counters, *reading.histograms)) if reading is not None else frozenset()
        )

    def role(self, role: str) -> str:
        """The role of a gauge: dim where it is not of now."""
        return role if self.fresh else "dim"

    def count(self, term: str, role: str = "value") -> Span:
        return (figures.count(self.gauge(term)), self.role(role))


def server_of(frame: Frame) -> ServerView:
    """Raises ValueError for a frame without a server."""
    if frame.server is None:
        raise ValueError("a frame of no server")
    return frame.server


def chosen(frame: Frame) -> Engine | None:
    """The engine that figures are of; None: all, also where the one that was chosen is gone."""
    wanted, engines = frame.focus.server.engine, server_of(frame).engines
    return next((engine for engine in engines if tuple(engine) == wanted), None) if len(engines) > 1 else None


def name_of(engine: Engine, engines: tuple[Engine, ...]) -> str:
    """What tells an engine from the others: its rank, its model, or both."""
    models, ranks = {one.model for one in engines}, {one.rank for one in engines}
    rank = f"engine {engine.rank}" if engine.rank else ""
    parts = [engine.model if len(models) > 1 or len(ranks) == 1 else "", rank if len(ranks) > 1 else ""]
    return clean(" ".join(part for part in parts if part)) or "engine"


@dataclass(frozen=True, slots=True)
class _Latest:
    """What was seen last of a server: six panels of a frame ask for the same, and it changes with each look."""

    seen: Seen
    newest: Look | None
    looks: int
    engine: Engine | None
    window: float


_latest: dict[str, _Latest] = {}
_KEPT = 64  # servers
