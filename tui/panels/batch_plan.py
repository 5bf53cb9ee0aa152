"""What the batch panel has room for: which steps are its columns, which requests its rows, which lines go around."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from tui.history import Step
from tui.panels import timeline
from tui.panels.timeline import Column
from tui.view import Frame, View

DETAILED = 44  # cells of a label that tells more than a context


@dataclass(frozen=True, slots=True)
class Row:
    """A lane of the batch and who has it now, or a request that waits (`lane` is None)."""

    lane: int | None
    request: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """`label` and `columns` are widths in cells; `shown` are at the right end of the columns.

    `above` and `below` name the lines over and under the rows; the last of these has `budget_rows`. `top` is the first
    of `rows` that is drawn, `drawn` their number; `rest`: one more line says what is not. `cursor` is an index into
    `shown`, `picked` the step there.
    """

    alone: bool
    label: int
    columns: int
    shown: tuple[Column, ...]
    every: tuple[Column, ...]
    above: tuple[str, ...]
    below: tuple[str, ...]
    budget_rows: int
    rows: tuple[Row, ...]
    top: int
    drawn: int
    rest: bool
    cursor: int | None
    picked: Step | None

    @property
    def below_rows(self) -> int:
        return len(self.below) - 1 + self.budget_rows

    @property
    def blank(self) -> int:
        """Columns before the first one that is shown."""
        return self.columns - len(self.shown)

    def column(self, x: int) -> int | None:
        """Which of `shown` is at a cell of the panel; what is between two steps belongs to the later one."""
        index = x - 1 - self.label - self.blank
        if not 0 <= index < len(self.shown) or x >= 1 + self.label + self.columns:
            return None
        return index if self.shown[index].steps else min(index + 1, len(self.shown) - 1)

    def row(self, y: int) -> Row | None:
        """Which row is at a line of the panel."""
        index = y - 1 - len(self.above)
        return self.rows[self.top + index] if 0 <= index < self.drawn else None


def plan(frame: Frame, view: View, width: int, height: int) -> Plan:
    """For a panel of `width` x `height` cells with its border."""
    focus, inner, room = frame.focus, width - 2, height - 2
    alone = focus.expanded and focus.panel == "batch"
    label = _label(inner, alone)
    columns = max(1, inner - label)
    every, index = _columns(view, columns, focus.batch.zoom, focus.batch.step)
    end = len(every) if index is None else max(min(len(every), index + columns), min(len(every), columns))
    if index is not None and index >= len(every) - columns:
        end = len(every)
    first = max(0, end - columns)
    shown = every[first:end]
    picked = _step_at(every[index], focus.batch.step) if index is not None else None
    above = ("sum", "heads")[: 2 if label == DETAILED else 1] if alone and room >= 8 else ()
    below = _below(frame, view, inner, room, alone, picked)
    budget_rows = 3 if alone and room >= 24 else 1
    rows = _rows(view, shown)
    space = max(0, room - len(above) - len(below) - budget_rows + 1)
    drawn = len(rows) if len(rows) <= space else max(0, space - 1)
    top = max(0, min(focus.batch.top, len(rows) - drawn))
    if focus.batch.follow and focus.request is not None and drawn:
        at = next((index for index, row in enumerate(rows) if row.request == focus.request), top)
        top = min(max(top, at - drawn + 1), at)
    return Plan(
        alone=alone,
        label=label,
        columns=columns,
        shown=shown,
        every=every,
        above=above,
        below=below,
        budget_rows=budget_rows,
        rows=rows,
        top=top,
        drawn=drawn,
        rest=drawn < len(rows) and space > 0,
        cursor=None if index is None else index - first,
        picked=picked,
    )


def _label(inner: int, alone: bool) -> int:
    if alone and inner >= 2 * DETAILED:
        return DETAILED
    return 18 if inner >= 60 else 9 if inner >= 34 else 6


def _columns(view: View, wanted: int, zoom: int, seq: int | None) -> tuple[tuple[Column, ...], int | None]:
    """As many as are needed, the newest last, and the one under the cursor."""
    steps = view.steps
    if not steps:
        return (), None
    at = None if seq is None else bisect_right(steps, seq, key=_seq) - 1
    first = max(0, len(steps) - ((wanted + 1) << zoom))
    if at is not None and at < first + (1 << zoom):
        first = max(0, at - (1 << zoom))
    if first:  # a whole column, so that it is the same one in the next frame
        first = bisect_right(steps, ((steps[first].seq >> zoom) << zoom) - 1, key=_seq)
    columns = tuple(timeline.columns(steps[first:], zoom))
    if at is None or at < 0:
        return columns, None
    under = steps[at].seq >> zoom
    return columns, next(i for i, one in enumerate(columns) if one.steps and one.steps[0].seq >> zoom == under)


def _step_at(column: Column, seq: int | None) -> Step:
    """The step of a column that is picked: the newest up to `seq`."""
    return next((step for step in reversed(column.steps) if seq is not None and step.seq <= seq), column.steps[-1])


def _below(frame: Frame, view: View, inner: int, room: int, alone: bool, picked: Step | None) -> tuple[str, ...]:
    """Names of the lines under the rows, from top to bottom; where there is little room the first ones go first."""
    parts = picked if picked is not None else view.steps[-1] if view.steps else None
    wanted: list[str] = []
    if parts is not None and parts.parts is not None and parts.durations.forward:
        wanted.append("parts")
    if view.queue.head is not None:
        wanted.append("next")
    if frame.focus.batch.step is not None:
        wanted.append("cursor")
    if alone and room >= 20:
        wanted.append("time")
    wanted.append("tokens")
    return tuple(wanted[-max(1, room // 2) :])


def _rows(view: View, shown: tuple[Column, ...]) -> tuple[Row, ...]:
    """Every lane that somebody has, or had in the columns shown; then who waits, in the order of arrival."""
    by_lane = {lane: request for request, lane in view.lanes.items()}
    lanes = [timeline.facts(step).lanes for column in shown for step in column.steps]
    used = max([*lanes, *(lane + 1 for lane in by_lane)], default=0)
    waiting = [state.request for state in view.requests.values() if state.status == "waiting"]
    return (*(Row(lane, by_lane.get(lane)) for lane in range(used)), *(Row(None, request) for request in waiting))


def _seq(step: Step) -> int:
    return step.seq
