"""Waste, throughput, latency and queue over time, and what the last switch changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_

from tui import figures
from tui.history import Comparison, Window, step_seconds
from tui.look import Look
from tui.panels import charts, compare
from tui.panels.line import Line, box, fit, join, length
from tui.panels.measures import INTERNAL, OUTPUT, PREFILL, QUEUE, TPOT, TTFT, Measure
from tui.view import RATE_WINDOW, Frame, View

PLOT_WINDOW = 60.0  # seconds that the plots cover at least
LATENCY_WINDOW = 30.0  # seconds over which the latency figures are taken
_TICK = 0.5  # a column of a plot is a whole number of these, so that columns do not shift from frame to frame
_TOUCH = 2  # eighths that charts one under the other are apart


@dataclass(frozen=True, slots=True)
class Series:
    """One plotted figure; `brief` is it, and its name, where there is little room: the border names the unit."""

    measure: Measure
    brief: Measure
    span: float
    most: float | None = None  # a fixed top of the scale
    compared: bool = True


SERIES = (
    Series(INTERNAL, replace(INTERNAL, name="waste"), RATE_WINDOW, most=1.0),
    Series(OUTPUT, replace(OUTPUT, name="out", show=figures.count), RATE_WINDOW),
    Series(PREFILL, replace(PREFILL, show=figures.count), RATE_WINDOW),
    Series(TTFT[0], replace(TTFT[0], name="TTFT"), LATENCY_WINDOW),
    Series(TPOT[0], replace(TPOT[0], name="TPOT"), LATENCY_WINDOW),
    Series(QUEUE, QUEUE, RATE_WINDOW, compared=False),
)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view, front = frame.view, frame.focus.panel == "ledgers"
    inner, rows = width - 2, height - 2
    if view is None:
        return box("speed", [], [], width, height, look.glyphs, front=front)
    comparison = compare.comparison_of(view)
    tall = inner >= 60 and rows >= len(SERIES) * 2
    if tall:
        body, covered = _tall(view, comparison, inner, rows, look)
    else:
        body, covered = _compact(view, comparison, inner, rows, look)
    note = f" rates and waste over {RATE_WINDOW:.0f} s, latencies over {LATENCY_WINDOW:.0f} s "
    if len(note) > inner - 2:
        note = f" tok/s {RATE_WINDOW:.0f} s, p50 of {LATENCY_WINDOW:.0f} s "
    right: Line = []
    if comparison and not tall:
        had = figures.seconds(comparison.after.observed)
        right = [(look.glyphs.switch, "switch"), (f" {had} each side", "dim")]
    title = f"speed, {covered:.0f} s" if covered and (tall or not right) else "speed"
    return box(title, right, body, width, height, look.glyphs, bottom=[(note, "dim")], front=front)


_Chart = tuple[list[Line], float | None]
_drawn: dict[str, tuple[tuple[int, Look, list[bool]], list[Window], _Chart]] = {}  # the last chart of each series


def _columns(view: View, count: int) -> tuple[list[Window], float]:
    """`count` finished windows of one length, the newest last, and the seconds they cover."""
    ticks = max(1, -(-int(PLOT_WINDOW / _TICK) // max(1, count)))
    span = ticks * _TICK
    return view.history.columns(view.now, span, count), span * count


def _plot(series: Series, windows: list[Window], marks: list[bool], rows: int, look: Look) -> _Chart:
    """A column chart `rows` high, and the top of its scale: None where nothing was measured.

    Finished windows are the same objects from frame to frame: a chart of the same ones is drawn once.
    """
    of = (rows, look, marks)
    drawn = _drawn.get(series.brief.name)
    same = drawn is not None and drawn[0] == of and len(drawn[1]) == len(windows)
    if drawn is None or not same or not all(map(is_, drawn[1], windows)):
        drawn = _drawn[series.brief.name] = (of, windows, _chart(series, windows, marks, rows, look))
    return drawn[2]


def _chart(series: Series, windows: list[Window], marks: list[bool], rows: int, look: Look) -> _Chart:
    points = [series.measure.of(window) for window in windows]
    seen = [point for point in points if point is not None]
    most = (series.most or max(seen)) if seen else None
    plot = charts.Plot(rows, marks, look)
    plot.bars(points, most or 0.0, series.measure.role, _TOUCH if rows > 1 else 0)
    return plot.lines(), most


def _current(view: View, series: Series) -> float | None:
    return series.measure.of(view.history.window(view.now - series.span, view.now))


def _compact(view: View, comparison: Comparison | None, inner: int, rows: int, look: Look) -> tuple[list[Line], float]:
    values = []
    for series in SERIES:
        if comparison and series.compared:
            values.append(compare.pair(series.brief, comparison, look))
        else:
            values.append(series.brief.show(_current(view, series)))
    room = max(7, *(len(value) for value in values))
    plot = inner - 9 - room - 1
    windows, covered = _columns(view, plot) if plot >= 4 else ([], 0.0)
    marks = charts.marks(view, windows)
    out: list[Line] = []
    for series, value in zip(SERIES, values, strict=True):
        line: Line = [(f" {series.brief.name:<8}", "dim"), (value.rjust(room), series.measure.role)]
        if windows:
            line += [(" ", "text"), *_plot(series, windows, marks, 1, look)[0][0]]
        out.append(line)
    if rows > len(SERIES):
        out.append(_step(view, inner))
    return out[:rows], covered


def _step(view: View, inner: int) -> Line:
    """How long the last step took, how long of it blocks were moved, and the share that the model ran."""
    if not view.steps:
        return [(" step ", "dim"), (figures.NOT_MEASURED, "text")]
    spent = view.steps[-1].durations
    total = step_seconds(spent)
    forward: Line = [(f"forward {figures.percent(figures.ratio(spent.forward, total))}", "dim")]
    transfer: Line = [("transfer ", "dim"), (figures.seconds(spent.transfer), "text")]
    parts: list[Line] = [[(" step ", "dim"), (figures.seconds(total), "text")], forward]
    if spent.transfer:
        parts.insert(1, transfer)  # rarer than the forward, which gives way
    return join(parts, (", ", "dim"), inner)


def _tall(view: View, comparison: Comparison | None, inner: int, rows: int, look: Look) -> tuple[list[Line], float]:
    label = 20
    plot = inner - label - 12
    extra = 5 if rows >= len(SERIES) * 2 + 5 else 0
    high = max(2, (rows - extra) // len(SERIES))
    windows, covered = _columns(view, plot)
    marks = charts.marks(view, windows)
    out: list[Line] = []
    for series in SERIES:
        measure = series.measure
        chart, most = _plot(series, windows, marks, high, look)
        texts: list[Line] = [
            [(f" {measure.name}", "text")],
            [(f" {measure.show(_current(view, series))}", measure.role)],
        ]
        if measure is QUEUE and view.queue.length:
            texts[1].append((f", oldest {figures.seconds(view.queue.oldest_age)}", "dim"))
        for row, line in enumerate(chart):
            ends = {} if most is None else {0: measure.show(most), high - 1: "0"}
            scale = ends.get(row, "").rjust(11)
            out.append([*fit(texts[row] if row < 2 else [], label), *line, (f"{scale} ", "dim")])
    if extra:
        out += [[], *_before_after(view, comparison, inner, look)]
    return out[:rows], covered


def _before_after(view: View, comparison: Comparison | None, inner: int, look: Look) -> list[Line]:
    """The last switch, and the figures of equal windows on its two sides."""
    if comparison is None:
        hint = "after a switch, figures before and after appear here" if not view.history.switches else "measuring"
        return [[(f" {look.glyphs.switch} ", "switch"), (hint, "dim")]]
    head: Line = [
        (f" {look.glyphs.switch} ", "switch"),
        (compare.changed(comparison, look), "value"),
        (
            f"  step {comparison.last.seq:,}; {figures.seconds(comparison.before.observed)} before, "
            f"{figures.seconds(comparison.after.observed)} now",
            "dim",
        ),
    ]
    out: list[Line] = [head]
    compared = [series for series in SERIES if series.compared]
    cell = max(20, inner // 2)
    line: Line = []
    for index, series in enumerate(compared):
        text = f"   {series.measure.name:<15}{compare.pair(series.measure, comparison, look)}"
        line += fit([(text, series.measure.role)], cell)
        if index % 2 or index == len(compared) - 1:
            out.append(line if length(line) <= inner else fit(line, inner))
            line = []
    return out
