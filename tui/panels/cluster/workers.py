"""Every worker of a cluster, pools side by side, each a table with its totals; a worker that is dead has its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.cluster.protocol import Role, WorkerState
from tui import figures
from tui.cluster.view import SIZES, ClusterView, tells
from tui.commands import Key, Open, Reaction, Say
from tui.focus import ClusterFocus, Focus
from tui.look import Look
from tui.panels import table
from tui.panels.cluster import steering, worker_detail
from tui.panels.cluster.columns import (
    BAR,
    BY_NAME,
    NAME,
    ROLES,
    SORTS,
    Column,
    bar,
    fitting,
    glyph,
    ordered,
    sorted_by,
)
from tui.panels.line import Line, box, clean, cut, fit, spread
from tui.panels.table import Shown
from tui.view import Frame

KEYS: tuple[Key, ...] = (
    Key("enter", "this worker alone"),
    Key("up down", "select a worker"),
    Key("left right", "another pool"),
    Key("< >", "sort by another column"),
    Key("I", "the other way round"),
    Key("home end", "the first, the last"),
)
LEAST_POOL = 34  # cells of a pool, under which fewer are side by side
ROOMY = 9  # lines from which on there is one for the worker under the cursor
HEADS = 2  # lines above a pool's rows
answer = steering.answer
detail = worker_detail.detail


@dataclass(frozen=True, slots=True)
class _Pool:
    """`rows` are in the order shown; `shown`: which of them. `x`: where it begins in the box, `width` cells wide."""

    role: Role
    all: tuple[WorkerState, ...]
    rows: list[WorkerState]
    shown: Shown
    columns: tuple[tuple[Column, int], ...]
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class _Table:
    """`pools` are those side by side, of `roles`; `at` is where the cursor is in its own pool, `front`."""

    pools: tuple[_Pool, ...]
    roles: tuple[Role, ...]
    front: _Pool | None
    at: int | None
    roomy: bool


def _table(view: ClusterView, focus: ClusterFocus, width: int, height: int) -> _Table:
    inner, roomy, roles = width - 2, height >= ROOMY, tuple(view.pools)
    room = height - 2 - HEADS - 1 - (1 if roomy else 0)
    if not roles:
        return _Table((), (), None, None, roomy)
    chosen = steering.pool(view, focus)
    beside = min(len(roles), max(1, (inner + 1) // (LEAST_POOL + 1)))
    begin = max(0, min(roles.index(chosen) - beside // 2, len(roles) - beside))
    sides = roles[begin : begin + beside]
    rows = {role: ordered(view, view.pools[role], focus) for role in {*sides, chosen}}
    at = _at(rows[chosen], focus)
    top = Shown.of(focus, len(rows[chosen]), room, at).top
    together = replace(focus, top=top, follow=False)
    longest = max((len(worker.name) for role in sides for worker in view.pools[role]), default=0)
    pools, x = [], 0
    for number, role in enumerate(sides):
        cells = (inner - (beside - 1)) // beside if number < beside - 1 else inner - x
        shown = Shown.of(together, len(rows[role]), room, None)
        pools.append(_Pool(role, view.pools[role], rows[role], shown, fitting(cells, longest), x, cells))
        x += cells + 1
    front = next((pool for pool in pools if pool.role == chosen), None)
    return _Table(tuple(pools), roles, front, at, roomy)


def _at(rows: Sequence[WorkerState], focus: ClusterFocus) -> int | None:
    """Where the cursor is among these; it begins at the first."""
    if focus.worker is None:
        return 0 if rows else None
    return next((index for index, worker in enumerate(rows) if worker.name == focus.worker), None)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view, focus, front = frame.cluster, frame.focus.cluster, frame.focus.panel == "workers"
    if view is None:
        return box("workers", [], [[(" nothing was heard of a cluster yet", "dim")]], width, height, look.glyphs)
    workers = _table(view, focus, width, height)
    inner, lines = width - 2, height - 2 - (1 if workers.roomy else 0)
    columns = [_lines(view, workers, pool, focus, lines, look) for pool in workers.pools]
    body: list[Line] = []
    for y in range(lines):
        line: Line = []
        for number, rows in enumerate(columns):
            line += [*([(look.glyphs.vertical, "border")] if number else []), *rows[y]]
        body.append(line)
    if not workers.pools:
        body[:1] = [[(" this cluster has no workers, and none are wanted: s sets a pool's size", "dim")]]
    if workers.roomy and (told := _told(view, workers, focus)) is not None:
        body.append(worker_detail.line(view, told, inner, look))
    hidden = len(workers.roles) - len(workers.pools)
    right: Line = [(f"{figures.plural(hidden, 'pool')} more: left right", "dim")] if hidden else []
    return box(_title(view, focus, width), right, body, width, height, look.glyphs, front=front)


def _told(view: ClusterView, workers: _Table, focus: ClusterFocus) -> WorkerState | None:
    """The worker that has the last line: that under the cursor, or one that is dead before any was chosen."""
    dead = next((worker for worker in view.state.workers if worker.phase == "dead"), None)
    if focus.worker is None and dead is not None:
        return dead
    return None if workers.front is None or workers.at is None else workers.front.rows[workers.at]


def _title(view: ClusterView, focus: ClusterFocus, width: int) -> str:
    """How many, in which order, and which of them."""
    count, ready = len(view.state.workers), sum(worker.phase == "ready" for worker in view.state.workers)
    wanted = clean(focus.filter.strip())
    order = f"by {sorted_by(focus)}" + (", falling" if focus.descending else "")
    return f"workers, {ready:,} of {count:,} ready" + (f' with "{wanted}"' if wanted else "") + f", {order}"


def _lines(view: ClusterView, workers: _Table, pool: _Pool, focus: ClusterFocus, lines: int, look: Look) -> list[Line]:
    """One pool: its name, heads, rows, and the total on the last line."""
    here = workers.front is pool
    out = [_name(view, pool, here and len(workers.roles) > 1, look), _heads(pool, focus, look)]
    for index, worker in enumerate(pool.rows[pool.shown.rows], pool.shown.top):
        out.append(_row(view, pool, worker, here and index == workers.at, look))
    if not pool.rows:
        wanted = getattr(view.control, SIZES[pool.role])
        told = (
            f' none with "{clean(focus.filter)}"' if pool.all else " none yet" if wanted else " none, and none wanted"
        )
        out.append([(told, "dim")])
    out += [[] for _ in range(lines - 1 - len(out))]
    return [fit(line, pool.width) for line in [*out[: lines - 1], _total(view, pool, look)]]


def _name(view: ClusterView, pool: _Pool, here: bool, look: Look) -> Line:
    """The pool's role, how many are ready and how many there should be, and which are seen."""
    ready = sum(worker.phase == "ready" for worker in pool.all)
    wanted = getattr(view.control, SIZES[pool.role])
    whole = ready == len(pool.all) == wanted
    words = f"{ready:,} of {len(pool.all):,} ready" + (f", {wanted:,} wanted" if wanted != len(pool.all) else "")
    left: Line = [
        (f"{look.glyphs.right if here else ' '}", "lit"),
        (pool.role.upper(), "selected" if here else "title"),
        ("  ", "text"),
        (words, "dim" if whole else "warn"),
    ]
    shown = pool.shown
    if shown.drawn >= shown.count:
        return left
    return spread(left, [(f"{shown.top + 1:,}-{shown.top + shown.drawn:,} ", "dim")], pool.width)


