"""The block map: one cell for each physical block while there is room, a stated number of blocks where not.

Its cursor tells of one block, and a selected request or prefix is lit as the path that its block table takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from tui import figures, map_geometry, map_paths
from tui.block_columns import NAMES
from tui.cells import TARGET, Cells, copied
from tui.commands import Key, Reaction, Say
from tui.focus import ColourBy, Focus, MapFocus
from tui.look import Glyphs, Look
from tui.map_geometry import Geometry, geometry
from tui.map_paths import Lit, lit
from tui.panels import block_detail
from tui.panels.block_detail import NAME_WIDTH
from tui.panels.block_detail import detail as detail
from tui.panels.block_paint import map_glyphs, mix_glyph, paint
from tui.panels.line import Line, box, breaks, clean, join, length, short_id
from tui.view import Frame, View

KEYS = (
    Key("arrows", "move the cursor by a block or a row"),
    Key("enter", "tell all about the block"),
    Key("+ -", "nearer or farther, around the cursor"),
    Key("o", "select its owner, again: the next"),
    Key("v", "colour by owner, references, age, kind"),
    Key("pgup pgdn", "a screen up or down"),
    Key("home end", "the first or the last block"),
)
COLOURS: tuple[ColourBy, ...] = get_args(ColourBy)
_GAPS = ("  ", " ", "")  # between the states of the legend, from wide to none
_SCALES = {
    "references": ("held by", ("10+", "5-9", "3-4", "2", "1")),
    "age": ("taken", ("<1 s", "<10 s", "<1 min", "<10 min", "older")),
}


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    view, focus = frame.view, frame.focus
    inner, rows = width - 2, height - 2
    front = focus.panel == "blocks"
    if view is None:
        return box("blocks", [], _waiting(frame, inner, rows), width, height, look.glyphs, front=front)
    shape = geometry(len(view.blocks), inner, rows, focus.map)
    cells = Cells.of(view, shape.first, shape.last, shape.per_cell, focus.map.colour_by)
    shown = lit(view, focus)
    cursor = _cursor(shape, focus.map) if front else None
    title = _title(shape)
    lead: list[Line] = [] if cursor is None else [[(text, "value")] for text in _told(view, shape, cells, cursor)]
    bottom, bottom_right = _bottom(lead, _parts(view, focus, shape, shown, look.glyphs), inner)
    lines = box(
        title,
        _shares(view, list(copied(view).values()).count(TARGET), inner - len(title) - 6, look),
        [],
        width,
        height,
        look.glyphs,
        bottom=bottom,
        bottom_right=bottom_right,
        front=front,
    )
    side = (look.glyphs.vertical, "border")
    body = paint(cells, shape, look, focus.map.colour_by, shown, cursor)
    lines[1 : 1 + len(body)] = [[side, *line, side] for line in body]  # as `box` would, but they fit already
    return lines if shape.whole else _with_position(lines, shape, look)


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    view, focus = frame.view, frame.focus
    if view is None or not len(view.blocks):
        return None
    shape = geometry(len(view.blocks), width - 2, height - 2, focus.map)
    cursor = _cursor(shape, focus.map)
    moved = map_geometry.moved(shape, focus.map, key)
    if moved is not None:
        return focus.but(map=moved)
    match key:
        case "plus" | "equals_sign" | "minus":
            anchor = shape.first if cursor is None else cursor
            return focus.but(map=map_geometry.zoomed(shape, focus.map, key != "minus", anchor))
        case "v":
            colour = COLOURS[(COLOURS.index(focus.map.colour_by) + 1) % len(COLOURS)]
            return focus.but(map=replace(focus.map, colour_by=colour))
        case "enter":
            return focus.but(inspecting=True, map=replace(focus.map, block=shape.first if cursor is None else cursor))
        case "o" if cursor is not None:
            return _select_owner(view, focus, cursor)
    return None


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A click sets the cursor; one on the block under the cursor opens the inspector."""
    shape, block = _at(frame, x, y, width, height)
    if shape is None or block is None:
        return None
    focus = frame.focus
    cursor = _cursor(shape, focus.map)
    if focus.panel == "blocks" and cursor is not None and shape.place_of(cursor) == shape.place_of(block):
        return focus.but(inspecting=True)
    return focus.but(panel="blocks", map=replace(focus.map, block=block, top=shape.first))


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    """Nearer or farther, with the block at the mouse kept where it is, and under the cursor."""
    shape, block = _at(frame, x, y, width, height)
    if shape is None or block is None:
        return None
    return frame.focus.but(panel="blocks", map=map_geometry.zoomed(shape, frame.focus.map, up, block))


def columns_for(blocks: int, inner: int, rows: int) -> int:
    """Blocks in a row where the whole pool is shown, or cells where a cell is several."""
    return map_geometry.fitting(blocks, inner, rows).columns


