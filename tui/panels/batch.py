"""The batch of the last steps: a lane for each place in the batch, a column for each step, the newest at the right.

A request keeps its lane while it runs, and the next one takes it over: a lane full of work is continuous batching,
a lane that waits for its neighbours is static batching. Under the lanes are those that wait.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from engine.protocol import RowKind
from tui import figures
from tui.commands import Key, Reaction
from tui.focus import BatchFocus
from tui.history import Step, step_seconds
from tui.look import Glyphs, Look
from tui.panels import stays, step_detail, timeline
from tui.panels.batch_plan import DETAILED, Plan, Row, plan
from tui.panels.line import Line, box, fit, join, length
from tui.panels.waits import reason
from tui.view import Frame, View

KEYS: tuple[Key, ...] = (
    Key("left right", "the step under the cursor; end: the newest"),
    Key("up down", "select a request"),
    Key("enter", "what that step did"),
    Key("+ -", "fewer or more steps a column"),
    Key("home end", "the oldest step kept, the newest"),
    Key("click", "select a step and a request; again: let the step go"),
)
MAX_ZOOM = 6
SUM_STEPS = 60  # that the line in words is about
WHEEL_ROWS = 3

detail = step_detail.detail


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view = frame.view
    front = frame.focus.panel == "batch"
    if view is None:
        return box("batch", [], [], width, height, look.glyphs, front=front)
    inner, planned = width - 2, plan(frame, view, width, height)
    last = view.steps[-1] if view.steps else None
    told = planned.picked or last
    body = [_above(view, name, planned) for name in planned.above]
    body += _lanes(frame, view, planned, look)
    body += [[] for _ in range(height - 2 - len(body) - planned.below_rows)]
    body += [line for name in planned.below for line in _below(frame, view, name, told, planned, inner, look)]
    steps = sum(len(column.steps) for column in planned.shown)
    title = f"batch, last {figures.plural(steps, 'step')}" if inner >= 50 else f"batch, {figures.plural(steps, 'step')}"
    if frame.focus.batch.zoom:
        title += f", {1 << frame.focus.batch.zoom} a column" if inner < 70 else f", {_a_column(frame)}"
    legend = _legend(planned, inner, look.glyphs) if planned.alone or inner < 60 else []
    return box(
        title,
        _now(view, last, inner >= 50, look.glyphs),
        body,
        width,
        height,
        look.glyphs,
        bottom=_split(told, inner, planned.picked is not None) if inner >= 60 else legend,
        bottom_right=legend[1:-1] if planned.alone else [],
        front=front,
    )


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    view, focus = frame.view, frame.focus
    if view is None:
        return None
    batch, planned = focus.batch, plan(frame, view, width, height)
    match key:
        case "left" | "right":
            return focus.but(batch=replace(batch, step=_beside(view, batch, -1 if key == "left" else 1), hovered=False))
        case "home" | "end":
            oldest = view.steps[0].seq if view.steps and key == "home" else None
            return focus.but(batch=replace(batch, step=oldest, hovered=False))
        case "up" | "down" | "pageup" | "pagedown":
            by = max(1, planned.drawn) if key.startswith("page") else 1
            request = _next_request(planned, focus.request, -by if key.endswith("up") else by)
            return None if request is None else focus.but(request=request, batch=replace(batch, follow=True))
        case "plus" | "minus":
            zoom = max(0, min(MAX_ZOOM, batch.zoom + (-1 if key == "plus" else 1)))
            return None if zoom == batch.zoom else focus.but(batch=replace(batch, zoom=zoom))
        case "enter":
            return focus.but(inspecting=True)
    return None


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A cell selects its step and its request; the step that is selected already is let go."""
    if frame.view is None:
        return None
    planned = plan(frame, frame.view, width, height)
    column, row = planned.column(x), planned.row(y)
    focus = frame.focus.but(panel="batch")
    if column is not None and 0 < y < height - 1:
        step: int | None = planned.shown[column].steps[-1].seq
        if column == planned.cursor and not focus.batch.hovered:
            step = None
        focus = focus.but(batch=replace(focus.batch, step=step, hovered=False))
    if row is not None and row.request is not None:
        focus = focus.but(request=row.request)
    return focus


