"""Every server of a fleet in a table that is sorted and filtered by choice, and what all do together that tell now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tui import figures
from tui.commands import Ask, Key, Open, Reaction, Say
from tui.focus import FleetFocus, Focus
from tui.look import Look
from tui.panels import table
from tui.panels.fleet_columns import (
    BY_NAME,
    COLUMNS,
    ROLES,
    SORTS,
    Column,
    Value,
    fitting,
    kind,
    of_how_many,
    ordered,
    plot,
    sorted_by,
)
from tui.panels.ledgers import WINDOWS
from tui.panels.line import Line, box, clean, cut
from tui.panels.server import words
from tui.panels.table import Shown
from tui.sources import fleet as figures_of
from tui.sources.fleet import Row, Totals
from tui.sources.view import FleetView
from tui.view import Frame

KEYS: tuple[Key, ...] = (
    Key("enter", "this server alone"),
    Key("up down", "select a server"),
    Key("< >", "sort by another column"),
    Key("I", "the other way round"),
    Key("+ -", "over a longer or shorter time"),
    Key("home end", "the first, the last"),
)
ROOMY = 12  # lines from which on there is a rule above the totals, and a line for the server under the cursor
TOTAL_ROWS = 2
_CELL, _NAME = 26, 10  # cells of a figure that has no column, and of its name


@dataclass(frozen=True, slots=True)
class _Table:
    """`rows` are in the order shown. `plot`: cells of that behind the columns."""

    columns: tuple[tuple[Column, int], ...]
    plot: int
    all: tuple[Row, ...]
    rows: list[Row]
    shown: Shown
    roomy: bool

    @property
    def label(self) -> int:
        """Cells before the first column of figures: what totals are of stands there."""
        at = 1
        for column, width in self.columns:
            if not column.words:
                break
            at += width + 1
        return at


def _table(fleet: FleetView, focus: Focus, width: int, height: int) -> _Table:
    every = figures_of.rows(fleet, focus.ledgers.window)
    rows = ordered(every, focus.fleet)
    inner, roomy = height - 2, height >= ROOMY
    room = inner - 1 - TOTAL_ROWS - (2 if roomy else 0)
    shown = Shown.of(focus.fleet, len(rows), room, _at(rows, focus.fleet))
    columns, cells = fitting(width - 2, _longest(every))
    return _Table(columns, cells, every, rows, shown, roomy)


def _longest(rows: Sequence[Row]) -> int:
    return max((len(row.name) for row in rows), default=0)


def _at(rows: Sequence[Row], focus: FleetFocus) -> int | None:
    """Where the cursor is among these; it begins at the first."""
    if focus.row is None:
        return 0 if rows else None
    return next((index for index, row in enumerate(rows) if row.name == focus.row), None)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    fleet, focus = frame.fleet, frame.focus
    if fleet is None:
        return box("fleet", [], [], width, height, look.glyphs, front=True)
    servers = _table(fleet, focus, width, height)
    at = _at(servers.rows, focus.fleet)
    body = [_heads(servers, focus, look), *_rows(servers, at, look)]
    if not servers.rows:
        wanted = clean(focus.fleet.filter)
        body.append([(f' no server has "{wanted}": / changes that' if servers.all else " no servers", "dim")])
    lines = height - 2 - TOTAL_ROWS - (2 if servers.roomy else 0)
    if at is not None:
        also = _also(servers, servers.rows[at], width - 2, look)
        if len(body) + 1 + len(also) <= lines:
            body += [[] for _ in range(lines - len(body) - len(also))] + also
    body += [[] for _ in range(lines - len(body))]
    if servers.roomy:
        body.append([(look.glyphs.rest * (width - 2), "border")])
    body += _totals(servers, width - 2, look)
    if servers.roomy:
        body.append(_told(servers.rows[at], width - 2, look) if at is not None else [])
    legend: Line = [(f" rates and quantiles of the last {_span(focus.ledgers.window)} ", "dim")]
    return box(
        _title(servers, focus.fleet, width),
        [],
        body,
        width,
        height,
        look.glyphs,
        bottom=legend,
        bottom_right=[("a quantile is its bucket's bound, never a guess within", "dim")] if width >= 110 else [],
        front=True,
    )


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _title(servers: _Table, focus: FleetFocus, width: int) -> str:
    """How many of how many, in which order, and of which kind."""
    count, name = len(servers.rows), sorted_by(focus)
    wanted = clean(focus.filter.strip())
    by = name if name == "as named" else f"by {name}"
    if width < 60:
        return f"fleet {servers.shown.drawn:,}/{count:,} {by}" + (f" /{wanted}" if wanted else "")
    order = {"as named": "the last first" if focus.descending else ""}.get(
        name, "falling" if focus.descending else "rising"
    )
    kind = f' with "{wanted}", {len(servers.all):,} in all' if wanted else ""
    return f"fleet, {servers.shown.drawn:,} of {count:,} shown{kind}, {by}" + (f", {order}" if order else "")


def _heads(servers: _Table, focus: Focus, look: Look) -> Line:
    line = table.heads(servers.columns, sorted_by(focus.fleet), focus.fleet.descending, look)
    if servers.plot:
        line.append((f" out, {_span(focus.ledgers.window)}"[: servers.plot + 1], "dim"))
    return line


def _rows(servers: _Table, at: int | None, look: Look) -> list[Line]:
    out: list[Line] = []
    for index, row in enumerate(servers.rows[servers.shown.rows], servers.shown.top):
        chosen = index == at
        line: Line = [(look.glyphs.right if chosen else " ", "selected")]
        for column, width in servers.columns:
            value = column.value(row)
            role = "selected" if chosen else _role(row, column, value)
            line += [(column.cell(_fit(column, value, width, look), width), role), (" ", "text")]
        if servers.plot:
            line += [(" ", "text"), (plot(row, servers.plot, look), "speed" if row.tells else "dim")]
        out.append(line)
    return out


def _fit(column: Column, value: Value, width: int, look: Look) -> str:
    """Names differ at their ends as often as at their beginnings: what is left out is in the middle."""
    text = column.fitted(value, width)
    if len(text) <= width or column.name not in ("name", "model"):
        return text
    more = look.glyphs.more
    tail = (width - len(more)) // 2
    return text[: width - len(more) - tail] + more + text[len(text) - tail :]


def _role(row: Row, column: Column, value: Value) -> str:
    if column.name == "state":
        return ROLES.get(row.server.link.phase, "bad")
    if column.name == "name":
        return "value" if row.tells else "dim"
    if column.name == "restarts" and value:
        return "warn"
    return "dim" if value is None or not row.tells else "text"


def _totals(servers: _Table, inner: int, look: Look) -> list[Line]:
    """What those do together that tell now, and under each figure how many do, where that is not all of them."""
    totals = figures_of.totals(servers.rows)
    telling = [row for row in servers.rows if row.tells]
    label = servers.label
    sums: Line = [(f"{' total':<{label}}"[:label], "title")]
    told: Line = [(f"{_of(totals, label - 1):<{label}}"[:label], "dim" if len(telling) == totals.servers else "warn")]
    for column, width in servers.columns:
        if column.words:
            continue
        value = column.total(totals)
        sums += [(column.cell(column.fitted(value, width), width), "dim" if value is None else "value"), (" ", "text")]
        count = sum(column.value(row) is not None for row in telling)
        told += [
            (column.cell(of_how_many(count, width) if 0 < count < len(telling) else "", width), "dim"),
            (" ", "text"),
        ]
    return [sums, told]


def _of(totals: Totals, room: int) -> str:
    """Of how many servers totals are: those that do not tell now have no part in them."""
    count = len(totals.parts)
    words = f" of {count:,} of {totals.servers:,}" if count < totals.servers else f" of all {totals.servers:,}"
    if len(words) > room:
        words = f" {figures.brief(count)}/{figures.brief(totals.servers)}"
    return words + " that tell now" if len(words) + 14 <= room else words


def _told(row: Row, inner: int, look: Look) -> Line:
    """Where the server under the cursor is, and why it does not tell, where it does not."""
    link = row.server.link
    parts: list[Line] = [[(clean(row.name), "value")], [(clean(row.server.url), "dim")]]
    if note := _late(row):
        parts.insert(1, [(f"tokens {note}", "dim")])
    if link.detail:
        parts.insert(1, [(clean(link.detail), ROLES.get(link.phase, "bad") if link.phase != "live" else "dim")])
    line: Line = [(" ", "text")]
    for part in parts:
        line += [*part, ("  ", "text")]
    return cut(line, inner, look.glyphs.more)


def _also(servers: _Table, row: Row, inner: int, look: Look) -> list[Line]:
    """What the server under the cursor tells that no column has room for, where lines are left."""
    shown = {column.name for column, _ in servers.columns}
    cells: list[Line] = []
    for column in COLUMNS:
        if column.name in shown:
            continue
        value = column.value(row)
        text = _fit(column, value, _CELL - _NAME - 2, look)
        role = "dim" if value is None or not row.tells else "value"
        cells.append([(f" {column.head:<{_NAME}}", "dim"), (f"{text:>{_CELL - _NAME - 2}} ", role)])
    each = max(1, inner // _CELL)
    lines: list[Line] = [[span for cell in cells[at : at + each] for span in cell] for at in range(0, len(cells), each)]
    return [[(f" {clean(row.name)}"[: inner - 1], "title")], *lines] if lines else []


def _late(row: Row) -> str:
    """When tokens are counted, where that is not as they come: their rate is then of requests that ended."""
    pace = row.measures.pace("generation_tokens") if row.measures is not None else None
    note = words.note(row.server.kind, "generation_tokens")
    return note if pace is not None and not pace.live else ""


def detail(frame: Frame, inner: int, look: Look) -> tuple[str, list[Line]]:
    """All about the server under the cursor."""
    servers = _table(frame.fleet, frame.focus, inner, ROOMY) if frame.fleet is not None else None
    at = _at(servers.rows, frame.focus.fleet) if servers is not None else None
    if servers is None or at is None:
        return "server", [[(" no server is selected", "dim")]]
    row = servers.rows[at]
    server, link = row.server, row.server.link
    about: list[tuple[str, str, str]] = [
        ("address", clean(server.url), "text"),
        ("kind", " ".join(filter(None, (kind(row) or "not known yet", clean(server.version)))), "text"),
        ("state", link.phase, ROLES.get(link.phase, "bad")),
        ("why", clean(link.detail), "text"),
        ("last heard", "never" if link.age is None else f"{figures.seconds(link.age)} ago", "text"),
        ("models", ", ".join(map(clean, row.models)) or figures.NOT_MEASURED, "text"),
        ("tokens", _late(row), "text"),
        ("engines", figures.count(len(server.engines)) if server.engines else figures.NOT_MEASURED, "text"),
    ]
    said = [part for part in about if part[1] or part[0] not in ("why", "tokens")]
    lines: list[Line] = [[(f" {name:<13}", "dim"), (value, role)] for name, value, role in said]
    if not row.tells and row.measures is not None:
        lines.append([(" these figures are of then, and in no total", "warn")])
    lines.append([])
    for column in COLUMNS:
        if not column.words:
            value = column.value(row)
            lines.append([(f" {column.head:<13}", "dim"), (column.text(value), "dim" if value is None else "value")])
    totals = "in the total a quantile is over all requests of those that tell it, by the bounds that all of them have"
    return clean(row.name), [*lines, [], *words.told(totals, inner)]


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    fleet, focus = frame.fleet, frame.focus
    if fleet is None:
        return None
    match key:
        case "up" | "down" | "pageup" | "pagedown" | "home" | "end":
            return _move(_table(fleet, focus, width, height), focus, key)
        case "less_than_sign" | "<":
            return _sort_beside(_table(fleet, focus, width, height), focus, -1)
        case "greater_than_sign" | ">":
            return _sort_beside(_table(fleet, focus, width, height), focus, 1)
        case "I" | "upper_i":
            return focus.but(fleet=replace(focus.fleet, descending=not focus.fleet.descending))
        case "plus" | "+" | "equals_sign":
            return _window(focus, 1)
        case "minus" | "-":
            return _window(focus, -1)
        case "/" | "slash":
            return Ask("filter", "show servers with", focus.fleet.filter)
        case "enter":
            return _open(_table(fleet, focus, width, height), focus)
    return None


def _open(servers: _Table, focus: Focus) -> Reaction:
    at = _at(servers.rows, focus.fleet)
    return Say("select a server first", bad=True) if at is None else Open(servers.rows[at].name)


def _window(focus: Focus, by: int) -> Focus:
    """The next longer or shorter time, of those that plots have."""
    window = focus.ledgers.window
    at = WINDOWS.index(window) if window in WINDOWS else 0
    window = WINDOWS[max(0, min(len(WINDOWS) - 1, at + by))]
    return focus.but(ledgers=replace(focus.ledgers, window=window))


def _move(servers: _Table, focus: Focus, key: str) -> Reaction:
    if not servers.rows:
        return None
    at = servers.shown.moved(key, _at(servers.rows, focus.fleet))
    return focus.but(fleet=replace(focus.fleet, row=servers.rows[at].name, top=servers.shown.top, follow=True))


def _sort_beside(servers: _Table, focus: Focus, by: int) -> Focus:
    """Sort by the next column that is shown; the order in which they were named always can be had."""
    shown = {column.name for column, _ in servers.columns}
    names = [name for name in SORTS if name in shown or name not in BY_NAME]
    return _sort(focus, table.beside(names, sorted_by(focus.fleet), by))


def _sort(focus: Focus, name: str) -> Focus:
    """Figures with the greatest first, words from the first on."""
    falling = name in BY_NAME and not BY_NAME[name].words
    return focus.but(fleet=table.sort(focus.fleet, name, sorted_by(focus.fleet), falling))


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A head sorts, and again inverts; a row is selected, and again opened."""
    if frame.fleet is None:
        return None
    focus = frame.focus
    servers = _table(frame.fleet, focus, width, height)
    if y == 1:
        name = table.column_at(servers.columns, x)
        return focus if name is None else _sort(focus, name)
    if (at := servers.shown.row_at(x, y, width)) is not None:
        row = servers.rows[at]
        if row.name == focus.fleet.row:
            return Open(row.name)
        return focus.but(fleet=replace(focus.fleet, row=row.name, top=servers.shown.top))
    return focus


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    if frame.fleet is None:
        return None
    scrolled = _table(frame.fleet, frame.focus, width, height).shown.scrolled(frame.focus.fleet, up)
    return None if scrolled is None else frame.focus.but(fleet=scrolled)


def answer(frame: Frame, what: str, text: str) -> Reaction:
    if what != "filter":
        return None
    return frame.focus.but(fleet=replace(frame.focus.fleet, filter=text.strip(), top=0))
