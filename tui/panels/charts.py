"""Columns over time: bars, points and stacks, with axes, and a line through all where a control was switched or the
engine was started again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log10

import numpy as np
import numpy.typing as npt

from tui import figures
from tui.history import Window
from tui.look import Look
from tui.panels.line import Line, join, length
from tui.panels.measures import LETTERS, ROLES, STACK, Chart, shares
from tui.view import View

TICK = 0.25  # seconds; a column is a whole number of these, so that columns do not shift from frame to frame
SCALE_WIDTH = 15  # cells of the scale at the left of a large chart
FRAME_ROWS = 3  # of a large chart beside its plot: what it is, the axis, and its times
_NICE = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0)  # with halves that read well too

Characters = npt.NDArray[np.str_]
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Columns:
    """Windows of one length, the newest last, in which of them a control was switched, and the cells that each is.

    `lead` are the cells left of them that are not a whole column.
    """

    windows: Sequence[Window]
    switched: Sequence[bool]
    cells: int
    lead: int

    @classmethod
    def of(cls, view: View, window: float, width: int) -> Columns:
        """Finished windows that together cover the last `window` seconds, in `width` cells."""
        span = max(1, -(-int(window / TICK) // max(1, width))) * TICK
        windows = view.history.columns(view.now, span, int(-(-window // span)))
        cells = max(1, width // len(windows))
        return cls(windows, marks(view, windows), cells, width - cells * len(windows))

    @property
    def span(self) -> float:
        """Seconds of a column."""
        return self.windows[-1].end - self.windows[-1].start


def marks(view: View, windows: Sequence[Window]) -> list[bool]:
    """In which windows a control was switched, or the engine was started again."""
    times = [switch.time for switch in view.history.switches] + view.history.restarts
    if not times:
        return [False] * len(windows)
    return [any(window.start < time <= window.end for time in times) for window in windows]


def top_of(most: float) -> float:
    """A round number that nothing on a scale goes over."""
    if most <= 0:
        return 1.0
    power: float = 10.0 ** floor(log10(most))
    return next(nice * power for nice in _NICE if most <= nice * power * 1.000001)


class Plot:
    """Cells of a plot [rows, columns], the upper row first: a character and the number of its role."""

    def __init__(self, rows: int, switched: Sequence[bool], look: Look) -> None:
        self.characters: Characters = np.full((rows, len(switched)), " ", "<U1")
        self.codes: Codes = np.zeros((rows, len(switched)), np.uint8)
        self.roles = ["text"]
        self._switched = np.array(switched, np.bool_)
        self._glyphs = look.glyphs

    def code(self, role: str) -> int:
        """A number for a role."""
        self.roles.append(role)
        return len(self.roles) - 1

    def bars(self, values: Sequence[float | None], most: float, role: str, room: int = 0) -> None:
        """Eighths where there is a value, nothing where nothing was measured; `room` eighths stay free at the top."""
        rows, steps = len(self.characters), len(self._glyphs.bars)
        top = rows * steps - room
        heights = np.array(
            [0 if value is None else max(1, round(min(1.0, value / most) * top)) if most else 1 for value in values],
            np.int64,
        )
        base = np.arange(rows - 1, -1, -1)[:, None] * steps
        self.characters[:] = np.array(list(" " + self._glyphs.bars))[np.clip(heights - base, 0, steps)]
        self.codes[:] = self.code(role)

    def points(self, values: Sequence[float | None], most: float, role: str, glyph: str) -> None:
        """One glyph in each column that has a value, over what is there."""
        rows, code = len(self.characters), self.code(role)
        for at, value in enumerate(values):
            if value is not None:
                row = rows - 1 - min(rows - 1, int(value / most * rows))
                self.characters[row, at], self.codes[row, at] = glyph, code

    def stack(self, parts: Sequence[Sequence[float] | None], letters: str, roles: Sequence[str]) -> None:
        """In each cell the letter of the part that is there when the shares of 1 are laid on each other."""
        rows, codes = len(self.characters), [self.code(role) for role in roles]
        levels = (np.arange(rows, 0, -1) - 0.5) / rows
        for at, split in enumerate(parts):
            if split is not None:
                part = np.minimum(np.searchsorted(np.cumsum(split), levels), len(letters) - 1)
                self.characters[:, at] = np.array(list(letters))[part]
                self.codes[:, at] = np.array(codes)[part]

    def lines(self, cells: int = 1) -> list[Line]:
        """Each row as spans, a column `cells` wide; switches go through all rows."""
        self.characters[:, self._switched] = self._glyphs.switch
        self.codes[:, self._switched] = self.code("switch")
        characters, codes = np.repeat(self.characters, cells, axis=1), np.repeat(self.codes, cells, axis=1)
        out: list[Line] = []
        for row in range(len(characters)):
            text = "".join(characters[row].tolist())
            cuts = [0, *(np.flatnonzero(np.diff(codes[row])) + 1).tolist(), len(text)]
            out.append([(text[a:b], self.roles[codes[row, a]]) for a, b in pairwise(cuts) if a < b])
        return out


def spark(columns: Columns, chart: Chart, look: Look) -> Line:
    """One row of bars of a chart's first measure."""
    measure = chart.measures[0]
    points = [measure.of(one) for one in columns.windows]
    most = chart.most or max((point for point in points if point is not None), default=0.0)
    plot = Plot(1, columns.switched, look)
    plot.bars(points, most, measure.role)
    return [(" " * columns.lead, "text"), *plot.lines(columns.cells)[0]]


