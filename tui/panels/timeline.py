"""Steps as columns and lanes as rows: which mark is where. What the batch panel is painted from.

A mark is a number: what happened times 16, and the request's hue. The greater number wins where a column is several
steps, so a rare event is not hidden by a common one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from operator import is_
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from engine.protocol import RowKind
from tui.history import Cell, End, Step
from tui.look import HUES, Glyphs
from tui.panels.line import Line

Marks = npt.NDArray[np.int16]
K = TypeVar("K")
V = TypeVar("V")

BLANK, WAITING, HELD, DECODE, FORK, PREFILL, FINISHED, LEFT, ABORTED, SWAPPED, PREEMPTED, MISSING, SWITCH = range(13)
UNDER_CURSOR = 16 * 16  # added to a mark
_KINDS: dict[RowKind, int] = {"held": HELD, "decode": DECODE, "fork": FORK, "prefill": PREFILL}
_ENDS: dict[End, int] = {
    "finished": FINISHED,
    "left": LEFT,
    "aborted": ABORTED,
    "swapped": SWAPPED,
    "preempted": PREEMPTED,
}
KEPT = 1_000  # columns of marks, and steps' facts, that are remembered


@dataclass(frozen=True, slots=True)
class Column:
    """The steps that one column is; with none it is a line through all rows: a control was switched there."""

    steps: tuple[Step, ...]

    @property
    def tokens(self) -> int:
        return sum(step.tokens for step in self.steps)

    @property
    def budget(self) -> int:
        return sum(step.budget for step in self.steps)


@dataclass(frozen=True, slots=True)
class Facts:
    """Rows of a step by kind, how many lanes reach down to its last one, and who was preempted after it."""

    kinds: Counter[RowKind]
    lanes: int
    preempted: tuple[str, ...]


# What was found out about steps, which never change: by the identities of the steps, which are kept with it.
_facts: dict[int, tuple[Step, Facts]] = {}
_marks: dict[tuple[int, int, int, int], tuple[tuple[Step, ...], Marks]] = {}


def columns(steps: Sequence[Step], zoom: int) -> list[Column]:
    """2**zoom records a column, cut at whole multiples so that columns stay as they are; switches between them."""
    out: list[Column] = []
    for _, group in groupby(steps, key=lambda step: step.seq >> zoom):
        found = tuple(group)
        if any(step.switched for step in found):
            out.append(Column(()))
        out.append(Column(found))
    return out


def facts(step: Step) -> Facts:
    known = _facts.get(id(step))
    if known is None or known[0] is not step:
        lanes = step.cells.lanes
        cells = [cell for cell in map(step.cells.get, range(lanes)) if cell is not None]
        preempted = tuple(cell.request for cell in cells if cell.end in ("preempted", "swapped"))
        known = step, Facts(Counter(cell.kind for cell in cells), lanes, preempted)
        _keep(_facts, id(step), known)
    return known[1]


def marks(shown: Sequence[Column], top: int, rows: int) -> Marks:
    """What happened in lanes `top` to `top + rows`: int16 [rows, columns]."""
    out = np.full((len(shown), rows), SWITCH * 16, np.int16)
    for index, column in enumerate(shown):
        steps = column.steps
        if not steps:
            continue
        key = (id(steps[0]), id(steps[-1]), top, rows)
        known = _marks.get(key)
        if known is None or len(known[0]) != len(steps) or not all(map(is_, known[0], steps)):
            known = steps, np.max([_of_step(step, top, rows) for step in steps], axis=0)
            _keep(_marks, key, known)
        out[index] = known[1]
    return out.T


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > KEPT:
        del kept[next(iter(kept))]


def waits(shown: Sequence[Column], since: float | None) -> Marks:
    """A row of somebody who has waited since a moment (None: unknown): int16 [columns]."""
    row = [
        SWITCH if not column.steps else WAITING if since is not None and column.steps[-1].time > since else BLANK
        for column in shown
    ]
    return np.array(row, np.int16) * 16


def paint(marked: Marks, glyphs: Glyphs) -> list[Line]:
    """Rows of marks [rows, columns] as lines of spans."""
    letters, roles = _tables(glyphs)
    texts = letters[marked & (UNDER_CURSOR - 1)]
    changes = marked[:, 1:] != marked[:, :-1]
    out: list[Line] = []
    for text, values, changed in zip(texts, marked, changes, strict=True):
        whole = "".join(text.tolist())
        starts = [0, *(np.flatnonzero(changed) + 1).tolist()]
        ends = [*starts[1:], len(whole)]
        found = values[starts].tolist() if whole else []
        out.append([(whole[a:b], roles[value]) for a, b, value in zip(starts, ends, found, strict=False)])
    return out


def bars(shown: Sequence[Column], shares: Sequence[float], height: int, glyphs: Glyphs, role: str) -> list[Line]:
    """`height` rows of bars, one for each share of 1; what is not nothing shows."""
    steps = len(glyphs.bars) - 1
    levels = np.ceil(np.array(shares) * height * steps - 1e-9).astype(np.int64)
    between = [-1, *(index for index, column in enumerate(shown) if not column.steps), len(shown)]
    out: list[Line] = []
    for row in range(height):
        lowest = row == height - 1
        letters = np.array([glyphs.bars[0] if lowest else " ", *glyphs.bars[1:]])
        text = "".join(letters[np.clip(levels - (height - 1 - row) * steps, 0, steps)].tolist())
        line: Line = []
        for start, end in pairwise(between):
            line += [(glyphs.switch, "switch")] if start >= 0 else []
            line.append((text[start + 1 : end], role))
        out.append(line)
    return out


def _of_step(step: Step, top: int, rows: int) -> Marks:
    if step.missing:
        return np.full(rows, MISSING * 16, np.int16)
    cell = step.cells.get
    return np.array([_mark(cell(lane)) for lane in range(top, top + rows)], np.int16)


def _mark(cell: Cell | None) -> int:
    if cell is None:
        return BLANK
    return (_ENDS[cell.end] if cell.end else _KINDS[cell.kind]) * 16 + cell.hue % HUES


@lru_cache(maxsize=4)
def _tables(glyphs: Glyphs) -> tuple[npt.NDArray[np.str_], list[str]]:
    """Glyph and role of every mark."""
    by_kind = [
        (" ", "text"),
        (glyphs.waiting, "waiting"),
        (glyphs.held, "held"),
        (glyphs.decode, ""),
        (glyphs.fork, ""),
        (glyphs.prefill, "prefill"),
        (glyphs.left, "end"),
        (glyphs.left, "end"),
        (glyphs.aborted, "bad"),
        (glyphs.swapped, "bad"),
        (glyphs.preempted, "bad"),
        (glyphs.missing, "bad"),
        (glyphs.switch, "switch"),
    ]
    letters = np.array([glyph for glyph, _ in by_kind for _ in range(16)])
    roles = [role or f"hue{hue % HUES}" for _, role in by_kind for hue in range(16)]
    roles += ["text"] * (UNDER_CURSOR - len(roles)) + ["cursor"] * UNDER_CURSOR
    return letters, roles
