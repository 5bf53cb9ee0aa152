"""A server's figures over time, from its looks: a line of bars, or a large chart with its scale and its times.

A column is the highest that a gauge was in its time, and the mean rate of a counter.

A column where nothing was told is empty; a line goes through those in which the counters began anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from servers.terms import LIVE
from tui import figures
from tui.look import Look
from tui.panels.charts import Plot, top_of
from tui.panels.line import Line, cut, join, length
from tui.panels.server.seen import Seen

SCALE_WIDTH = 13  # cells of the scale at the left of a large chart
FRAME_ROWS = 3  # of a large chart beside its plot: what it is, the axis, and its times
_REASON = 16  # cells of why there is no figure, at least
LEAST = 1.0  # seconds of a column: looks are seldom more frequent

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure over time. `needs`: the terms of which one must be told, and other words that say why it is not."""

    name: str
    short: str
    needs: tuple[str, ...]
    now: Callable[[Seen], float | None]
    over: Callable[[Seen, int], Values]
    show: Callable[[float | None], str]
    role: str
    most: float | None = None
    gauge: bool = False  # of the newest look, not of a window

    def told(self, seen: Seen) -> bool:
        return any(seen.tells(term) for term in self.needs[:2])

    def why(self, seen: Seen) -> str:
        """Why there is nothing to show."""
        return seen.why(*self.needs)


