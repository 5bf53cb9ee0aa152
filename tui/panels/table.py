"""A table whose rows are walked, scrolled and sorted by a column: what every panel with one has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tui.focus import TableFocus
from tui.look import Look
from tui.panels.line import Line

WHEEL_ROWS = 3

FocusT = TypeVar("FocusT", bound=TableFocus)


@dataclass(frozen=True, slots=True)
class Column:
    """`place`: columns with greater ones give way first; `words` are set left, and sorted from a to z at first."""

    name: str
    head: str
    width: int
    place: int
    words: bool = field(default=False, kw_only=True)

    def cell(self, text: str, width: int) -> str:
        return f"{text[:width]:<{width}}" if self.words else f"{text[:width]:>{width}}"


@dataclass(frozen=True, slots=True)
class Shown:
    """Of `count` rows, `drawn` from `top` on."""

    count: int
    top: int
    drawn: int

    @classmethod
    def of(cls, focus: TableFocus, count: int, room: int, at: int | None) -> Shown:
        """What `room` lines show; `at`: the row under the cursor, None where it is not among them."""
        drawn = max(0, min(count, room))
        top = max(0, min(focus.top, count - drawn))
        if focus.follow and drawn and at is not None:
            top = min(max(top, at - drawn + 1), at)
        return cls(count, top, drawn)

    @property
    def rows(self) -> slice:
        return slice(self.top, self.top + self.drawn)

    def moved(self, key: str, at: int | None) -> int:
        """The row that a key leads to, of one at least. Where none is selected it begins with what is seen."""
        page = max(1, self.drawn)
        by = {"up": -1, "down": 1, "pageup": -page, "pagedown": page}.get(key)
        if by is None:
            return 0 if key == "home" else self.count - 1
        if at is not None:
            return max(0, min(self.count - 1, at + by))
        return self.top if by > 0 else self.top + max(0, self.drawn - 1)

    def row_at(self, x: int, y: int, width: int) -> int | None:
        """The row at a place in a box of that width, whose first line has the heads."""
        return self.top + y - 2 if 0 <= y - 2 < self.drawn and 0 < x < width - 1 else None

    def scrolled(self, focus: FocusT, up: bool) -> FocusT | None:
        """The focus after the wheel; None: there is nothing further."""
        top = max(0, min(self.count - self.drawn, self.top + (-WHEEL_ROWS if up else WHEEL_ROWS)))
        return None if top == self.top else replace(focus, top=top, follow=False)


def heads(columns: Sequence[tuple[Column, int]], sorted_by: str, descending: bool, look: Look) -> Line:
    """Names of the columns; a mark beside the one that is sorted by, which way it goes."""
    mark = look.glyphs.down_open if descending else "^"
    line: Line = [(" ", "text")]
    for column, width in columns:
        chosen = column.name == sorted_by
        text = column.head[: width - 1] + mark if chosen else column.head
        line += [(column.cell(text, width), "selected" if chosen else "dim"), (" ", "text")]
    return line


def column_at(columns: Sequence[tuple[Column, int]], x: int) -> str | None:
    """The name of the column whose head is there."""
    start = 2
    for column, width in columns:
        if start <= x < start + width:
            return column.name
        start += width + 1
    return None


def beside(names: Sequence[str], current: str, by: int) -> str:
    """The name that many places after the current one, round and round."""
    at = names.index(current) if current in names else 0
    return names[(at + by) % len(names)]


def sort(focus: FocusT, name: str, current: str, falling: bool) -> FocusT:
    """Sorted by that column, `falling` or not at first; the one that it is sorted by already: inverted."""
    descending = not focus.descending if name == current else falling
    return replace(focus, sort=name, descending=descending, top=0)
