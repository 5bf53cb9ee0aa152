"""Waste, memory, speed, latency and the queue over time: one chart large, the others as a line each, and what the
last switch changed. Everything is over the window that the border states."""

from __future__ import annotations

from dataclasses import replace

from tui import figures
from tui.commands import Key, Reaction
from tui.history import Window
from tui.look import Look
from tui.panels import chart_list, charts, compare
from tui.panels.chart_list import Layout
from tui.panels.line import Line, box, fit, spread
from tui.panels.measures import CHARTS, COMPARED, Chart
from tui.view import Frame

KEYS = (
    Key("up down", "choose the chart that is large"),
    Key("< >", "a shorter or a longer window"),
    Key("enter", "every figure before and after the last switch"),
)
WINDOWS = (15.0, 60.0, 300.0, 900.0)  # seconds
TABLE_ROWS = compare.HEAD_ROWS + len(COMPARED)
LARGE_ROWS = charts.FRAME_ROWS + 3  # of a large chart, at least
_NAME, _FIGURE = 14, 12  # cells of a chart's name and figure in the list
_COUNT = 9  # cells for the number of requests that a quantile is of
_COUNTED = 56  # cells of the list from which on there is room for it
_BESIDE = 96  # cells from which on the table is beside the list


def _layout(frame: Frame, width: int, rows: int) -> Layout:
    """The table is of before and after the last switch."""
    count = len(CHARTS)
    beside = width >= _BESIDE
    if rows < count + LARGE_ROWS:
        return Layout.small(frame.focus.ledgers.chart, count, min(count, rows), rows, beside)
    if beside:
        low = TABLE_ROWS if rows >= TABLE_ROWS + count else max(count, rows // 2)
        return Layout(rows - low, 0, count, low, True)
    table = TABLE_ROWS if rows >= count + LARGE_ROWS + TABLE_ROWS else 0
    return Layout(rows - count - table, 0, count, table, False)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view, focus = frame.view, frame.focus
    front = focus.panel == "ledgers"
    if view is None:
        return box("ledgers", [], [], width, height, look.glyphs, front=front)
    inner, rows = width - 2, height - 2
    window = focus.ledgers.window
    layout = _layout(frame, inner, rows)
    chosen, whole = chart_list.chosen(focus, len(CHARTS)), view.history.window(view.now - window, view.now)
    body: list[Line] = []
    if layout.large:
        body += charts.large(view, CHARTS[chosen], whole, window, inner - 1, layout.large, look)
    list_width = inner // 2 if layout.beside else inner
    plot = list_width - _NAME - _FIGURE - 2 - (_COUNT if list_width >= _COUNTED else 0)
    columns = charts.Columns.of(view, window, plot) if plot >= 4 else None
    low = [_listed(CHARTS[at], at == chosen, whole, columns, list_width, look) for at in layout.listed]
    table_width = inner - list_width if layout.beside else inner
    table: list[Line] = []
    if layout.table:
        table = compare.table(view, compare.comparison_of(view), table_width, layout.table, look)
    body += layout.placed(low, table, list_width)
    title = f"ledgers, last {figures.seconds(window)}"
    return box(title, [("< >", "key")], body, width, height, look.glyphs, bottom=_observed(whole, inner), front=front)


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    focus, ledgers = frame.focus, frame.focus.ledgers
    if key in ("less_than_sign", "greater_than_sign"):
        longer = key == "greater_than_sign"
        others = [one for one in WINDOWS if (one > ledgers.window) == longer and one != ledgers.window]
        if not others:
            return None
        return focus.but(ledgers=replace(ledgers, window=min(others) if longer else max(others)))
    return chart_list.press(focus, key, len(CHARTS))


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A click on a chart of the list makes it the large one."""
    chart = _layout(frame, width - 2, height - 2).at(x, y, width - 2)
    return None if chart is None else chart_list.choose(frame.focus, chart, len(CHARTS))


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    return press(frame, "up" if up else "down", width, height)


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    """Every figure before and after the last switch."""
    if frame.view is None:
        return "before and after", []
    return "before and after", compare.table(frame.view, compare.comparison_of(frame.view), width, TABLE_ROWS, look)


def _listed(chart: Chart, chosen: bool, whole: Window, columns: charts.Columns | None, width: int, look: Look) -> Line:
    """A chart as one line: its name, its first figure over the window, and how that went."""
    measure = chart.measures[0]
    figure = measure.show(measure.of(whole))
    role = "selected" if chosen else "text"
    line: Line = [(look.glyphs.right if chosen else " ", role), (f"{measure.name:<{_NAME}}", role)]
    if columns is None:
        return spread(fit(line, max(8, min(1 + _NAME, width - len(figure) - 1))), [(figure, measure.role)], width)
    line.append((f"{figure:>{_FIGURE}} ", measure.role))
    if width >= _COUNTED:
        counted = f"of {measure.requests(whole):,}" if measure.requests else ""
        line.append((f"{counted:<{_COUNT}}", "dim"))
    return [*line, *charts.spark(columns, chart, look)]


def _observed(whole: Window, width: int) -> Line:
    """How much of the window was seen."""
    said = f" {figures.seconds(whole.observed)} observed"
    steps = f", {figures.plural(round(whole.steps), 'step')}"
    return [(f"{said}{steps if len(said + steps) < width - 2 else ''} ", "dim")]
