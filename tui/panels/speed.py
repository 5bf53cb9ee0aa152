"""Waste, throughput, latency and queue over time, and what the last switch changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tui import controls, figures
from tui.history import Comparison, Window, quantile, step_seconds
from tui.look import Look
from tui.panels.line import Line, box, clean, fit, join, length
from tui.view import RATE_WINDOW, Frame, View

PLOT_WINDOW = 60.0  # seconds that the plots cover at least
LATENCY_WINDOW = 30.0  # seconds over which the latency figures are taken
_TICK = 0.5  # a column of a plot is a whole number of these, so that columns do not shift from frame to frame
_MIN_COMPARED = 1.0  # seconds each side of a switch must have had before figures are compared


@dataclass(frozen=True, slots=True)
class Series:
    """One plotted figure: `of` reads it from a window (None: not measured there), `show` writes it with its unit.

    `short` and `brief` are its name and figure where there is little room; the panel's border names the unit.
    """

    name: str
    short: str
    role: str
    of: Callable[[Window], float | None]
    show: Callable[[float | None], str]
    brief: Callable[[float | None], str]
    span: float
    most: float | None = None  # a fixed top of the scale
    compared: bool = True


def _per_second(value: float | None) -> str:
    return f"{figures.count(value)} tok/s"


def _waste(window: Window) -> float | None:
    return window.internal_share


def _output(window: Window) -> float | None:
    return window.per_second(window.output_tokens)


def _prefill(window: Window) -> float | None:
    return window.per_second(window.prefill_tokens)


def _ttft(window: Window) -> float | None:
    return quantile(window.ttft, 0.5)


def _tpot(window: Window) -> float | None:
    return quantile(window.tpot, 0.5)


def _queue(window: Window) -> float | None:
    return window.queue_length


SERIES = (
    Series("internal waste", "waste", "waste", _waste, figures.percent, figures.percent, RATE_WINDOW, most=1.0),
    Series("output", "out", "speed", _output, _per_second, figures.count, RATE_WINDOW),
    Series("prefill", "prefill", "prefill-speed", _prefill, _per_second, figures.count, RATE_WINDOW),
    Series("TTFT p50", "TTFT", "latency", _ttft, figures.seconds, figures.seconds, LATENCY_WINDOW),
    Series("TPOT p50", "TPOT", "latency", _tpot, figures.seconds, figures.seconds, LATENCY_WINDOW),
    Series("queue", "queue", "queue", _queue, figures.count, figures.count, RATE_WINDOW, compared=False),
)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view = frame.view
    inner, rows = width - 2, height - 2
    if view is None:
        return box("speed", [], [], width, height, look.glyphs)
    comparison = view.history.comparison(view.now)
    if comparison and comparison.after.observed < _MIN_COMPARED:
        comparison = None
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
    return box(title, right, body, width, height, look.glyphs, bottom=[(note, "dim")])


def _columns(view: View, count: int) -> tuple[list[Window], float]:
    """`count` finished windows of one length, the newest last, and the seconds they cover."""
    ticks = max(1, -(-int(PLOT_WINDOW / _TICK) // max(1, count)))
    span = ticks * _TICK
    return view.history.columns(view.now, span, count), span * count


def _bars(
    values: Sequence[float | None], marks: Sequence[bool], most: float, rows: int, role: str, look: Look
) -> list[Line]:
    """A column chart `rows` high: eighths where there is a value, nothing where nothing was measured."""
    glyphs = look.glyphs
    steps = len(glyphs.bars)
    top = rows * steps - (2 if rows > 1 else 0)  # charts one under the other do not touch
    heights = [
        None if value is None else max(1, round(min(1.0, value / most) * top)) if most else 1 for value in values
    ]
    out: list[Line] = []
    for row in range(rows - 1, -1, -1):
        line: Line = []
        for height, mark in zip(heights, marks, strict=True):
            if mark:
                span = (glyphs.switch, "switch")
            elif height is None or height <= row * steps:
                span = (" ", role)
            else:
                span = (glyphs.bars[min(steps, height - row * steps) - 1], role)
            if line and line[-1][1] == span[1]:
                line[-1] = (line[-1][0] + span[0], role if not mark else "switch")
            else:
                line.append(span)
        out.append(line)
    return out


def _marks(view: View, windows: Sequence[Window]) -> list[bool]:
    times = [switch.time for switch in view.history.switches]
    return [any(window.start < time <= window.end for time in times) for window in windows]


def _current(view: View, series: Series) -> float | None:
    return series.of(view.history.window(view.now - series.span, view.now))


def _change(series: Series, show: Callable[[float | None], str], comparison: Comparison, look: Look) -> str:
    before, after = show(series.of(comparison.before)), show(series.of(comparison.after))
    number, _, unit = before.partition(" ")
    if unit and after.partition(" ")[2] == unit:
        before = number
    return f"{before} {look.glyphs.arrow} {after}"


def _compact(view: View, comparison: Comparison | None, inner: int, rows: int, look: Look) -> tuple[list[Line], float]:
    values = []
    for series in SERIES:
        if comparison and series.compared:
            values.append(_change(series, series.brief, comparison, look))
        else:
            values.append(series.brief(_current(view, series)))
    room = max(7, *(len(value) for value in values))
    plot = inner - 9 - room - 1
    windows, covered = _columns(view, plot) if plot >= 4 else ([], 0.0)
    marks = _marks(view, windows)
    out: list[Line] = []
    for series, value in zip(SERIES, values, strict=True):
        line: Line = [(f" {series.short:<8}", "dim"), (value.rjust(room), series.role)]
        if windows:
            points = [series.of(window) for window in windows]
            most = series.most or max((p for p in points if p is not None), default=0.0)
            line += [(" ", "text"), *_bars(points, marks, most, 1, series.role, look)[0]]
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
    marks = _marks(view, windows)
    out: list[Line] = []
    for series in SERIES:
        points = [series.of(window) for window in windows]
        seen = [p for p in points if p is not None]
        most = series.most or max(seen, default=0.0)
        chart = _bars(points, marks, most, high, series.role, look)
        texts: list[Line] = [
            [(f" {series.name}", "text")],
            [(f" {series.show(_current(view, series))}", series.role)],
        ]
        if series.name == "queue" and view.queue.length:
            texts[1].append((f", oldest {figures.seconds(view.queue.oldest_age)}", "dim"))
        for row, line in enumerate(chart):
            scale = (series.show(most) if row == 0 and seen else "0" if row == high - 1 and seen else "").rjust(11)
            out.append([*fit(texts[row] if row < 2 else [], label), *line, (f"{scale} ", "dim")])
    if extra:
        out += [[], *_before_after(view, comparison, inner, look)]
    return out[:rows], covered


def _before_after(view: View, comparison: Comparison | None, inner: int, look: Look) -> list[Line]:
    """The last switch, and the figures of equal windows on its two sides."""
    if comparison is None:
        hint = "press m, a or s: figures before and after appear here" if not view.history.switches else "measuring"
        return [[(f" {look.glyphs.switch} ", "switch"), (hint, "dim")]]
    first, last = comparison.first.before, comparison.last.after
    changes = [f"{a} {look.glyphs.arrow} {b}" for a, b in controls.changes(first, last)] or ["back again"]
    head: Line = [
        (f" {look.glyphs.switch} ", "switch"),
        (clean(", ".join(changes)), "value"),
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
        text = f"   {series.name:<15}{_change(series, series.show, comparison, look)}"
        line += fit([(text, series.role)], cell)
        if index % 2 or index == len(compared) - 1:
            out.append(line if length(line) <= inner else fit(line, inner))
            line = []
    return out
