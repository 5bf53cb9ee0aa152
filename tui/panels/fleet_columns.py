"""The columns of the table of servers: what each is, its total, how it reads, which give way, and how they sort."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, get_args

from servers.dialects import BY_KIND
from servers.measures import Measures
from servers.terms import LIVE
from tui import figures
from tui.focus import FleetFocus
from tui.look import Look
from tui.panels import table
from tui.panels.line import clean
from tui.sources.fleet import Row, Totals, pace, series
from tui.sources.view import Phase

Value = str | float | None  # None: not told

LEAST_NAME, MOST_NAME = 8, 28  # cells
LEAST_PLOT, MOST_PLOT = 10, 40
PHASES: tuple[Phase, ...] = (
    "failing",
    "locked",
    "foreign",
    "finding",
    "slow",
    "live",
)  # as they sort: the bad ones first
ROLES: dict[Phase, str] = {"live": "good", "slow": "warn", "finding": "warn"}  # else bad
UNTIL_OLD = 10.0  # seconds from which on the age of what is live is told

assert set(PHASES) == set(get_args(Phase))


@dataclass(frozen=True, slots=True)
class Column(table.Column):
    """`value` is of a server, `total` of several."""

    value: Callable[[Row], Value]
    total: Callable[[Totals], Value]
    text: Callable[[Value], str]
    brief: Callable[[float], str] = figures.brief  # where the text has no room

    def fitted(self, value: Value, width: int) -> str:
        """In so many cells: a number that has no room is rounded, for one that is cut is another number."""
        text = self.text(value)
        number = _number(value)
        return text if len(text) <= width or number is None else self.brief(number)


def _word(value: Value) -> str:
    return figures.NOT_MEASURED if value is None or value == "" else str(value)


def _count(value: Value) -> str:
    return figures.count(_number(value))


def _tokens(value: Value) -> str:
    """Of memory, rounded: no cell has room for a million's digits."""
    number = _number(value)
    if number is None or number < 100_000:
        return figures.count(number)
    return f"{number / 1e6:.1f}M" if number >= 999_500 else f"{number / 1e3:.0f}k"


def _rate(value: Value) -> str:
    number = _number(value)
    if number is None or number >= 9.95 or number == 0:
        return figures.count(number)
    return f"{number:.1f}" if number >= 0.095 else f"{max(number, 0.01):.2f}"


def _percent(value: Value) -> str:
    return figures.percent(_number(value))


def _bound(value: Value) -> str:
    """A quantile is known as its bucket alone: at most that bucket's bound, or beyond the last one."""
    number = _number(value)
    if number is None:
        return figures.NOT_MEASURED
    return f"≤ {figures.at_most(number)}" if number >= 0 else f"> {figures.more_than(-number)}"


def _brief_percent(share: float) -> str:
    return f"{figures.brief(share * 100)}%"


def _brief_bound(seconds: float) -> str:
    """In hours."""
    if seconds >= 0:
        return f"≤ {figures.brief(seconds / 3600, math.ceil)} h"
    return f"> {figures.brief(-seconds / 3600, math.floor)} h"


def _number(value: Value) -> float | None:
    return None if value is None or isinstance(value, str) else value


def state(row: Row) -> str:
    """The phase, and how old the figures are where that matters."""
    link = row.server.link
    old = link.age is not None and (not link.fresh or link.age >= UNTIL_OLD)
    return f"{link.phase} {_age(link.age)}" if old and link.age is not None else link.phase


def _age(seconds: float) -> str:
    if seconds < 3600:
        return figures.seconds(seconds)
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours < 99.5 else f"{figures.brief(hours / 24)} d"


def kind(row: Row) -> str | None:
    """What people call such a server."""
    known = BY_KIND.get(row.server.kind)
    return known.title if known is not None else clean(row.server.kind) or None


def models(row: Row) -> str | None:
    """Its model by its last name, or how many there are."""
    names = row.models
    if len(names) > 1:
        return f"{len(names)} models"
    return clean(names[0].rstrip("/").rpartition("/")[2]) if names else None


def _no_total(totals: Totals) -> Value:
    return ""


def _gauge(term: str) -> dict[str, Any]:
    return {
        "value": lambda row: row.measures.gauges.get(term) if row.measures else None,
        "total": lambda totals: totals.gauge(term),
    }


def _summed(value: Callable[[Measures], float | None]) -> dict[str, Any]:
    return {
        "value": lambda row: value(row.measures) if row.measures else None,
        "total": lambda totals: totals.sum(value),
    }


def _paced(term: str) -> dict[str, Any]:
    return _summed(lambda measures: pace(measures, term))


def _counter(term: str) -> dict[str, Any]:
    return _summed(lambda measures: measures.rate(term))


def _grown(term: str) -> dict[str, Any]:
    return _summed(lambda measures: measures.growth.get(term))


def _quantile(term: str, percent: float) -> dict[str, Any]:
    def of(measures: Measures | None) -> Value:
        """Negative: more than that, the last finite bound."""
        bound = measures.at_most(term, percent) if measures else None
        if measures is None or bound is None or math.isfinite(bound):
            return bound
        finite = [known for known in measures.histograms[term].upto if math.isfinite(known)]
        return -max(finite) if finite else None

    return {"value": lambda row: of(row.measures), "total": lambda totals: of(totals.measures)}


def _hit_rate(row: Row) -> Value:
    return row.measures.hit_rate if row.measures else None


def _restarts(row: Row) -> Value:
    return None if row.measures is None else len(row.server.restarts)  # of what was never read nothing is known