def legend(look: Look) -> list[tuple[str, str, str]]:
    """For the help: every glyph of the map, its role and what it means."""
    glyphs, mine = look.glyphs, map_glyphs(look.glyphs)
    mix = (f"{mine.mostly[0]} {mine.mostly[1]} {mine.mostly[2]}" if mine.mostly else
           f"{mix_glyph(2, 0)} {mix_glyph(0, 2)} {mix_glyph(2, 2)}")  # fmt: skip
    mixed = "a mix, mostly Free, Cached..." if mine.mostly else "a mix: left dots filled, right kept"
    return [
        (glyphs.free, "free", "free: nobody holds it"),
        (glyphs.reserved, "reserved", "reserved: no slot filled yet"),
        (glyphs.fills[:7], "text", "filling: height is its slots"),
        (glyphs.fills[7], "text", "full: held by one request"),
        ("2-9 @" if glyphs.ascii else f"{glyphs.shared} 2-9", "shared", "shared: held by several"),
        (glyphs.cached, "cached", "cached: findable, evictable"),
        (glyphs.hole, "hole", "free, but no reservation fits"),
        (glyphs.taken, "changed", "taken just now"),
        (glyphs.released, "changed", "let go of just now"),
        (glyphs.source, "copied", "copied just now: the original"),
        (glyphs.target, "copied", "copied just now: the copy"),
        (mix, "text", mixed),
        (mine.way[:4], "lit", "selected: where the next block is"),
        (f"{mine.way[4]} 1-9 a-z", "lit", "the next is elsewhere: where 2, 3 ... is"),
        (mine.way[5], "lit", "the last block of a selected table"),
    ]


def _at(frame: Frame, x: int, y: int, width: int, height: int) -> tuple[Geometry | None, int | None]:
    if frame.view is None:
        return None, None
    shape = geometry(len(frame.view.blocks), width - 2, height - 2, frame.focus.map)
    return shape, shape.block_at(x - 1, y - 1)


def _cursor(shape: Geometry, focus: MapFocus) -> int | None:
    return None if focus.block is None or not shape.blocks else min(focus.block, shape.blocks - 1)


def _select_owner(view: View, focus: Focus, block: int) -> Reaction:
    requests = [request for request, _ in map_paths.owners(view, block)]
    if not requests:
        return Say(f"nobody holds block {block:,}")
    after = requests.index(focus.request) + 1 if focus.request in requests else 0
    return focus.but(request=requests[after % len(requests)])


def _title(shape: Geometry) -> str:
    """What is shown of the pool, and how near."""
    text = "blocks"
    if not shape.whole:
        text += f" {shape.first:,} to {shape.last - 1:,} of {shape.blocks:,}"
    return f"{text}, {shape.per_cell:,} a cell" if shape.per_cell > 1 else text


def _parts(view: View, focus: Focus, shape: Geometry, shown: Lit | None, glyphs: Glyphs) -> list[list[Line]]:
    """What the bottom border tells beside the cursor's block, each in its variants from long to short."""
    parts: list[list[Line]] = []
    if shown is not None:
        parts.append([[(_path(view, shown, glyphs), "lit")]])
    elif focus.request is not None and focus.panel != "sharing":
        parts.append([[(f"{short_id(focus.request, NAME_WIDTH)}: holds no block", "lit")]])
    scale = _SCALES.get(focus.map.colour_by)
    if scale is not None:
        parts.append([[(scale[0], "dim"), *((f" {step}", f"heat{at}") for at, step in enumerate(scale[1]))]])
    parts.append([_legend(view, glyphs, gap) for gap in _GAPS])
    if shape.per_cell > 1:
        parts.append([_mix_key(glyphs)])
    return parts


def _bottom(lead: list[Line], parts: list[list[Line]], inner: int) -> tuple[Line, Line]:
    """At the left the longest of `lead` that fits, or the first part; at the right the parts, as long as all fit.

    Where they do not fit even at their shortest, the first of them that do.
    """
    first = next((variant for variant in lead if length(variant) <= inner - 3), lead[-1]) if lead else None
    for step in range(len(_GAPS)):
        chosen = [part[min(step, len(part) - 1)] for part in parts]
        left, others = (chosen[0], chosen[1:]) if first is None else (first, chosen)
        room = inner - 8 - length(left)
        right = join(others, ("  ", "border"), room)
        if length(left) <= inner - 3 and length(right) == sum(map(length, others)) + 2 * max(0, len(others) - 1):
            break
    return [(" ", "border"), *left, (" ", "border")], right


def _told(view: View, shape: Geometry, cells: Cells, cursor: int) -> tuple[str, ...]:
    """In words from long to short: the block under the cursor, or of a cell of several how many are in which state."""
    if shape.per_cell == 1:
        return block_detail.told(view, cursor)
    at = (cursor - shape.first) // shape.per_cell
    first = shape.first + at * shape.per_cell
    last = min(first + shape.per_cell, shape.blocks) - 1
    counts = cells.counts[at]
    mix = [f"{counts[state]:,} {name}" for state, name in enumerate((*NAMES, "too short")) if counts[state]]
    return (f"blocks {first:,} to {last:,}: {', '.join(mix)}",)


