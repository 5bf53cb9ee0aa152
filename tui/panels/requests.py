"""Every live request in a table that is sorted and filtered by choice; the selected one is the same in all panels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from engine.protocol import RequestState
from tui.commands import Ask, Cancel, Key, Reaction, Say
from tui.focus import Focus, RequestsFocus
from tui.look import Look
from tui.panels import request_detail, stays, table
from tui.panels.line import Line, box, clean, join, length
from tui.panels.request_columns import BY_NAME, COLUMNS, Column, fitting, ordered
from tui.panels.table import Shown
from tui.view import Frame, Status, View

KEYS: tuple[Key, ...] = (
    Key("up down", "select a request"),
    Key("enter", "all about it, and its text"),
    Key("< >", "sort by another column"),
    Key("I", "the other way round"),
    Key("x", "cancel the request"),
    Key("home end", "the first, the last"),
)
EMPTY = "no requests: send some, or start a replay in 6"
EMPTY_THEN = "no requests when the engine was last heard of"

detail = request_detail.detail


@dataclass(frozen=True, slots=True)
class _Table:
    """`states` are in the order shown."""

    columns: tuple[tuple[Column, int], ...]
    states: list[RequestState]
    shown: Shown


def _table(view: View, focus: Focus, width: int, height: int) -> _Table:
    states = ordered(view, focus.requests)
    at = None
    if focus.requests.follow and focus.request in view.requests:
        at = next((index for index, state in enumerate(states) if state.request == focus.request), None)
    return _Table(fitting(width - 2), states, Shown.of(focus.requests, len(states), height - 3, at))


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view, focus, glyphs = frame.view, frame.focus, look.glyphs
    front = focus.panel == "requests"
    if view is None:
        return box("requests", [], [], width, height, glyphs, front=front)
    requests = _table(view, focus, width, height)
    body = [table.heads(requests.columns, _sorted_by(focus.requests), focus.requests.descending, look)]
    body += _rows(view, requests, focus.request, look)
    if not requests.states:
        wanted = clean(focus.requests.filter)
        empty = f'no request has "{wanted}": / changes that' if view.requests else _empty(frame.status)
        body.append([(f" {empty}", "dim")])
    legend: Line = [(" mean tok/s: from a request's first token to its last ", "dim")]
    return box(
        _title(view, requests, focus.requests, width),
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


def _title(view: View, requests: _Table, focus: RequestsFocus, width: int) -> str:
    """How many of how many, in which order, and of which kind."""
    count, order = len(requests.states), "falling" if focus.descending else "rising"
    name = _sorted_by(focus)
    wanted = clean(focus.filter.strip())
    if width < 60:
        return f"requests {requests.shown.drawn:,}/{count:,} by {name}" + (f" /{wanted}" if wanted else "")
    order = {"arrived": "newest first" if focus.descending else "oldest first"}.get(name, order)
    kind = f' with "{wanted}", {len(view.requests):,} in all' if wanted else ""
    return f"requests, {requests.shown.drawn:,} of {count:,} shown{kind}, by {name}, {order}"


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


def _rows(view: View, requests: _Table, selected: str | None, look: Look) -> list[Line]:
    """Only what is seen is made into text."""
    shown = requests.states[requests.shown.rows]
    values = [column.values(view, shown) for column, _ in requests.columns]
    out: list[Line] = []
    for index, state in enumerate(shown):
        chosen = state.request == selected
        line: Line = [(look.glyphs.right if chosen else " ", "selected")]
        for (column, width), column_values in zip(requests.columns, values, strict=True):
            value = column_values[index]
            text = stays.short_name(str(value), width) if column.name == "id" else column.text(value)
            role = "selected" if chosen else _role(view, column, state, value is None)
            line.append((column.cell(text, width), role))
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


def _move(requests: _Table, focus: Focus, key: str) -> Reaction:
    names = [state.request for state in requests.states]
    if not names:
        return None
    at = requests.shown.moved(key, names.index(focus.request) if focus.request in names else None)
    return focus.but(request=names[at], requests=replace(focus.requests, top=requests.shown.top, follow=True))


def _sort_beside(focus: Focus, width: int, by: int) -> Focus:
    """Sort by the next column that is shown; the order of arrival always can be had."""
    shown = {column.name for column, _ in fitting(width - 2)} | {"arrived"}
    names = [column.name for column in COLUMNS if column.name in shown]
    return _sort(focus, table.beside(names, _sorted_by(focus.requests), by))


def _sort(focus: Focus, name: str) -> Focus:
    """Figures with the greatest first, words and arrivals from the first on."""
    falling = not (BY_NAME[name].words or name == "arrived")
    return focus.but(requests=table.sort(focus.requests, name, _sorted_by(focus.requests), falling))


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
    requests = _table(frame.view, focus, width, height)
    if y == 1:
        name = table.column_at(requests.columns, x)
        return focus if name is None else _sort(focus, name)
    if (at := requests.shown.row_at(x, y, width)) is not None:
        focus = focus.but(request=requests.states[at].request)
    return focus.but(requests=replace(focus.requests, top=requests.shown.top))


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    if frame.view is None:
        return None
    scrolled = _table(frame.view, frame.focus, width, height).shown.scrolled(frame.focus.requests, up)
    return None if scrolled is None else frame.focus.but(requests=scrolled)


def answer(frame: Frame, what: str, text: str) -> Reaction:
    if what != "filter":
        return None
    return frame.focus.but(requests=replace(frame.focus.requests, filter=text.strip(), top=0))
