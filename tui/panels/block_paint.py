"""How the block map's cells look: a glyph and a role for each, and lines of them. Vectorised: cells come by the ten
thousand, and a line is cut into spans only where the role changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tui import map_paths
from tui.cells import (
    CACHED,
    FILLING,
    FREE,
    FULL,
    GREW,
    HOLE,
    NOBODY,
    QUARTERS,
    RELEASED,
    RESERVED,
    SHARED,
    SOURCE,
    STATES,
    TAKEN,
    TARGET,
    UNMARKED,
    Cells,
)
from tui.focus import ColourBy
from tui.look import HUES, Glyphs, Look
from tui.map_geometry import Geometry
from tui.map_paths import Lit
from tui.panels.line import Line

Codes = npt.NDArray[np.uint32]
Roles = npt.NDArray[np.uint8]

WARMTHS = 5
STRETCHES = "123456789abcdefghijklmnopqrstuvwxyz"  # of a path; a long one begins again
_STATE_ROLES = {FREE: "free", CACHED: "cached", RESERVED: "reserved", FILLING: "text", FULL: "text",
                SHARED: "shared", HOLE: "hole"}  # fmt: skip
ROLES = (
    *(_STATE_ROLES[state] for state in range(STATES)),
    *(f"hue{hue}" for hue in range(HUES)),
    *(f"heat{warmth}" for warmth in range(WARMTHS)),
    *("good", "changed", "copied", "lit", "selected", "unlit", "cursor"),
)
_HUE, _HEAT = STATES, STATES + HUES
_AT = {role: at for at, role in enumerate(ROLES)}
_MARK_ROLES = {GREW: "changed", RELEASED: "changed", TAKEN: "changed", SOURCE: "copied", TARGET: "copied"}


@dataclass(frozen=True, slots=True)
class MapGlyphs:
    """What the map has beyond `Glyphs`. `way`: right, left, down, up, jump, tail. `mostly`: of a mix, by its commonest
    state; without it (Unicode) a mix is two columns of dots: what requests have filled, and what is kept for later."""

    way: str
    many: str
    others: str
    unlit: str
    thumb: str
    mostly: str


_UNICODE = MapGlyphs(way="→←↓↑↷◉", many="◆", others="", unlit="", thumb="┃", mostly="")
_ASCII = MapGlyphs(way="><v^~$", many="@", others="=", unlit=":", thumb="#", mostly="FCRPUSH")


def map_glyphs(glyphs: Glyphs) -> MapGlyphs:
    return _ASCII if glyphs.ascii else _UNICODE


def mix_glyph(used: int, kept: int) -> str:
    """Dots in a cell: the left column is as high as `used`, the right one as `kept`, each 0..4."""
    left, right = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
    dots = sum(left[:used]) + sum(right[:kept])
    return chr(0x2800 + (dots or 0x12))  # neither: free blocks and holes


_MIXES = np.array([[ord(mix_glyph(used, kept)) for kept in range(QUARTERS + 1)] for used in range(QUARTERS + 1)])


def paint(
    cells: Cells, shape: Geometry, look: Look, colour_by: ColourBy, lit: Lit | None, cursor: int | None
) -> list[Line]:
    """Lines of the map as far as the pool goes, each `shape.inner` cells wide."""
    if lit is not None:  # changes are not told, so that only the path stands out
        cells = replace(cells, mark=np.zeros_like(cells.mark))
    codes = np.repeat(_codes(cells, look, colour_by)[:, None], shape.wide, axis=1)
    if shape.wide >= 2:
        _count_references(codes, cells, look.glyphs)
    if shape.wide >= 4:
        codes[:, -1] = ord(" ")
    roles = _roles(cells, colour_by)
    if lit is not None:
        _light(codes, roles, cells, shape, look.glyphs, lit)
    if cursor is not None and shape.first <= cursor < shape.last:
        roles[(cursor - shape.first) // shape.per_cell] = _AT["cursor"]
    return _lines(codes, roles, shape)


def _codes(cells: Cells, look: Look, colour_by: ColourBy) -> Codes:
    """The character of each cell [cells]."""
    glyphs, mine = look.glyphs, map_glyphs(look.glyphs)
    by_state = np.array(
        [ord(glyph) for glyph in (glyphs.free, glyphs.cached, glyphs.reserved, glyphs.fills[0], glyphs.fills[7],
                                  mine.many, glyphs.hole)], np.uint32)  # fmt: skip
    codes = by_state[cells.state]
    fills = np.array([ord(glyph) for glyph in glyphs.fills], np.uint32)
    filling = cells.state == FILLING
    codes[filling] = fills[np.clip(cells.level[filling].astype(np.int64) - 1, 0, 6)]
    if glyphs.ascii or colour_by == "references":
        few = (cells.state == SHARED) & (cells.references < 10)
        codes[few] = ord("0") + cells.references[few]
    if cells.mixed.any():
        mixed = cells.mixed
        if mine.mostly:
            codes[mixed] = np.array([ord(letter) for letter in mine.mostly], np.uint32)[cells.state[mixed]]
        else:
            codes[mixed] = _MIXES[cells.used[mixed], cells.kept[mixed]]
    if colour_by == "age" and look.style("heat0") == look.style("heat1"):  # a theme without colours
        known = cells.tint != NOBODY
        codes[known] = ord("0") + cells.tint[known]
    for mark, glyph in ((RELEASED, glyphs.released), (TAKEN, glyphs.taken), (SOURCE, glyphs.source),
                        (TARGET, glyphs.target)):  # fmt: skip
        codes[cells.mark == mark] = ord(glyph)
    return codes


def _roles(cells: Cells, colour_by: ColourBy) -> Roles:
    """The number in ROLES of each cell's role [cells]."""
    roles = cells.state.copy()
    tinted = cells.tint != NOBODY
    match colour_by:
        case "owner":
            tinted &= (cells.state == RESERVED) | (cells.state == FILLING) | (cells.state == FULL)
            roles[tinted] = _HUE + cells.tint[tinted]
        case "references" | "age":
            roles[tinted] = _HEAT + cells.tint[tinted]
        case "kind":
            roles[cells.state == FILLING] = _AT["good"]
    if (cells.mark != UNMARKED).any():
        for mark, role in _MARK_ROLES.items():
            roles[cells.mark == mark] = _AT[role]
    return roles