def hover(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """The step under the mouse, unless one is selected; anywhere else in the panel, or outside of it, there is none."""
    batch = frame.focus.batch
    if frame.view is None or (batch.step is not None and not batch.hovered):
        return None
    planned = plan(frame, frame.view, width, height)
    column = planned.column(x) if 0 < y < height - 1 else None
    step = None if column is None else planned.shown[column].steps[-1].seq
    if step == batch.step:
        return None
    return frame.focus.but(batch=replace(batch, step=step, hovered=step is not None))


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    if frame.view is None:
        return None
    planned = plan(frame, frame.view, width, height)
    top = max(0, min(len(planned.rows) - planned.drawn, planned.top + (-WHEEL_ROWS if up else WHEEL_ROWS)))
    return None if top == planned.top else frame.focus.but(batch=replace(frame.focus.batch, top=top, follow=False))


def _beside(view: View, batch: BatchFocus, by: int) -> int | None:
    """The step one column further; beyond the newest there is none: the cursor follows what comes."""
    columns = [column for column in timeline.columns(view.steps, batch.zoom) if column.steps]
    if not columns:
        return None
    if batch.step is None:
        return columns[-1].steps[-1].seq if by < 0 else None
    under = max((i for i, column in enumerate(columns) if column.steps[0].seq <= batch.step), default=0)
    return columns[max(0, under + by)].steps[-1].seq if under + by < len(columns) else None


def _next_request(planned: Plan, selected: str | None, by: int) -> str | None:
    """The request `by` rows further down; without one selected, the first or the last that is drawn."""
    named = [row.request for row in planned.rows if row.request is not None]
    if not named:
        return None
    if selected in named:
        return named[max(0, min(len(named) - 1, named.index(selected) + by))]
    drawn = [row.request for row in planned.rows[planned.top : planned.top + planned.drawn] if row.request is not None]
    return (drawn or named)[0 if by > 0 else -1]


def _a_column(frame: Frame) -> str:
    return f"{1 << frame.focus.batch.zoom} steps a column"


def _above(view: View, name: str, planned: Plan) -> Line:
    if name == "heads":
        return [(f"  {'request':<10} {'doing':<9} {'context':>7} {'gener.':>6} {'tok/s':>6}", "dim")]
    return _in_words(view)


def _in_words(view: View) -> Line:
    """How full the batch is, and the budget, and how much of it is held: what tells static from continuous."""
    if not view.steps:
        return [(" no step seen yet", "dim")]
    steps = view.steps[-SUM_STEPS:]
    kinds = [timeline.facts(step).kinds for step in steps]
    now, rows, held = kinds[-1], sum(kind.total() for kind in kinds), sum(kind["held"] for kind in kinds)
    budget = figures.ratio(sum(step.tokens for step in steps), sum(step.budget for step in steps))
    line: Line = [
        (f" {now.total():,} of {view.control.max_num_seqs:,}", "value"),
        (f" rows full, {now['prefill']:,} prefill; budget ", "text"),
        (figures.percent(budget), "value"),
        (f" over the last {figures.plural(len(steps), 'step')}; held rows ", "text"),
        (f"{now['held']:,}", "held" if now["held"] else "value"),
    ]
    if held:
        line.append((f", {figures.percent(held / rows)} of all rows in those steps", "text"))
    return line


def _lanes(frame: Frame, view: View, planned: Plan, look: Look) -> list[Line]:
    rows = planned.rows[planned.top : planned.top + planned.drawn]
    lanes = sum(row.lane is not None for row in rows)
    marked = timeline.marks(planned.shown, planned.top, lanes)
    states = [view.requests[row.request] for row in rows[lanes:] if row.request is not None]
    since = stays.waiting_since(view, states) if states else {}
    if states:
        waits = [timeline.waits(planned.shown, since.get(state.request)) for state in states]
        marked = np.concatenate((marked, np.array(waits, np.int16).reshape(len(states), -1)))
    if planned.cursor is not None:
        marked = marked.copy()
        marked[:, planned.cursor] += timeline.UNDER_CURSOR
    blank = (" " * planned.blank, "text")
    painted = timeline.paint(marked, look.glyphs) if planned.shown else [[] for _ in rows]
    out = [
        [*_name(frame, view, row, since, planned.label, look.glyphs), blank, *line]
        for row, line in zip(rows, painted, strict=True)
    ]
    if planned.rest:
        out.append([(_rest(planned), "dim")])
    return out


def _name(
    frame: Frame, view: View, row: Row, since: dict[str, float], label: int, glyphs: Glyphs
) -> tuple[tuple[str, str], ...]:
    """Who has a row: as much as `label` cells can tell."""
    if row.request is None:
        return ((" " * label, "text"),)
    selected = row.request == frame.focus.request
    mark = glyphs.right if selected else " "
    role = "selected" if selected else f"hue{view.hue(row.request)}" if row.lane is not None else "waiting"
    state = view.requests.get(row.request)
    if label < 18 or state is None:
        return ((f"{mark}{stays.short_name(row.request, label - 2)}".ljust(label), role),)
    began = since.get(row.request)
    waited = figures.seconds(None if began is None else view.now - began)
    if label < DETAILED:
        figure = f"{state.computed_tokens:>6,} " if row.lane is not None else f"{waited:>7}"
        return ((f"{mark}{stays.short_name(row.request, 8):<8} {figure} "[:label].ljust(label), role),)
    head = f"{mark}{stays.short_name(row.request, 10):<10} {stays.doing(state):<9}"
    if row.lane is None:
        return ((f"{head} {f'for {waited}':>14}".ljust(label), role),)
    speed = stays.rate(stays.speed(view, state))
    told = f"{head} {state.computed_tokens:>7,} {stays.generated(state):>6,} {speed:>6}"
    return ((told.ljust(label), role),)


def _rest(planned: Plan) -> str:
    """What is not drawn."""
    hidden = [*planned.rows[: planned.top], *planned.rows[planned.top + planned.drawn :]]
    running = sum(row.lane is not None and row.request is not None for row in hidden)
    waiting = sum(row.lane is None for row in hidden)
    words: tuple[str, ...]
    if planned.top:
        first, last = planned.top + 1, planned.top + planned.drawn
        text = f" rows {first:,} to {last:,} of {len(planned.rows):,}"
        words = (f"{text}, {waiting:,} more wait" if waiting else text, text)
    elif not running:
        words = (f" and {waiting:,} more wait" if waiting else "",)
    else:
        wait = f", {waiting:,} wait" if waiting else ""
        more = f" and {figures.plural(running, 'more request')}"
        words = (f"{more} in the batch{wait}", f"{more}{wait}", f" and {running:,} more{wait}")
    return next((text for text in words if len(text) <= planned.label + planned.columns), words[-1])


def _below(frame: Frame, view: View, name: str, told: Step | None, planned: Plan, inner: int, look: Look) -> list[Line]:
    match name:
        case "parts":
            return [_parts(told, inner)]
        case "next":
            return [_next(view, inner)]
        case "cursor":
            return [_cursor(frame, view, planned, look.glyphs)]
        case "time":
            return _time(planned, look)
    return _budget(planned, look)


def _time(planned: Plan, look: Look) -> list[Line]:
    """How long a step of each column took, as a share of the longest."""
    seconds = [
        sum(step_seconds(step.durations) for step in column.steps) / max(1, len(column.steps))
        for column in planned.shown
    ]
    most = max(seconds, default=0.0)
    long = planned.label >= 22
    label = f" time, at most {figures.seconds(most)}" if long else f" {figures.seconds(most)} max"
    shares = [second / most if most else 0.0 for second in seconds]
    return _bars(planned, [label], shares, look, "latency")


def _budget(planned: Plan, look: Look) -> list[Line]:
    """Tokens of each column as a share of the budget."""
    shares = [column.tokens / max(1, column.budget) for column in planned.shown]
    labels = [" tokens" if planned.label > 8 else " tok"]
    if planned.budget_rows > 1:
        labels = [" of the budget", *[""] * (planned.budget_rows - 2), *labels]
    return _bars(planned, labels, shares, look, "prefill-speed")


def _bars(planned: Plan, labels: list[str], shares: list[float], look: Look, role: str) -> list[Line]:
    """A row of bars for each label."""
    bars = timeline.bars(planned.shown, shares, len(labels), look.glyphs, role)
    blank = (" " * planned.blank, "text")
    return [[*fit([(label, "dim")], planned.label), blank, *line] for label, line in zip(labels, bars, strict=True)]


def _parts(last: Step | None, inner: int) -> Line:
    """Where the forward of a step went, in the order of computation; the smallest parts give way."""
    if last is None or last.parts is None or not last.durations.forward:
        return []
    spent: dict[str, float] = msgspec.structs.asdict(last.parts)
    head: Line = [(" forward:" if inner >= 90 else " fwd:", "dim")]
    shown: dict[str, Line] = {
        name: [(f" {name} ", "dim"), (f"{100 * seconds / last.durations.forward:.0f}", "text")]
        for name, seconds in spent.items()
    }
    for name in sorted(spent, key=spent.__getitem__):
        line = [*head, *(span for part in shown.values() for span in part), (" %", "dim")]
        if length(line) <= inner:
            break
        del shown[name]
    return line


def _next(view: View, inner: int) -> Line:
    """Why the next request waits, while one does."""
    if view.queue.head is None:
        return []
    label = " next waits: " if inner >= 40 else " waits: "
    return [(label, "dim"), (reason(view.queue.head, view.control, inner - len(label)), "queue")]


def _cursor(frame: Frame, view: View, planned: Plan, glyphs: Glyphs) -> Line:
    """A mark under the cursor's column, and that step in short on the side where there is room."""
    at, step = planned.cursor, planned.picked
    if at is None or step is None:
        return [(f" step {frame.focus.batch.step:,} is not kept"[: planned.label + planned.columns], "dim")]
    at += planned.blank
    kinds = timeline.facts(step).kinds
    words = [
        f"{figures.seconds(max(0.0, view.now - step.time))} ago",
        *(f"{kinds[kind]:,} {kind}" for kind in ("prefill", "decode", "fork", "held") if kinds[kind]),
        f"{step.tokens:,} of {step.budget:,} tokens",
        figures.seconds(step_seconds(step.durations)),
    ]
    left, right = at, planned.columns - at - 1
    room = max(left, right) - 2
    while words and len(", ".join(words)) > room:
        words.pop()
    told = ", ".join(words)
    before, after = (" " * left, f" {told}") if right >= left else (f"{told} ".rjust(left), "")
    name = f" step {step.seq:,}" if planned.label >= 18 else f" {step.seq}"
    return [*fit([(name, "value")], planned.label), (before, "text"), (glyphs.down_open, "selected"), (after, "text")]


def _now(view: View, last: Step | None, named: bool, glyphs: Glyphs) -> Line:
    """How many rows of each kind the last step had; it is the legend too."""
    if last is None:
        return [("no step seen yet", "dim")]
    kinds = timeline.facts(last).kinds
    marks: tuple[tuple[RowKind, str, str], ...] = (
        ("decode", glyphs.decode, "text"),
        ("prefill", glyphs.prefill, "prefill"),
        ("held", glyphs.held, "held"),
        ("fork", glyphs.fork, "text"),
    )
    parts: list[Line] = [
        [(f"{glyph} ", role), (f"{kinds[kind]}", "value"), (f" {kind}" if named else "", "dim")]
        for kind, glyph, role in marks
        if kinds[kind] or (named and kind != "fork")
    ]
    return join(parts, ("  ", "dim"), 60)


def _split(step: Step | None, room: int, picked: bool) -> Line:
    """Where the time of a step went; the smallest parts give way. One that is picked says which it is."""
    if step is None:
        return []
    spent = step.durations
    names = ["schedule", "prepare", "forward", "sample", "publish"]
    if spent.transfer:
        names.insert(2, "transfer")
    which = f"step {step.seq:,} " if picked else ""
    head: Line = [(f" {which}{figures.seconds(step_seconds(spent))}: ", "text")]
    parts: dict[str, Line] = {
        name: [(f"{name} ", "dim"), (f"{getattr(spent, name) * 1000:.1f} ", "text")] for name in names
    }
    for name in sorted(names, key=lambda name: getattr(spent, name)):
        line = [*head, *(span for part in parts.values() for span in part), ("ms ", "dim")]
        if length(line) <= room - 1:
            break
        del parts[name]
    return line


def _legend(planned: Plan, inner: int, glyphs: Glyphs) -> Line:
    """As much of it as fits, what is to be seen now first."""
    parts: list[Line] = [
        [(glyphs.prefill, "prefill"), (" prefill", "dim")],
        [(glyphs.decode, "text"), (" decode", "dim")],
        [(glyphs.left, "end"), (" end", "dim")],
        [(glyphs.held, "held"), (" held", "dim")],
    ]
    if any(timeline.facts(step).kinds["held"] for column in planned.shown for step in column.steps):
        parts = [parts[3], parts[1], parts[2], parts[0]]
    if any(row.lane is None for row in planned.rows[planned.top : planned.top + planned.drawn]):
        parts.insert(3, [(glyphs.waiting, "waiting"), (" waits", "dim")])
    return [(" ", "border"), *join(parts, (" ", "border"), inner - 3), (" ", "border")]