@dataclass(frozen=True, slots=True)
class Columns:
    """How a window is laid over `width` cells: `count` columns of `cells`, `lead` cells left of them."""

    count: int
    cells: int
    lead: int
    switched: list[bool]

    @classmethod
    def of(cls, seen: Seen, width: int) -> Columns:
        count = max(1, min(width, int(seen.window / LEAST)))
        cells = max(1, width // count)
        newest = seen.server.looks.newest
        end = newest.time if newest is not None else seen.server.now
        span = seen.window / count
        switched = [False] * count
        for time in seen.server.restarts:
            at = count - 1 - int((end - time) / span) if time <= end else count - 1
            if 0 <= at < count:
                switched[at] = True
        return cls(count, cells, width - cells * count, switched)


def bare(seen: Seen, chart: Chart, width: int, rows: int, look: Look) -> list[Line]:
    """Bars alone, over so many rows."""
    columns = Columns.of(seen, width)
    values = chart.over(seen, columns.count)
    plot = Plot(rows, columns.switched, look)
    plot.bars(values, chart.most or _highest(values), seen.role(chart.role))
    return [[(" " * columns.lead, "text"), *line] for line in plot.lines(columns.cells)]


def spark(seen: Seen, chart: Chart, width: int, look: Look) -> Line:
    """One row of bars."""
    return bare(seen, chart, width, 1, look)[0]


def large(seen: Seen, charts: Sequence[Chart], width: int, rows: int, look: Look) -> list[Line]:
    """The first chart as bars, the others as points where they are not 0, to one scale."""
    plot_rows = max(1, rows - FRAME_ROWS)
    columns = Columns.of(seen, max(1, width - SCALE_WIDTH))
    series = [chart.over(seen, columns.count) for chart in charts]
    glyphs = look.glyphs
    marks = (glyphs.bars[-1], glyphs.down, glyphs.live, glyphs.hole)
    parts: list[Line] = []
    for mark, chart in zip(marks, charts, strict=False):
        role = seen.role(chart.role)
        parts.append([(f" {mark} ", role), (f"{chart.name} ", "dim"), (chart.show(chart.now(seen)), role)])
    out = [join(parts, (" ", "text"), width)]
    return out + plotted(
        columns,
        series,
        [seen.role(chart.role) for chart in charts],
        charts[0].most,
        charts[0].show,
        (seen.window, _end(seen)),
        plot_rows,
        look,
    )


def plotted(
    columns: Columns,
    series: Sequence[Values],
    roles: Sequence[str],
    most: float | None,
    show: Callable[[float | None], str],
    ends: tuple[float, str],
    rows: int,
    look: Look,
) -> list[Line]:
    """The plot with its scale, and under it the axis and its times: `ends` are the window's seconds and its end."""
    glyphs = look.glyphs
    highest = max((_highest(values) for values in series), default=0.0)
    known = any(value is not None for values in series for value in values)
    top = most or top_of(highest)
    plot = Plot(rows, columns.switched, look)
    plot.bars(series[0], top, roles[0])
    for mark, role, values in zip((glyphs.down, glyphs.live, glyphs.hole), roles[1:], series[1:], strict=False):
        plot.points([value or None for value in values], top, role, mark)  # in the lowest row 0 would read as some
    labels = {0: show(top), rows - 1: show(0.0) if rows > 1 else ""} if known else {}
    if rows == 1 and known:
        labels = {0: show(top)}
    out: list[Line] = []
    for row, line in enumerate(plot.lines(columns.cells)):
        scale = labels.get(row, "")[: SCALE_WIDTH - 2]
        out.append(
            [(f"{scale:>{SCALE_WIDTH - 2}} {glyphs.vertical}", "axis"), (" " * columns.lead, "text"), *line],
        )
    width = columns.lead + columns.count * columns.cells
    window, end = ends
    first = f"-{figures.seconds(window)}"
    note = f"a column is {figures.seconds(window / columns.count)}"
    times = [" "] * width

    def put(text: str, at: int) -> None:
        if at >= 0 and at + len(text) <= width:
            times[at : at + len(text)] = text

    put(first, 0)
    if width >= len(first) + len(end) + len(note) + 6:
        put(note, (width - len(note)) // 2)
    if width >= len(first) + len(end) + 1:
        put(end, width - len(end))
    axis = (" " * (SCALE_WIDTH - 1) + glyphs.corners[2] + glyphs.rest * width, "axis")
    return [*out, [axis], [(" " * SCALE_WIDTH + "".join(times), "axis")]]


def listed(seen: Seen, chart: Chart, chosen: bool, width: int, name: int, look: Look) -> Line:
    """A chart as a line: its name, its figure, and how that went, or why it is not told."""
    role = "selected" if chosen else "text"
    shown = chart.show(chart.now(seen))
    value = seen.role(chart.role) if chart.gauge else chart.role
    line: Line = [
        (look.glyphs.right if chosen else " ", role),
        (f"{chart.short if name < 12 else chart.name:<{name}}", role),
    ]
    if not chart.told(seen):
        line.append((f"{figures.NOT_MEASURED:>10} ", "dim"))
        room = width - length(line) - 1
        return cut([*line, (chart.why(seen), "dim")], width - 1, look.glyphs.more) if room >= _REASON else line
    line.append((f"{shown:>10} ", value))
    room = width - length(line) - 1
    return [*line, *spark(seen, chart, room, look)] if room >= 4 else line


def _end(seen: Seen) -> str:
    """When the newest look was, which may have failed: a chart ends with it."""
    newest, now = seen.server.looks.newest, seen.server.now
    late = now - newest.time if newest is not None else 0.0
    return "now" if late < max(LEAST, seen.window / 20) else f"{figures.seconds(late)} ago"


def _highest(values: Values) -> float:
    return max((value for value in values if value is not None), default=0.0)


def of_gauge(term: str) -> tuple[Callable[[Seen], float | None], Callable[[Seen, int], Values]]:
    """The newest value of a gauge, and its highest ones over time."""
    return lambda seen: seen.gauge(term), lambda seen, count: seen.series(term, count)


def of_counter(term: str) -> tuple[Callable[[Seen], float | None], Callable[[Seen, int], Values]]:
    """A counter's rate over the window, and over time."""
    return lambda seen: seen.rate(term), lambda seen, count: seen.series(term, count)


def as_it_happens(seen: Seen, term: str) -> str:
    """The counter of a term that is raised as things happen, where the server has one."""
    return LIVE[term] if seen.tells(LIVE[term]) else term


def counted(seen: Seen) -> tuple[str, ...]:
    """The counters behind the tokens a second."""
    return tuple(as_it_happens(seen, term) for term in LIVE)


def of_live(term: str) -> tuple[Callable[[Seen], float | None], Callable[[Seen, int], Values]]:
    """The same of the counter that is raised as it happens."""
    return (
        lambda seen: seen.rate(as_it_happens(seen, term)),
        lambda seen, count: seen.series(as_it_happens(seen, term), count),
    )


def hit_rate(seen: Seen, count: int) -> Values:
    """In each column the share of what was looked up that was found."""
    unit = unit_of_hits(seen)
    hits, queried = seen.series(f"prefix_hit_{unit}", count), seen.series(f"prefix_queried_{unit}", count)
    return [hit / of if hit is not None and of else None for hit, of in zip(hits, queried, strict=True)]


def unit_of_hits(seen: Seen) -> str:
    """What the server counts its prefix cache's hits in."""
    told = [
        unit for unit in ("tokens", "blocks") if all(seen.tells(f"prefix_{of}_{unit}") for of in ("queried", "hit"))
    ]
    return told[0] if told else "tokens"


def a_second(value: float | None) -> str:
    """A rate, with decimals where it is small: what happened once in a while is not 0."""
    if value is None:
        return figures.NOT_MEASURED
    if 0 < value < 0.095:
        return f"{max(value, 0.01):.2f}/s" if value >= 0.005 else "<0.01/s"
    return f"{value:,.1f}/s" if 0 < value < 99.95 else f"{value:,.0f}/s"


RUNNING = Chart("running", "running", ("running",), *of_gauge("running"), figures.count, "speed", gauge=True)
WAITING = Chart("waiting", "waiting", ("waiting",), *of_gauge("waiting"), figures.count, "queue", gauge=True)
KV = Chart("KV memory used", "KV used", ("kv_usage",), *of_gauge("kv_usage"), figures.percent, "shared", 1.0, True)
GENERATION = Chart(
    "generation tokens", "out tok", ("generation_tokens",), *of_live("generation_tokens"), a_second, "speed"
)
PROMPT = Chart("prompt tokens", "in tok", ("prompt_tokens",), *of_live("prompt_tokens"), a_second, "prefill-speed")
REQUESTS = Chart("requests ended", "requests", ("requests",), *of_counter("requests"), a_second, "value")
PREEMPTIONS = Chart("preemptions", "preempt", ("preemptions",), *of_counter("preemptions"), a_second, "waste")
HITS = Chart(
    "prefix hit rate",
    "hits",
    ("prefix_hit_tokens", "prefix_hit_blocks", "hit_rate"),
    lambda seen: seen.measures.hit_rate if seen.measures is not None else None,
    hit_rate,
    figures.percent,
    "shared",
    1.0,
)
CHARTS = (GENERATION, PROMPT, REQUESTS, PREEMPTIONS, RUNNING, WAITING, KV, HITS)