# As they stand from left to right.
COLUMNS: tuple[Column, ...] = (
    Column("name", "name", LEAST_NAME, 0, lambda row: clean(row.name), _no_total, _word, words=True),
    Column("state", "state", 13, 1, state, _no_total, _word, words=True),
    Column("kind", "kind", 12, 8, kind, _no_total, _word, words=True),
    Column("model", "model", 18, 12, models, _no_total, _word, words=True),
    Column("running", "run", 5, 2, **_gauge("running"), text=_count),
    Column("waiting", "wait", 5, 4, **_gauge("waiting"), text=_count),
    Column("KV", "KV", 6, 3, **_gauge("kv_usage"), text=_percent, brief=_brief_percent),
    Column("capacity", "KV tokens", 9, 16, **_gauge("kv_capacity"), text=_tokens),
    Column("hit rate", "hits", 6, 7, _hit_rate, lambda totals: totals.hit_rate, _percent, brief=_brief_percent),
    Column("out tok/s", "out tok/s", 9, 5, **_paced("generation_tokens"), text=_rate),
    Column("in tok/s", "in tok/s", 9, 9, **_paced("prompt_tokens"), text=_rate),
    Column("req/s", "req/s", 6, 10, **_counter("requests"), text=_rate),
    Column("TTFT p50", "TTFT p50", 9, 11, **_quantile("ttft", 50), text=_bound, brief=_brief_bound),
    Column("TTFT p99", "TTFT p99", 9, 6, **_quantile("ttft", 99), text=_bound, brief=_brief_bound),
    Column("ITL p50", "ITL p50", 9, 17, **_quantile("itl", 50), text=_bound, brief=_brief_bound),
    Column("ITL p99", "ITL p99", 9, 13, **_quantile("itl", 99), text=_bound, brief=_brief_bound),
    Column("preemptions", "preempted", 9, 18, **_grown("preemptions"), text=_count),
    Column("restarts", "restarts", 8, 14, _restarts, lambda totals: float(totals.restarts), _count),
)
PLOT_PLACE = 15  # of the plot behind them, which gives way as a column does
BY_NAME = {column.name: column for column in COLUMNS}
AS_NAMED = "as named"
SORTS = (AS_NAMED, *BY_NAME)


def fitting(inner: int, longest: int = LEAST_NAME) -> tuple[tuple[tuple[Column, int], ...], int]:
    """The columns that `inner` cells have room for, each with its width, and the cells of the plot behind them.

    A cell is before each. Names have room for the `longest` where that leaves enough; the plot has the rest, 0: none.
    """
    least = max(LEAST_NAME, min(longest, MOST_NAME, inner // 4))
    left = inner - 1 - least
    chosen, cells = {"name"}, 0
    for _, column in sorted([*((one.place, one) for one in COLUMNS[1:]), (PLOT_PLACE, None)], key=itemgetter(0)):
        width = LEAST_PLOT + 2 if column is None else column.width + 1
        if width > left:
            break
        left -= width
        if column is None:
            cells = LEAST_PLOT
        else:
            chosen.add(column.name)
    more = min(max(0, longest - least), left)
    if cells:
        cells = min(MOST_PLOT, cells + left - more)
    widths = {"name": least + more}
    columns = tuple((column, widths.get(column.name, column.width)) for column in COLUMNS if column.name in chosen)
    return columns, cells


def of_how_many(count: int, width: int) -> str:
    """Of how many servers a total is."""
    return text if len(text := f"of {count:,}") <= width else f"of{figures.brief(count)}"


def matching(rows: Sequence[Row], wanted: str) -> list[Row]:
    """Those with `wanted` in their name, kind, model or state, in the order in which they were named."""
    wanted = wanted.strip().lower()
    if not wanted:
        return list(rows)
    return [
        row
        for row in rows
        if any(wanted in text.lower() for text in (row.name, kind(row) or "", row.server.link.phase, *row.models))
    ]


def sorted_by(focus: FleetFocus) -> str:
    return focus.sort if focus.sort in BY_NAME else AS_NAMED


def ordered(rows: Sequence[Row], focus: FleetFocus) -> list[Row]:
    """Those that match, sorted: equal ones as they were named, and last those that do not tell that figure now."""
    found = matching(rows, focus.filter)
    name = sorted_by(focus)
    if name == AS_NAMED:
        return found[::-1] if focus.descending else found
    if name == "state":
        return sorted(found, key=lambda row: PHASES.index(row.server.link.phase), reverse=focus.descending)
    column = BY_NAME[name]
    told: list[tuple[Any, Row]] = []
    untold: list[Row] = []
    for row in found:
        value = column.value(row)
        if value is None or not (row.tells or column.words or name == "restarts"):
            untold.append(row)
        else:  # more than the last bound is the most there is
            told.append((value if isinstance(value, str) else math.inf if value < 0 else value, row))
    told.sort(key=lambda pair: pair[0], reverse=focus.descending)
    return [*(row for _, row in told), *untold]


def plot(row: Row, cells: int, look: Look) -> str:
    """Generated tokens a second over the window, each cell a part of it, by the row's own greatest."""
    bars = look.glyphs.bars
    live = LIVE["generation_tokens"]
    term = live if row.server.looks.tells(live) else "generation_tokens"
    values = series(row, term, cells)
    most = max((value for value in values if value is not None), default=0.0)
    return "".join(
        " " if value is None else bars[math.ceil(value / most * len(bars)) - 1 if value > 0 else 0] for value in values
    )
