"""Every live request in a table that is sorted and filtered by choice; the selected one is the same in all panels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.protocol import RequestState
from tui.commands import Ask, Cancel, Key, Reaction, Say
from tui.focus import Focus, RequestsFocus
from tui.look import Look
from tui.panels import request_detail, stays
from tui.panels.line import Line, box, clean, join, length
from tui.panels.request_columns import BY_NAME, COLUMNS, Column, fitting, ordered
from tui.view import Frame, Status, View

KEYS: tuple[Key, ...] = (
    Key("up down", "select a request"),
    Key("enter", "all about it, and its text"),
    Key("< >", "sort by another column"),
    Key("I", "the other way round"),
    Key("x", "cancel the request"),
    Key("home end", "the first, the last"),
)
WHEEL_ROWS = 3
EMPTY = "no requests: send some, or start a replay in 6"
EMPTY_THEN = "no requests when the engine was last heard of"

detail = request_detail.detail


@dataclass(frozen=True, slots=True)
class _Table:
    """`states` are in the order shown; `drawn` of them from `top` on are."""

    columns: tuple[tuple[Column, int], ...]
    states: list[RequestState]
    top: int
    drawn: int

    @property
    def shown(self) -> list[RequestState]:
        return self.states[self.top : self.top + self.drawn]


def _table(view: View, focus: Focus, width: int, height: int) -> _Table:
    states = ordered(view, focus.requests)
    drawn = max(0, min(len(states), height - 3))
    top = max(0, min(focus.requests.top, len(states) - drawn))
    if focus.requests.follow and focus.request in view.requests and drawn:
        at = next((index for index, state in enumerate(states) if state.request == focus.request), top)
        top = min(max(top, at - drawn + 1), at)
    return _Table(fitting(width - 2), states, top, drawn)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view, focus, glyphs = frame.view, frame.focus, look.glyphs
    front = focus.panel == "requests"
    if view is None:
        return box("requests", [], [], width, height, glyphs, front=front)
    table = _table(view, focus, width, height)
    body = [_heads(table, focus.requests, look)]
    body += _rows(view, table, focus.request, look)
    if not table.states:
        wanted = clean(focus.requests.filter)
        empty = f'no request has "{wanted}": / changes that' if view.requests else _empty(frame.status)
        body.append([(f" {empty}", "dim")])
    legend: Line = [(" mean tok/s: from a request's first token to its last ", "dim")]
    return box(
        _title(view, table, focus.requests, width),
        _states(view, width - 60),
        body,
        width,
        height,
        glyphs,
        bottom=legend if width >= 80 else [],
        front=front,
    )


def _empty(status: Status) -> str:
    """That there are no requests, and what helps where something does."""
    if status.link.phase != "live":
        return EMPTY_THEN
    return "no requests" if status.fixed or status.link.unready else EMPTY


def _title(view: View, table: _Table, focus: RequestsFocus, width: int) -> str:
    """How many of how many, in which order, and of which kind."""
    count, order = len(table.states), "falling" if focus.descending else "rising"
    name = _sorted_by(focus)
    wanted = clean(focus.filter.strip())
    if width < 60:
        return f"requests {table.drawn:,}/{count:,} by {name}" + (f" /{wanted}" if wanted else "")
    order = {"arrived": "newest first" if focus.descending else "oldest first"}.get(name, order)
    kind = f' with "{wanted}", {len(view.requests):,} in all' if wanted else ""
    return f"requests, {table.drawn:,} of {count:,} shown{kind}, by {name}, {order}"


def _sorted_by(focus: RequestsFocus) -> str:
    return focus.sort if focus.sort in BY_NAME else "arrived"


def _states(view: View, room: int) -> Line:
    """How many are in each state."""
    counts = Counter(stays.doing(state) for state in view.requests.values())
    parts: list[Line] = [
        [(f"{counts[doing]:,}", "value"), (f" {doing}", "dim")] for doing in stays.DOINGS if counts[doing]
    ]
    line = join(parts, ("  ", "dim"), 200)
    return line if length(line) <= room else []


def _heads(table: _Table, focus: RequestsFocus, look: Look) -> Line:
    """Names of the columns; a mark beside the one that is sorted by, which way it goes."""
    mark = look.glyphs.down_open if focus.descending else "^"
    line: Line = [(" ", "text")]
    for column, width in table.columns:
        chosen = column.name == _sorted_by(focus)
        text = f"{column.head}{mark if chosen else ''}"
        line.append((_set(column, text, width), "selected" if chosen else "dim"))
        line.append((" ", "text"))
    return line


def _set(column: Column, text: str, width: int) -> str:
    return f"{text[:width]:<{width}}" if column.words else f"{text[:width]:>{width}}"


def _rows(view: View, table: _Table, selected: str | None, look: Look) -> list[Line]:
    """Only what is seen is made into text."""
    shown = table.shown
    values = [column.values(view, shown) for column, _ in table.columns]
    out: list[Line] = []
    for index, state in enumerate(shown):
        chosen = state.request == selected
        line: Line = [(look.glyphs.right if chosen else " ", "selected")]
        for (column, width), column_values in zip(table.columns, values, strict=True):
            value = column_values[index]
            text = stays.short_name(str(value), width) if column.name == "id" else column.text(value)
            role = "selected" if chosen else _role(view, column, state, value is None)
            line.append((_set(column, text, width), role))
            line.append((" ", "text"))
        out.append(line)
    return out


def _role(view: View, column: Column, state: RequestState, unmeasured: bool) -> str:
    if column.name == "id":
        return "waiting" if state.status == "waiting" else f"hue{view.hue(state.request)}"
    if column.name == "state":
        roles = {"prefill": "prefill", "decode": "text", "held": "held", "waiting": "queue"}
        return roles.get(stays.doing(state), "bad")
    return "dim" if unmeasured else "text"


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    view, focus = frame.view, frame.focus
    if view is None:
        return None
    match key:
        case "up" | "down" | "pageup" | "pagedown" | "home" | "end":
            return _move(_table(view, focus, width, height), focus, key)
        case "less_than_sign" | "<":
            return _sort_beside(focus, width, -1)
        case "greater_than_sign" | ">":
            return _sort_beside(focus, width, 1)
        case "I" | "upper_i":
            return focus.but(requests=replace(focus.requests, descending=not focus.requests.descending))
        case "/" | "slash":
            return Ask("filter", "show requests with", focus.requests.filter)
        case "x" | "delete":
            return _cancel(view, focus.request)
        case "enter":
            return focus.but(inspecting=True) if focus.request is not None else Say("select a request first", bad=True)
    return None


def _move(table: _Table, focus: Focus, key: str) -> Reaction:
    names = [state.request for state in table.states]
    if not names:
        return None
    page = max(1, table.drawn)
    by = {"up": -1, "down": 1, "pageup": -page, "pagedown": page}.get(key)
    if by is None:
        at = 0 if key == "home" else len(names) - 1
    elif focus.request in names:
        at = max(0, min(len(names) - 1, names.index(focus.request) + by))
    else:  # the one selected has left, or is not shown: begin with what is seen
        at = table.top if by > 0 else table.top + max(0, table.drawn - 1)
    requests = replace(focus.requests, top=table.top, follow=True)
    return focus.but(request=names[at], requests=requests)


def _sort_beside(focus: Focus, width: int, by: int) -> Focus:
    """Sort by the next column that is shown; the order of arrival always can be had."""
    shown = {column.name for column, _ in fitting(width - 2)} | {"arrived"}
    names = [column.name for column in COLUMNS if column.name in shown]
    current = _sorted_by(focus.requests)
    at = names.index(current) if current in names else 0
    return _sort(focus, names[(at + by) % len(names)])


def _sort(focus: Focus, name: str) -> Focus:
    """Figures with the greatest first, words and arrivals from the first on; the same column again: inverted."""
    same = _sorted_by(focus.requests) == name
    falling = not focus.requests.descending if same else not (BY_NAME[name].words or name == "arrived")
    return focus.but(requests=replace(focus.requests, sort=name, descending=falling, top=0))


def _cancel(view: View, request: str | None) -> Reaction:
    state = None if request is None else view.requests.get(request)
    if state is None:
        return Say("select a request first" if request is None else "that request has ended", bad=True)
    if state.status == "held":
        return Say("it has ended: it keeps its row until its batch does", bad=True)
    return Cancel(state.request)


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A head sorts, and again inverts; a row is selected."""
    if frame.view is None:
        return None
    focus = frame.focus.but(panel="requests")
    table = _table(frame.view, focus, width, height)
    if y == 1:
        name = _column_at(table.columns, x)
        return focus if name is None else _sort(focus, name)
    if 0 <= y - 2 < table.drawn and 0 < x < width - 1:
        focus = focus.but(request=table.shown[y - 2].request)
    return focus.but(requests=replace(focus.requests, top=table.top))


def _column_at(columns: Sequence[tuple[Column, int]], x: int) -> str | None:
    start = 2
    for column, width in columns:
        if start <= x < start + width:
            return column.name
        start += width + 1
    return None


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    if frame.view is None:
        return None
    table = _table(frame.view, frame.focus, width, height)
    top = max(0, min(len(table.states) - table.drawn, table.top + (-WHEEL_ROWS if up else WHEEL_ROWS)))
    if top == table.top:
        return None
    return frame.focus.but(requests=replace(frame.focus.requests, top=top, follow=False))


def answer(frame: Frame, what: str, text: str) -> Reaction:
    if what != "filter":
        return None
    return frame.focus.but(requests=replace(frame.focus.requests, filter=text.strip(), top=0))