def _heads(pool: _Pool, focus: ClusterFocus, look: Look) -> Line:
    line = table.heads(pool.columns, sorted_by(focus), focus.descending, look)
    return [("  ", "text"), *line]


def _row(view: ClusterView, pool: _Pool, worker: WorkerState, chosen: bool, look: Look) -> Line:
    role = ROLES[worker.phase]
    line: Line = [(look.glyphs.right if chosen else " ", "selected"), (glyph(worker.phase, look.glyphs), role)]
    line.append((" ", "text"))
    _, cells = pool.columns[0]
    line += [(_name_in(worker, cells, look), "selected" if chosen else "value"), (" ", "text")]
    if worker.phase in ("dead", "starting"):  # it tells no counts: what there is to tell is why
        words = f"{worker.phase}: {clean(worker.reason)}" if worker.reason else worker.phase
        return cut([*line, (words, role)], pool.width, look.glyphs.more)
    for column, cells in pool.columns[1:]:
        if column is BAR:
            line += bar(worker, cells, look.glyphs)
        else:
            value = column.value(view, worker)
            style = "dim" if value is None else _role(column, value, worker)
            line.append(
                (column.cell(column.fitted(value, cells), cells), "selected" if chosen and value is not None else style)
            )
        line.append((" ", "text"))
    return line


def _name_in(worker: WorkerState, cells: int, look: Look) -> str:
    """Names differ at their ends: what is left out is in the middle."""
    name = clean(worker.name)
    if len(name) <= cells:
        return f"{name:<{cells}}"
    more = look.glyphs.more
    tail = (cells - len(more)) // 2 + 1
    return name[: cells - len(more) - tail] + more + name[len(name) - tail :]


def _role(column: Column, value: object, worker: WorkerState) -> str:
    if column.name == "state":
        return ROLES[worker.phase]
    return "warn" if column.name in ("restarts", "waiting") and value else "text"


