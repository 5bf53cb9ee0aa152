"""The batch of the last steps: a lane for each place in the batch, a column for each step, the newest at the right.

A request keeps its lane while it runs, and the next one takes it over: a lane full of work is continuous batching,
a lane that waits for its neighbours is static batching.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import msgspec

from engine.protocol import RowKind
from tui import figures
from tui.history import Cell, Step, step_seconds
from tui.look import HUES, Glyphs, Look
from tui.panels.line import Line, box, join, length, short_id
from tui.panels.waits import reason
from tui.view import Frame, View


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view = frame.view
    inner, rows = width - 2, height - 2
    if view is None:
        return box("batch", [], [], width, height, look.glyphs)
    wide = inner >= 60
    label = 18 if wide else 9 if inner >= 34 else 6
    columns = max(1, inner - label)
    steps = view.steps[-columns:]
    last = steps[-1] if steps else None
    below = [*_parts(last, inner), *_next(view, inner), _budget(steps, label, columns, look)]
    body = _lanes(view, steps, rows - len(below), label, columns, wide, look)
    body += [[] for _ in range(rows - len(below) - len(body))]
    body += below
    shown = figures.plural(len(steps), "step")
    return box(
        f"batch, last {shown}" if inner >= 50 else f"batch, {shown}",
        _now(last, inner >= 50, look.glyphs),
        body,
        width,
        height,
        look.glyphs,
        bottom=_split(last, inner) if inner >= 60 else _legend(steps, inner, look.glyphs),
    )


def _lanes(
    view: View, steps: Sequence[Step], rows: int, label: int, columns: int, wide: bool, look: Look
) -> list[Line]:
    by_lane = {lane: request for request, lane in view.lanes.items()}
    used = max([*by_lane, *(lane for step in steps for lane in step.cells)], default=-1) + 1
    shown = used if used <= rows else rows - 1
    out: list[Line] = []
    for lane in range(max(0, shown)):
        request = by_lane.get(lane)
        line: Line = [_name(view, request, label, wide)] if request else [(" " * label, "text")]
        line += _cells(view, steps, lane, columns, look)
        out.append(line)
    if used > shown >= 0:
        hidden = sum(lane >= shown for lane in by_lane)
        where = " in the batch" if columns >= 30 else ""
        out.append([(f" and {figures.plural(hidden, 'more request')}{where}", "dim")])
    return out


def _name(view: View, request: str, label: int, wide: bool) -> tuple[str, str]:
    role = f"hue{view.hue(request)}"
    state = view.requests.get(request)
    if not wide or state is None:
        return f" {short_id(request, label - 2)}".ljust(label), role
    return f" {short_id(request, 8):<8} {state.computed_tokens:>6,}  ", role


def _cells(view: View, steps: Sequence[Step], lane: int, columns: int, look: Look) -> Line:
    marks = [_mark(view, step, step.cells.get(lane), look.glyphs) for step in steps]
    line: Line = [(" " * (columns - len(steps)), "text")]
    for role, run in groupby(marks, key=lambda mark: mark[1]):
        line.append(("".join(glyph for glyph, _ in run), role))
    return line


def _mark(view: View, step: Step, cell: Cell | None, glyphs: Glyphs) -> tuple[str, str]:
    if step.missing:
        return glyphs.missing, "bad"
    if cell is None:
        return (glyphs.switch, "faint") if step.switched else (" ", "text")
    if cell.end:
        glyph = {
            "left": glyphs.left,
            "finished": glyphs.left,
            "aborted": glyphs.aborted,
            "preempted": glyphs.preempted,
            "swapped": glyphs.swapped,
        }[cell.end]
        return glyph, "end" if cell.end in ("left", "finished") else "bad"
    if cell.kind == "held":
        return glyphs.held, "held"
    if cell.kind == "prefill":
        return glyphs.prefill, "prefill"
    if cell.kind == "fork":
        return glyphs.fork, f"hue{cell.hue % HUES}"
    return glyphs.decode, f"hue{cell.hue % HUES}"


def _parts(last: Step | None, inner: int) -> list[Line]:
    """Where the forward of the last step went, in the order of computation; the smallest parts give way."""
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
    return [line]


def _next(view: View, inner: int) -> list[Line]:
    """Why the next request waits, while one does."""
    if view.queue.head is None:
        return []
    label = " next waits: " if inner >= 40 else " waits: "
    return [[(label, "dim"), (reason(view.queue.head, view.control, inner - len(label)), "queue")]]


def _budget(steps: Sequence[Step], label: int, columns: int, look: Look) -> Line:
    """Tokens of each step as a share of the budget, with mode switches marked."""
    glyphs = look.glyphs
    line: Line = [((" tokens" if label > 8 else " tok").ljust(label), "dim"), (" " * (columns - len(steps)), "text")]
    for step in steps:
        if step.switched:
            line.append((glyphs.switch, "switch"))
        else:
            top = len(glyphs.bars) - 1
            level = min(top, -(-step.tokens * top // max(1, step.budget)))
            line.append((glyphs.bars[level], "prefill-speed"))
    return line


def _now(last: Step | None, named: bool, glyphs: Glyphs) -> Line:
    """How many rows of each kind the last step had; it is the legend too."""
    if last is None:
        return [("no step seen yet", "dim")]
    kinds = Counter(cell.kind for cell in last.cells.values())
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


def _split(last: Step | None, room: int) -> Line:
    """Where the time of the last step went; the smallest parts give way."""
    if last is None:
        return []
    spent = last.durations
    names = ["schedule", "prepare", "forward", "sample", "publish"]
    if spent.transfer:
        names.insert(2, "transfer")
    head: Line = [(f" {figures.seconds(step_seconds(spent))}: ", "text")]
    parts: dict[str, Line] = {
        name: [(f"{name} ", "dim"), (f"{getattr(spent, name) * 1000:.1f} ", "text")] for name in names
    }
    for name in sorted(names, key=lambda name: getattr(spent, name)):
        line = [*head, *(span for part in parts.values() for span in part), ("ms ", "dim")]
        if length(line) <= room - 1:
            break
        del parts[name]
    return line


def _legend(steps: Sequence[Step], inner: int, glyphs: Glyphs) -> Line:
    """As much of it as fits, what is to be seen now first."""
    parts: list[Line] = [
        [(glyphs.prefill, "prefill"), (" prefill", "dim")],
        [(glyphs.decode, "text"), (" decode", "dim")],
        [(glyphs.left, "end"), (" end", "dim")],
        [(glyphs.held, "held"), (" held", "dim")],
    ]
    if any(cell.kind == "held" for step in steps for cell in step.cells.values()):
        parts = [parts[3], parts[1], parts[2], parts[0]]
    return [(" ", "border"), *join(parts, (" ", "border"), inner - 3), (" ", "border")]
