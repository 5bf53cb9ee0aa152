"""The block map: one cell for each physical block while there is room, a stated number of blocks where not."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from tui import figures
from tui.cells import CACHED, FILLING, FREE, FULL, HOLE, NOBODY, RESERVED, SHARED, TARGET, UNMARKED, Cells
from tui.look import HUES, Glyphs, Look
from tui.panels.line import Line, box, clean, join, length
from tui.view import Frame, View

_ROLES = {FREE: "free", CACHED: "cached", HOLE: "hole", RESERVED: "reserved", FULL: "text", SHARED: "shared"}


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view = frame.view
    inner, rows = width - 2, height - 2
    if view is None:
        return box("blocks", [], _waiting(frame, inner, rows), width, height, look.glyphs)
    columns = columns_for(len(view.blocks), inner, rows)
    pool = Cells.of(view)
    cells = pool.zoomed(columns * rows)
    body = _rows(cells, columns, rows, inner, look)
    zoom = cells.blocks_per_cell
    title = "blocks" if zoom == 1 else f"blocks, {zoom:,} a cell"
    return box(
        title,
        _shares(view, int((pool.mark == TARGET).sum()), inner - len(title) - 6, look),
        body,
        width,
        height,
        look.glyphs,
        bottom=_legend(view, inner, look.glyphs),
    )


def columns_for(blocks: int, inner: int, rows: int) -> int:
    """Cells in a row: a margin on both sides where that costs no zoom."""
    within = max(1, inner - 2)
    if -(-blocks // (within * rows or 1)) == -(-blocks // (inner * rows or 1)):
        return within
    return inner


def _rows(cells: Cells, columns: int, rows: int, inner: int, look: Look) -> list[Line]:
    glyphs = look.glyphs
    # One number for glyph and role of a cell, so that equal neighbours become one span.
    owned = (cells.hue != NOBODY) & ((cells.state == FILLING) | (cells.state == FULL) | (cells.state == RESERVED))
    hue = np.where(owned, cells.hue, HUES).astype(np.int64)
    digit = np.clip(cells.references, 2, 9) if glyphs.ascii else np.zeros_like(cells.references)
    keys = ((cells.state.astype(np.int64) * 16 + cells.level) * 16 + hue) * 16 + digit
    keys = np.where(cells.mark == UNMARKED, keys, -cells.mark.astype(np.int64))
    out: list[Line] = []
    margin = (inner - columns) // 2
    for row in range(min(rows, -(-len(cells) // columns))):
        line: Line = [(" " * margin, "text")] if margin else []
        for key, run in groupby(keys[row * columns : (row + 1) * columns].tolist()):
            line.append(_cell(key, sum(1 for _ in run), glyphs))
        out.append(line)
    return out


def _cell(key: int, repeat: int, glyphs: Glyphs) -> tuple[str, str]:
    if key < 0:
        return (glyphs.target if key == -TARGET else glyphs.source) * repeat, "copied"
    key, digit = divmod(key, 16)
    key, hue = divmod(key, 16)
    state, level = divmod(key, 16)
    role = f"hue{hue}" if hue < HUES else _ROLES.get(state, "text")
    match state:
        case 0:
            glyph = glyphs.free
        case 1:
            glyph = glyphs.cached
        case 2:
            glyph = glyphs.hole
        case 3:
            glyph = glyphs.reserved
        case 4:
            glyph = glyphs.fills[max(0, min(level, 7) - 1)]
        case 5:
            glyph = glyphs.fills[7]
        case _:
            glyph = str(digit) if glyphs.ascii else glyphs.shared
    return glyph * repeat, role


def _shares(view: View, copied: int, room: int, look: Look) -> Line:
    """What share of the pool is held, cached and free, and of the swap space is used; copied blocks, while marked."""
    pool, total = view.pool, view.engine.num_blocks
    used = total - pool.free - pool.cached
    parts: list[Line] = [
        [(name, "dim"), (f" {figures.percent(figures.ratio(blocks, total))}", "value")]
        for name, blocks in (("held", used), ("cached", pool.cached), ("free", pool.free))
    ]
    if view.waste.external:
        # A part of free and cached, not a state of its own.
        short = view.waste.external // view.engine.block_size
        parts.append([(look.glyphs.hole, "hole"), (" too short ", "dim"), (f"{short:,}", "value")])
    if view.engine.num_host_blocks:
        swapped = figures.percent(figures.ratio(view.host_blocks, view.engine.num_host_blocks))
        parts.append([("swap", "dim"), (f" {swapped}", "value")])
    gap = ("  ", "border")
    shares = join(parts, gap, room)
    if not copied:
        return shares
    # At the left end, so that nothing else moves when it comes and goes.
    marks: Line = [(look.glyphs.source + look.glyphs.target, "copied"), (" copied ", "dim"), (f"{copied:,}", "value")]
    return [*marks, gap, *shares] if length(marks) + 2 + length(shares) <= room else shares


def _legend(view: View, inner: int, glyphs: Glyphs) -> Line:
    """Each state's glyph and its blocks, from the engine's own totals; short where names do not fit."""
    pool = view.pool
    states = [
        (glyphs.free, "free", "free", pool.free),
        (glyphs.reserved, "reserved", "reserved", pool.reserved),
        (glyphs.fills[3], "filling", "text", pool.filling),
        (glyphs.fills[7], "full", "text", pool.full),
        ("2-9" if glyphs.ascii else glyphs.shared, "shared", "shared", pool.shared),
        (glyphs.cached, "cached", "cached", pool.cached),
    ]
    for named, gap in ((True, "  "), (True, " "), (False, " ")):
        line: Line = [(" ", "border")]
        for glyph, name, role, blocks in states:
            if length(line) > 1:
                line.append((gap, "border"))
            line += [(glyph, role), (f" {name} " if named else "", "dim"), (f"{blocks:,}", "text")]
        line.append((" ", "border"))
        if length(line) <= inner - 1:
            return line
    return line


def _waiting(frame: Frame, inner: int, rows: int) -> list[Line]:
    """Before the first snapshot: what is waited for, and what the engine that we started says."""
    link, status = frame.status.link, frame.status
    since = figures.seconds(link.seconds)
    heading = {
        "starting": f"starting an engine: {since}",
        "connecting": f"waiting for {status.target}: {since}",
        "reconnecting": f"lost {status.target}, trying again: {since}",
        "foreign": f"{status.target} is not a paged-engine",
        "ended": "the engine ended",
        "live": "reading the first snapshot",
    }[link.phase]
    body: list[Line] = [[], [("  " + heading, "value")]]
    if link.detail:
        body += [[("  " + part, "bad" if link.phase in ("foreign", "ended") else "dim")]
                 for part in _wrapped(link.detail, inner - 4)]  # fmt: skip
    body.append([])
    space = rows - len(body)
    latest = status.log[-space:] if space > 0 else ()
    return [*body, *([("  " + clean(line)[: inner - 4], "dim")] for line in latest)]


def _wrapped(text: str, width: int) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), max(1, width))][:4]
