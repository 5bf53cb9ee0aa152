"""Throughput and latency over the window that the border states: one chart large, the others a line each."""

from __future__ import annotations

from tui import figures
from tui.commands import Key, Reaction
from tui.look import Look
from tui.panels import chart_list
from tui.panels.chart_list import Layout
from tui.panels.line import Line
from tui.panels.server import choice, latency, plots, words
from tui.panels.server.seen import Seen
from tui.view import Frame

KEYS = (
    Key("up down", "choose the chart that is large"),
    *choice.KEYS,
)
CHARTS = plots.CHARTS
_BESIDE = 110  # cells from which on the latencies are beside the list
_LARGE = plots.FRAME_ROWS + 3
_NAME = 18
_NOTED = 8  # rows, from which on it is said how tokens are counted
_TABLE = len(latency.TERMS) + 1


def _layout(frame: Frame, inner: int, rows: int) -> Layout:
    """The table is of latencies."""
    count, beside = len(CHARTS), inner >= _BESIDE
    low = max(count, _TABLE) if beside else count + _TABLE
    if rows >= low + _LARGE:
        return Layout(rows - low, 0, count, _TABLE, beside)
    shown = count if rows >= low else min(count, rows if beside else max(1, rows // 2))
    return Layout.small(frame.focus.ledgers.chart, count, shown, rows, beside)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    seen, inner = Seen.of(frame), width - 2
    notes = _notes(seen, inner, height - 2)
    rows = height - 2 - len(notes)
    layout, at = _layout(frame, inner, rows), chart_list.chosen(frame.focus, len(CHARTS))
    body: list[Line] = []
    if layout.large:
        chart = CHARTS[at]
        if chart.told(seen):
            body += plots.large(seen, (chart,), inner - 1, layout.large, look)
        else:
            body += [[(f" {chart.name}", "title")], *words.told(f"{figures.NOT_MEASURED} {chart.why(seen)}", inner)]
            body = body[: layout.large]
            body += [[]] * (layout.large - len(body))
    wide = inner // 2 if layout.beside else inner
    name = _NAME if wide >= 40 else 9
    low = [plots.listed(seen, CHARTS[one], one == at, wide, name, look) for one in layout.listed]
    table = latency.table(seen, inner - wide if layout.beside else inner, layout.table, look)
    body += layout.placed(low, table, wide)
    title = f"ledgers, last {figures.seconds(seen.window)}"
    return choice.bordered(
        "ledgers", title, frame, seen, [*body[:rows], *notes], width, height, look, [("< >", "key")], rates=True
    )


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    if (common := choice.press(frame, key)) is not None:
        return common
    return chart_list.press(frame.focus, key, len(CHARTS))


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A click on a chart of the list makes it the large one."""
    rows = height - 2 - len(_notes(Seen.of(frame), width - 2, height - 2))
    chart = _layout(frame, width - 2, rows).at(x, y, width - 2)
    return None if chart is None else chart_list.choose(frame.focus, chart, len(CHARTS))


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    return press(frame, "up" if up else "down", width, height)


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    """Every latency, and why what is not told is not."""
    seen = Seen.of(frame)
    out = latency.table(seen, width, _TABLE, look)
    why = {chart.name: chart.why(seen) for chart in CHARTS if not chart.told(seen)}
    why.update({f"{short}, {name}": seen.why(term) for term, name, short in latency.TERMS if not seen.tells(term)})
    for name, said in why.items():
        out += words.told(f"{figures.NOT_MEASURED} {name}: {said}", width)
    return f"latencies, {seen.over}", [*out, *_notes(seen, width, _NOTED)]


def _notes(seen: Seen, inner: int, rows: int) -> list[Line]:
    """What is to be known of how its tokens are counted, where there is room for it."""
    note = words.notes(seen.server.kind, *plots.counted(seen))
    return words.told(note, inner) if note and rows >= _NOTED else []