def large(view: View, chart: Chart, whole: Window, window: float, width: int, rows: int, look: Look) -> list[Line]:
    """A chart of the last `window` seconds with its figures, which are `whole`'s, its scale and its times."""
    plot_rows = rows - FRAME_ROWS
    columns = Columns.of(view, window, width - SCALE_WIDTH)
    plot = Plot(plot_rows, columns.switched, look)
    if chart.stacked:
        most = 1.0
        plot.stack([shares(one) for one in columns.windows], LETTERS, ROLES)
    else:
        series = [[measure.of(one) for one in columns.windows] for measure in chart.measures]
        highest = max((value for values in series for value in values if value is not None), default=0.0)
        most = chart.most or top_of(highest)
        plot.bars(series[0], most, chart.measures[0].role)
        for glyph, measure, values in zip(
            (look.glyphs.down, look.glyphs.live), chart.measures[1:], series[1:], strict=False
        ):
            plot.points(values, most, measure.role, glyph)
    show = figures.percent if chart.stacked else chart.measures[0].show
    labels: dict[int, str] = {}
    if whole.observed:
        labels = {0: show(most), plot_rows - 1: "0"}
        half = show(most / 2)
        if plot_rows >= 7 and half not in (show(0.0), show(most)):  # of one request there is no half
            labels[plot_rows // 2] = half
    out = [legend(chart, whole, width, look)]
    for row, line in enumerate(plot.lines(columns.cells)):
        scale = labels.get(row, "")[: SCALE_WIDTH - 2]
        out.append(
            [(f"{scale:>{SCALE_WIDTH - 2}} {look.glyphs.vertical}", "axis"), (" " * columns.lead, "text"), *line]
        )
    return [*out, *_axis(columns, window, look)]


def legend(chart: Chart, whole: Window, width: int, look: Look) -> Line:
    """What a chart shows, with the figures of the whole window, and of how many requests."""
    title: Line = [(f" {chart.name}", "title")]
    parts: list[Line] = []
    counted = chart.measures[0].requests
    if counted:
        parts.append([(figures.plural(counted(whole), "request"), "dim")])
    if chart.stacked:
        mean, split = chart.measures[0], shares(whole)
        parts.append([(f"{mean.show(mean.of(whole))} {mean.short}", "value")])
        for at in sorted(range(len(STACK)), key=lambda at: -split[at] if split else at):
            share = figures.percent(split[at] if split else None)
            parts.append([(f"{LETTERS[at]} ", ROLES[at]), (f"{STACK[at]} {share}", "text")])
    else:
        glyphs = (look.glyphs.bars[-1], look.glyphs.down, look.glyphs.live)
        for glyph, measure in zip(glyphs, chart.measures, strict=False):
            figure = measure.show(measure.of(whole))
            parts.append([(f"{glyph} ", measure.role), (figure, measure.role), (f" {measure.short}", "dim")])
    needed = length(title) + sum(2 + length(part) for part in parts)
    return join(parts if needed > width else [title, *parts], ("  " if needed <= width else " ", "text"), width)


def _axis(columns: Columns, window: float, look: Look) -> list[Line]:
    """A line where records cover the time, a mark at switches, and the times of the two ends and the middle."""
    glyphs = look.glyphs
    plot = Plot(1, columns.switched, look)
    observed = [bool(one.observed) for one in columns.windows]
    plot.characters[0] = np.where(observed, glyphs.rest, " ")
    plot.codes[:] = plot.code("axis")
    line: Line = [(" " * (SCALE_WIDTH - 1) + glyphs.corners[2] + " " * columns.lead, "axis")]
    plotted = len(columns.windows) * columns.cells
    width = columns.lead + plotted
    first, half, last = f"-{figures.seconds(window)}", f"-{figures.seconds(window / 2)}", "now"
    note = f"   a column is {columns.span:g} s"
    row = [" "] * width

    def put(text: str, at: int) -> None:
        row[at : at + len(text)] = text

    put(first[:width], columns.lead)
    middle = columns.lead + plotted // 2 - len(half) // 2
    if plotted >= 24:
        put(half, middle)
    if plotted >= 2 * (len(half) + len(note)) + 8:
        put(note, middle + len(half))
    put(last, max(0, width - len(last)))
    return [
        [*line, *plot.lines(columns.cells)[0]],
        [(" " * SCALE_WIDTH + "".join(row[:width]), "axis")],
    ]