def _count_references(codes: Codes, cells: Cells, glyphs: Glyphs) -> None:
    """Where a block has several cells, say how many share it."""
    shared = np.flatnonzero((cells.state == SHARED) & (cells.mark == UNMARKED))
    codes[shared] = ord(map_glyphs(glyphs).many)
    references = cells.references[shared]
    if codes.shape[1] == 2:
        codes[shared, 1] = np.where(references < 10, ord("0") + references, codes[shared, 0])
    else:
        _number(codes, shared, references, blank=None)


def _number(codes: Codes, rows: npt.NDArray[np.int64], values: npt.NDArray[np.int64], blank: str | None) -> None:
    """Write numbers up to 999 into the middle of cells at least 4 wide; `blank` instead of zeros before them."""
    at = (codes.shape[1] - 4) // 2
    values = np.minimum(values, 999)
    for column, unit in enumerate((100, 10, 1)):
        there = (values >= unit) | (unit == 1)
        codes[rows[there], at + column] = ord("0") + values[there] // unit % 10
        if blank is not None:
            codes[rows[~there], at + column] = ord(blank)


def _light(codes: Codes, roles: Roles, cells: Cells, shape: Geometry, glyphs: Glyphs, lit: Lit) -> None:
    """Draw what is lit over the rest, which goes dark."""
    mine, wide = map_glyphs(glyphs), shape.wide
    roles[:] = _AT["unlit"]
    body = codes[:, : wide - 1 if wide >= 4 else wide]
    if mine.unlit:
        body[(cells.state != FREE) & (cells.state != HOLE)] = ord(mine.unlit)
    others = _units(lit.others, shape)
    roles[others] = _AT["selected"]
    if mine.others:
        body[others] = ord(mine.others)
    shown = np.flatnonzero((lit.path >= shape.first) & (lit.path < shape.last))
    units = _units(lit.path, shape)
    roles[units] = _AT["lit"]
    if shape.per_cell > 1:
        count = np.bincount(units, minlength=len(roles))[units]
        codes[units, 0] = np.where(count < 10, ord("0") + count, ord("+"))
        return
    way, stretch = (part[shown] for part in map_paths.steps(lit.path, shape.row_blocks))
    arrows = np.array([ord(glyph) for glyph in mine.way], np.uint32)[way]
    if wide < 4:
        names = np.array([ord(name) for name in STRETCHES], np.uint32)
        codes[units] = arrows[:, None]
        named = (stretch > 0) & (way != map_paths.TAIL)
        codes[units, 0] = np.where(named, names[(stretch - 1) % len(names)], arrows)
        return
    codes[units] = ord(" ")
    _number(codes, units, shown, blank=" ")
    codes[units, -1] = arrows


def _units(blocks: npt.NDArray[np.int64], shape: Geometry) -> npt.NDArray[np.int64]:
    """The cells of those blocks that are shown."""
    return (blocks[(blocks >= shape.first) & (blocks < shape.last)] - shape.first) // shape.per_cell


def _lines(codes: Codes, roles: Roles, shape: Geometry) -> list[Line]:
    """Spans of neighbours with one role, by row; blank where a row or the pool ends early."""
    text = codes.astype("<u4").tobytes().decode("utf-32-le")
    wide, columns = shape.wide, shape.columns
    begins = np.ones(len(roles), np.bool_)
    begins[1:] = roles[1:] != roles[:-1]
    begins[::columns] = True
    starts = np.flatnonzero(begins)
    edges = (np.append(starts, len(roles)) * wide).tolist()
    spans = [(text[i:j], ROLES[role]) for (i, j), role in zip(pairwise(edges), roles[starts].tolist(), strict=True)]
    rows = np.searchsorted(starts, np.append(np.arange(0, len(roles), columns), len(roles))).tolist()
    margin: Line = [(" " * shape.margin, "text")] if shape.margin else []
    out: list[Line] = []
    for row, (i, j) in enumerate(pairwise(rows)):
        drawn = min(columns, len(roles) - row * columns) * wide + shape.margin
        blank: Line = [(" " * (shape.inner - drawn), "text")] if drawn < shape.inner else []
        out.append([*margin, *spans[i:j], *blank])
    return out
