"""A map of resident prefix blocks, by prefix: where they are in memory no event tells.

Cells follow the prefix tree, depth first; a cell's height is how near to its root it is, its colour its branch, and
the first cell of a run has a notch. One that is of several blocks shows the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tui import figures
from tui.focus import ServerFocus
from tui.look import Look
from tui.panels.line import Line, cut, join
from tui.panels.server import prefix_branches
from tui.panels.server.prefix_branches import TRUNK_ROLE
from tui.panels.server.prefix_runs import Forest, Ints, begins
from tui.prefix_texts import PrefixTexts

TITLE = "resident prefix blocks, by prefix (not physical places)"
TITLE_BRIEF = "by prefix, not by physical place"


@dataclass(frozen=True, slots=True)
class Shape:
    """`columns` cells in each row, each of `per_cell` blocks, of which there are `cells` in all."""

    columns: int
    per_cell: int
    cells: int

    @classmethod
    def of(cls, forest: Forest, columns: int, rows: int) -> Shape:
        columns, rows = max(1, columns), max(1, rows)
        per_cell = max(1, -(-forest.blocks // (columns * rows)))
        return cls(columns, per_cell, -(-forest.blocks // per_cell))

    def runs(self, forest: Forest) -> Ints:
        """The run that each cell is of."""
        return np.searchsorted(forest.starts, np.arange(self.cells) * self.per_cell, "right") - 1

    def cell(self, forest: Forest, run: int) -> int:
        """The first cell that a run, or a part of it, is in."""
        return int(forest.starts[run]) // self.per_cell


def lines(forest: Forest, focus: ServerFocus, columns: int, rows: int, front: bool, look: Look) -> list[Line]:
    """The cells, row by row."""
    shape = Shape.of(forest, columns, rows)
    runs = shape.runs(forest).tolist()
    glyphs, selected = look.glyphs, forest.index_of(focus.run) if front else None
    cursor = shape.cell(forest, selected) if selected is not None else -1
    out: list[Line] = []
    for begin in range(0, shape.cells, shape.columns):
        line: Line = []
        for cell in range(begin, min(begin + shape.columns, shape.cells)):
            run = forest.runs[runs[cell]]
            begins = cell == 0 or runs[cell - 1] != runs[cell]
            glyph = height(run.depth, look, begins) if run.known else glyphs.missing
            role = forest.hues[runs[cell]]
            if cell == cursor:
                glyph, role = glyphs.live, "cursor"
            elif runs[cell] == selected:
                role = "lit"
            if line and line[-1][1] == role:
                line[-1] = (line[-1][0] + glyph, role)
            else:
                line.append((glyph, role))
        out.append(line)
    return out


def height(depth: int, look: Look, begins: bool = False) -> str:
    """The glyph of a run by its depth: the tallest is a root; in ASCII the depth itself. A run begins with a notch, in
    ASCII with a letter, so that neighbours are told apart without colours."""
    if look.glyphs.ascii:
        return "abcdefghij"[min(depth, 9)] if begins else str(min(depth, 9))
    fills = look.glyphs.fills
    return fills[max(0, len(fills) - 1 - 2 * depth - begins)]


def legend(forest: Forest, inner: int, look: Look) -> list[Line]:
    """What colours and heights mean, as far as there is room for it."""
    glyphs = look.glyphs
    branch = next((hue for hue in forest.hues if hue != TRUNK_ROLE), "")
    parts: list[Line] = []
    if forest.shared:
        parts.append([(height(0, look), TRUNK_ROLE), (" shared by most", "dim")])
    if branch:
        parts.append([(height(int(forest.shared), look), branch), (" a colour a branch", "dim")])
    if not all(run.known for run in forest.runs):
        parts.append([(glyphs.missing, "text"), (" after what was not seen", "dim")])
    parts.append([("0 1 2: how deep" if glyphs.ascii else "lower: deeper", "dim")])
    notch = "a b c" if glyphs.ascii else height(1, look, True)
    parts.append([(notch, "text"), (f" begin{'' if glyphs.ascii else 's'} a run", "dim")])
    return [[(" ", "text"), *join(parts, (f" {glyphs.dot} ", "dim"), inner - 2)]]


def cursor(forest: Forest, focus: ServerFocus, inner: int, look: Look, texts: PrefixTexts) -> Line:
    """What the prefix under the cursor is; empty where there is no cursor."""
    at = forest.index_of(focus.run)
    if at is None:
        return []
    run, role = forest.runs[at], forest.hues[at]
    called = begins(forest, at, texts, look) or prefix_branches.name(run.first, look.glyphs.more)
    size = figures.plural(run.blocks, "block")
    line: Line = [(f" {look.glyphs.live} ", "cursor"), (f"{size}{f' + {run.below:,}' if run.below else ''} ", "value")]
    return cut([*line, (called, role)], inner - 1, look.glyphs.more)


def meanings(look: Look) -> list[tuple[str, str, str]]:
    """The glyphs of the map, each with its role and what it means."""
    glyphs = look.glyphs
    return [
        (height(0, look), TRUNK_ROLE, "what more than 3/4 of all blocks go on from, or are in"),
        (height(0, look), "hue0", "a branch of that, or a prefix of its own: each has a colour"),
        (
            height(1, look),
            "hue0",
            "what goes on from it; the deeper in the tree, the " + ("higher the digit" if glyphs.ascii else "lower"),
        ),
        (height(1, look, True), "text", "a run of blocks without a branch begins"),
        (glyphs.missing, "text", "after blocks that were not seen, or were removed"),
        (glyphs.live, "cursor", "the cursor; the run it is on is lit"),
    ]


def moved(forest: Forest, focus: ServerFocus, key: str, columns: int, rows: int) -> ServerFocus | None:
    """The focus after a key that moves the cursor: a run on, or to the run a row on; None: not such a key."""
    if not len(forest):
        return None
    at, shape = forest.index_of(focus.run), Shape.of(forest, columns, rows)
    last = len(forest) - 1
    if key in ("home", "end"):
        target = 0 if key == "home" else last
    elif key in ("left", "right"):
        target = 0 if at is None else max(0, min(at + (1 if key == "right" else -1), last))
    elif key in ("up", "down", "pageup", "pagedown"):
        by = shape.columns * (1 if len(key) < 5 else max(1, rows - 1))
        cell = 0 if at is None else shape.cell(forest, at) + (by if key.endswith("down") else -by)
        found = int(shape.runs(forest)[max(0, min(cell, shape.cells - 1))])
        # Of a long run the next row is of the same one, and a cell of several runs is of its first: go on at least one.
        further = found if at is None else max(found, at + 1) if key.endswith("down") else min(found, at - 1)
        target = max(0, min(further, last))
    else:
        return None
    return replace(focus, run=forest.name(target), follow=True)


def at(forest: Forest, x: int, y: int, columns: int, rows: int) -> int | None:
    """The run at a cell; None beyond the last."""
    shape = Shape.of(forest, columns, rows)
    cell = y * shape.columns + x
    if not (0 <= x < shape.columns and 0 <= cell < shape.cells):
        return None
    return int(shape.runs(forest)[cell])