def _total(view: ClusterView, pool: _Pool, look: Look) -> Line:
    """Of those that tell now."""
    telling = [worker for worker in pool.rows if tells(worker)]
    label = sum(cells + 1 for column, cells in pool.columns if column in (NAME, BAR) or column.name == "state") + 2
    words = f"of {len(telling):,}" if len(telling) == len(pool.rows) else f"of {len(telling):,} of {len(pool.rows):,}"
    line: Line = [(f"   {words:<{label - 2}}"[: label + 1], "dim")]
    for column, cells in pool.columns:
        if column in (NAME, BAR) or column.name == "state":
            continue
        value = column.total(view, telling)
        line += [
            (
                column.cell(column.fitted(value, cells) if value != "" else "", cells),
                "dim" if value is None else "value",
            )
        ]
        line.append((" ", "text"))
    return line


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    view, focus = frame.cluster, frame.focus
    if view is None:
        return None
    match key:
        case "up" | "down" | "pageup" | "pagedown" | "home" | "end":
            return _move(_table(view, focus.cluster, width, height), focus, key)
        case "left" | "right":
            return _aside(view, focus, width, height, 1 if key == "right" else -1)
        case "less_than_sign" | "<":
            return _sort_beside(_table(view, focus.cluster, width, height), focus, -1)
        case "greater_than_sign" | ">":
            return _sort_beside(_table(view, focus.cluster, width, height), focus, 1)
        case "I" | "upper_i":
            return focus.but(cluster=replace(focus.cluster, descending=not focus.cluster.descending))
        case "enter":
            worker = worker_detail.selected(view, focus.cluster)
            return Say("select a worker first", bad=True) if worker is None else Open(worker.name)
    return None


def _move(workers: _Table, focus: Focus, key: str) -> Reaction:
    pool = workers.front
    if pool is None or not pool.rows:
        return None
    at = pool.shown.moved(key, workers.at)
    changed = replace(focus.cluster, pool=pool.role, worker=pool.rows[at].name, top=pool.shown.top, follow=True)
    return focus.but(cluster=changed)


def _aside(view: ClusterView, focus: Focus, width: int, height: int, by: int) -> Reaction:
    """The pool beside, at the same row."""
    workers = _table(view, focus.cluster, width, height)
    if workers.front is None:
        return None
    at = workers.roles.index(workers.front.role) + by
    if not 0 <= at < len(workers.roles):
        return None
    role = workers.roles[at]
    rows = ordered(view, view.pools[role], focus.cluster)
    name = rows[min(workers.at or 0, len(rows) - 1)].name if rows else None
    return focus.but(cluster=replace(focus.cluster, pool=role, worker=name, follow=True))


def _sort_beside(workers: _Table, focus: Focus, by: int) -> Focus:
    """Sort by the next column that is shown."""
    shown = {column.name for pool in workers.pools for column, _ in pool.columns}
    names = [name for name in SORTS if name in shown]
    return _sort(focus, table.beside(names, sorted_by(focus.cluster), by))


def _sort(focus: Focus, name: str) -> Focus:
    """Figures with the greatest first, words from the first on."""
    return focus.but(cluster=table.sort(focus.cluster, name, sorted_by(focus.cluster), not BY_NAME[name].words))


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A head sorts, and again inverts; a row is selected, and again opened."""
    if frame.cluster is None:
        return None
    focus = frame.focus
    workers = _table(frame.cluster, focus.cluster, width, height)
    pool = next((pool for pool in workers.pools if pool.x <= x - 1 < pool.x + pool.width), None)
    if pool is None:
        return focus
    if y == HEADS:
        name = table.column_at(pool.columns, x - pool.x - 2)
        return focus if name is None or name not in BY_NAME else _sort(focus, name)
    row = pool.shown.top + y - HEADS - 1
    if 0 <= y - HEADS - 1 < pool.shown.drawn:
        name = pool.rows[row].name
        if name == focus.cluster.worker:
            return Open(name)
        changed = replace(focus.cluster, pool=pool.role, worker=name, top=pool.shown.top)
        return focus.but(cluster=changed)
    first = pool.rows[0].name if pool.rows else None
    return focus.but(cluster=replace(focus.cluster, pool=pool.role, worker=first)) if y == 1 else focus


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    """All pools go together, as far as the longest does."""
    if frame.cluster is None:
        return None
    workers = _table(frame.cluster, frame.focus.cluster, width, height)
    longest = max((pool.shown for pool in workers.pools), key=lambda shown: shown.count, default=None)
    scrolled = longest.scrolled(frame.focus.cluster, up) if longest is not None else None
    return None if scrolled is None else frame.focus.but(cluster=scrolled)
