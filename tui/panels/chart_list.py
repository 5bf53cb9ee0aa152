"""A list of charts of which one is large: how keys and clicks choose it, and where the list and a table have room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tui.focus import Focus
from tui.panels.line import Line, fit


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows from the top: of the large chart, of the list of charts, of the table under it or, `beside`, next to it.

    `first` is the chart that the list begins with.
    """

    large: int
    first: int
    shown: int  # charts in the list
    table: int
    beside: bool

    @classmethod
    def small(cls, chart: int, count: int, shown: int, rows: int, beside: bool) -> Layout:
        """Without a large chart, and with room for `shown` of `count` in the list: that chart is among them."""
        first = max(0, min(chart - shown // 2, count - shown))
        return cls(0, first, shown, rows if beside else rows - shown, beside)

    @property
    def listed(self) -> range:
        """The charts in the list."""
        return range(self.first, self.first + self.shown)

    def at(self, x: int, y: int, inner: int) -> int | None:
        """The chart whose line is there, in a box of that width inside."""
        at = y - 1 - self.large
        if not 0 <= at < self.shown or (self.beside and x > inner // 2):
            return None
        return self.first + at

    def placed(self, charts: Sequence[Line], table: Sequence[Line], wide: int) -> list[Line]:
        """The lines of the list, `wide` cells each, and of the table where it has its room."""
        if not self.beside:
            return [*charts, *table]
        return [
            [*fit(charts[at] if at < len(charts) else [], wide), *(table[at] if at < len(table) else [])]
            for at in range(max(len(charts), len(table)))
        ]


def chosen(focus: Focus, count: int) -> int:
    """The chart that is large, of `count`."""
    return max(0, min(focus.ledgers.chart, count - 1))


def choose(focus: Focus, chart: int, count: int) -> Focus:
    """That chart is large, or the nearest there is."""
    return focus.but(ledgers=replace(focus.ledgers, chart=max(0, min(chart, count - 1))))


def press(focus: Focus, key: str, count: int) -> Focus | None:
    """Another chart is large, or all is told in an overlay; None: the key means nothing here."""
    at = chosen(focus, count)
    moves = {"up": at - 1, "down": at + 1, "home": 0, "end": count - 1}
    if key in moves:
        return choose(focus, moves[key], count)
    return focus.but(inspecting=True) if key == "enter" else None