def _path(view: View, shown: Lit, glyphs: Glyphs) -> str:
    """What is lit in words: of a request's table how much is shared, its own and reserved, and how full its tail is."""
    blocks, size = view.blocks, view.engine.block_size
    if shown.request is None:
        held = f"held by {figures.plural(shown.sharers, 'request')}" if shown.sharers else "held by nobody now"
        others = f", {len(shown.others):,} of their own" if len(shown.others) else ""
        return f"prefix of {figures.plural(len(shown.path), 'block')}, {held}{others}"
    filled = blocks.filled[shown.path]
    shared = int((blocks.references[shown.path] > 1).sum())
    reserved = int((filled == 0).sum())
    own = len(shown.path) - shared - reserved
    text = f"{short_id(shown.request, NAME_WIDTH)}: {shared:,} shared {glyphs.arrow} {own:,} own"
    started = filled[filled > 0]
    if len(started):
        text += f", tail {started[-1]}/{size}"
    return f"{text}, {reserved:,} reserved" if reserved else text


def _with_position(lines: list[Line], shape: Geometry, look: Look) -> list[Line]:
    """The right border with a bar where in the pool the map is."""
    rows = len(lines) - 2
    begin = shape.first * rows // shape.blocks
    end = max(begin + 1, -(-shape.last * rows // shape.blocks))
    bar = (map_glyphs(look.glyphs).thumb, "value")
    return [[*line[:-1], bar] if begin < at <= end else line for at, line in enumerate(lines)]


def _shares(view: View, copies: int, room: int, look: Look) -> Line:
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
    if not copies:
        return shares
    # At the left end, so that nothing else moves when it comes and goes.
    marks: Line = [(look.glyphs.source + look.glyphs.target, "copied"), (" copied ", "dim"), (f"{copies:,}", "value")]
    return [*marks, gap, *shares] if length(marks) + 2 + length(shares) <= room else shares


def _legend(view: View, glyphs: Glyphs, gap: str) -> Line:
    """Each state's glyph and its blocks, from the engine's own totals; without a gap, without names too."""
    pool = view.pool
    states = [
        (glyphs.free, "free", "free", pool.free),
        (glyphs.reserved, "reserved", "reserved", pool.reserved),
        (glyphs.fills[3], "filling", "text", pool.filling),
        (glyphs.fills[7], "full", "text", pool.full),
        ("2-9" if glyphs.ascii else glyphs.shared, "shared", "shared", pool.shared),
        (glyphs.cached, "cached", "cached", pool.cached),
    ]
    line: Line = []
    for glyph, name, role, blocks in states:
        if line:
            line.append((gap or " ", "border"))
        between = f" {name} " if gap else " " if glyph[-1].isdigit() else ""
        line += [(glyph, role), (between, "dim"), (f"{blocks:,}", "text")]
    return line


def _mix_key(glyphs: Glyphs) -> Line:
    """How to read a cell of blocks in several states."""
    mine = map_glyphs(glyphs)
    if mine.mostly:
        return [("mix: letter of most", "dim")]
    return [("mix:", "dim"), (f" {mix_glyph(3, 0)}", "text"), ("filled ", "dim"), (mix_glyph(0, 3), "cached"),
            ("kept", "dim")]  # fmt: skip


def _waiting(frame: Frame, inner: int, rows: int) -> list[Line]:
    """Before the first snapshot: what is waited for, and what the engine that we started says."""
    link, status = frame.status.link, frame.status
    since, target = figures.seconds(link.seconds), clean(status.target)
    heading = {
        "starting": f"starting an engine: {since}",
        "connecting": f"waiting for {target}: {since}",
        "reconnecting": f"lost {target}, trying again: {since}",
        "down": f"the engine at {target} is down: {since}",
        "locked": f"{target} does not let this program in",
        "foreign": f"{target} is not a paged-engine",
        "cluster": f"engines of a cluster answer at {target}",
        "ended": "the engine ended",
        "live": "reading the first snapshot",
    }[link.phase]
    body: list[Line] = [[], [("  " + heading, "value")]]
    if link.detail:
        body += [[("  " + part, "bad" if link.phase in ("foreign", "ended", "locked") else "dim")]
                 for part in _wrapped(link.detail, inner - 4)]  # fmt: skip
    body.append([])
    space = rows - len(body)
    latest = status.log[-space:] if space > 0 else ()
    return [*body, *([("  " + clean(line)[: inner - 4], "dim")] for line in latest)]


def _wrapped(text: str, width: int) -> list[str]:
    return [clean(text[start:end]) for start, end in breaks(text, max(1, width))][:4]
