"""KV memory: how much of it is used, now and over time, and with KV events which prefixes are in it.

Of our own engine the states of its blocks too, which its metrics have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tui import figures
from tui.commands import Key, Reaction, Say
from tui.look import Look
from tui.panels.line import Line, clean, fit, join, length
from tui.panels.server import choice, plots, prefix_detail, prefix_map, slots, words
from tui.panels.server.prefix_runs import Forest, forest_of
from tui.panels.server.seen import Seen, name_of, server_of
from tui.view import Frame

KEYS = (
    Key("arrows", "with KV events: move the cursor by a prefix run or a row"),
    Key("enter", "tell all about the run"),
    Key("home end", "the first or the last run"),
    *choice.KEYS,
)
detail = prefix_detail.detail
_LARGE = plots.FRAME_ROWS + 2  # rows of a chart with a scale, at least
_BESIDE = 70  # cells, from which on two engines stand on a line
_BRIEF = 50  # cells, under which it is said in short why there is no map
_SPARK = 8  # rows of a map, from which on a line of how full it was over time is over it
_STATES = (  # of our engine's blocks: term, word, role
    ("blocks_shared", "shared", "shared"),
    ("blocks_full", "full", "value"),
    ("blocks_filling", "filling", "speed"),
    ("blocks_reserved", "reserved", "reserved"),
    ("blocks_cached", "cached", "cached"),
    ("blocks_free", "free", "free"),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Lines above the map or the chart, those below, and the rows between them. `mapped`: there is a map."""

    above: list[Line]
    below: list[Line]
    rows: int
    mapped: bool

    @classmethod
    def of(cls, seen: Seen, forest: Forest | None, inner: int, rows: int, look: Look) -> Layout:
        above = _usage(seen, inner, look)
        if seen.several and seen.engine is None:
            few = max(rows // 3 - 1, min(len(seen.server.engines), rows - 6))
            free = rows - len(above) - (len(_told(seen, forest, inner, look)) if forest else 2) - 1
            above += _engines(seen, inner, few, max(few, free), look)
        above += _states(seen, inner, look)
        below = _told(seen, forest, inner, look)
        mapped = forest is not None and len(forest) > 0
        least = 1 if mapped else 0
        if len(above) + len(below) + least > rows:  # what is measured goes before why the rest is not
            below = below[: max(1, rows - len(above) - least)]
        if len(above) + len(below) + least > rows:
            above = above[: max(1, rows - len(below) - least)]
        left = max(0, rows - len(above) - len(below))
        if forest is not None and mapped and left > _SPARK and plots.KV.told(seen):
            return cls._over_time(seen, forest, inner, above, below, left, look)
        return cls(above, below, left, mapped)

    @classmethod
    def _over_time(
        cls, seen: Seen, forest: Forest, inner: int, above: list[Line], below: list[Line], left: int, look: Look
    ) -> Layout:
        """A map below how full the memory was: a chart where the map needs less than half of the rows, else a line."""
        chart = left // 2
        if chart >= _LARGE and -(-forest.blocks // inner) < left - chart:
            above = [*above, *plots.large(seen, (plots.KV,), inner - 1, chart, look), []]
            left -= chart + 1
        else:
            label = f" last {figures.seconds(seen.window)} "
            above = [*above, [(label, "dim"), *plots.spark(seen, plots.KV, inner - len(label) - 1, look)], []]
            left -= 2
        return cls(above, below, left, True)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    seen, inner, rows = Seen.of(frame), width - 2, height - 2
    forest = _forest(frame)
    layout = Layout.of(seen, forest, inner, rows, look)
    body, below = list(layout.above), layout.below
    right: Line = []
    if layout.mapped and forest is not None:
        front = frame.focus.panel == "blocks"
        cells = prefix_map.lines(forest, frame.focus.server, inner, layout.rows, front, look)
        body += cells + [[]] * (layout.rows - len(cells))
        under = prefix_map.cursor(forest, frame.focus.server, inner, look, frame.prefixes) if front else []
        below = [under, *below[:-1]] if under and below else below  # instead of what colours mean
        each = prefix_map.Shape.of(forest, inner, layout.rows).per_cell
        right = [(figures.plural(forest.blocks, "prefix block") + (f", {each:,} a cell" if each > 1 else ""), "dim")]
    elif layout.rows >= _LARGE and plots.KV.told(seen):
        body += plots.large(seen, (plots.KV,), inner - 1, layout.rows, look)
    elif layout.rows and plots.KV.told(seen):
        body += [[(" ", "text"), *line] for line in plots.bare(seen, plots.KV, inner - 2, layout.rows, look)]
    elif layout.rows >= 2 and seen.server.slots:
        body += [[], *slots.lines(seen, frame.focus.server, inner, layout.rows - 1, look)]
        body += [[]] * (len(layout.above) + layout.rows - len(body))
    else:
        body += [[]] * layout.rows
    return choice.bordered("blocks", "blocks", frame, seen, [*body, *below], width, height, look, right)


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    if (common := choice.press(frame, key)) is not None:
        return common
    forest, focus = _forest(frame), frame.focus
    if forest is None or not len(forest):
        if key in ("up", "down", "left", "right", "home", "end", "pageup", "pagedown", "enter"):
            return Say("there is no map of this server's blocks: it needs KV events")
        return None
    if key == "enter":
        run = focus.server.run if forest.index_of(focus.server.run) is not None else forest.name(0)
        return focus.but(server=prefix_detail.on(focus.server, run), inspecting=True)
    layout = Layout.of(Seen.of(frame), forest, width - 2, height - 2, Look())
    moved = prefix_map.moved(forest, focus.server, key, width - 2, layout.rows)
    return None if moved is None else focus.but(server=moved)


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A click sets the cursor; one on the run under the cursor opens the inspector."""
    forest, focus = _forest(frame), frame.focus
    if forest is None or not len(forest):
        return None
    layout = Layout.of(Seen.of(frame), forest, width - 2, height - 2, Look())
    row = y - 1 - len(layout.above)
    if not 0 <= row < layout.rows:
        return None
    at = prefix_map.at(forest, x - 1, row, width - 2, layout.rows)
    if at is None:
        return None
    if forest.name(at) == focus.server.run:
        return focus.but(inspecting=True)
    return focus.but(panel="blocks", server=prefix_detail.on(focus.server, forest.name(at)))


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    return press(frame, "up" if up else "down", width, height) if _forest(frame) is not None else None


def _forest(frame: Frame) -> Forest | None:
    server = server_of(frame)
    return forest_of(server.kv, server.now) if server.kv else None


def usage(seen: Seen) -> float | None:
    """The share of KV memory in use; over several engines only where the capacity of each is known."""
    shares, capacities = seen.gauges("kv_usage"), seen.gauges("kv_capacity")
    if len(shares) > 1 and not all(capacities.get(engine, 0.0) > 0 for engine in shares):
        return None
    return seen.gauge("kv_usage")


def _usage(seen: Seen, inner: int, look: Look) -> list[Line]:
    """How full it is, of how much, in what blocks."""
    facts, share, capacity = seen.server.facts, usage(seen), seen.gauge("kv_capacity")
    if not seen.tells("kv_usage"):
        return words.told(f"{figures.NOT_MEASURED} KV memory: {seen.why('kv_usage', 'blocks')}", inner)
    parts: list[Line] = [[(figures.percent(share), seen.role("value")), (" of KV memory used", "dim")]]
    if share is None:
        shares = seen.gauges("kv_usage").values()
        between = f"{figures.percent(min(shares))} to {figures.percent(max(shares))}"
        parts = [[(between, seen.role("value")), (f" used, by {figures.plural(len(shares), 'engine')}", "dim")]]
        parts.append([(seen.doubt("kv_usage") or "how much each has is not told: no mean", "dim")])
    used = seen.gauge("kv_used")
    if capacity:
        if used is not None:
            parts.append([(figures.count(used), seen.role("value")), (f" of {capacity:,.0f} tokens", "text")])
        elif share is not None:
            about = "~" if share else ""  # the share may be of one block less: of those that requests can have
            held = f"{about}{share * capacity:,.0f}"
            parts.append([(held, seen.role("value")), (f" of {capacity:,.0f} tokens", "text")])
    if facts.get("block_size"):
        parts.append([(_blocks(facts, seen.several), "text")])
    if facts.get("kv_dtype"):
        parts.append([(f"type {clean(facts['kv_dtype'])}", "text")])
    line: Line = [(" ", "text"), *join(parts, (f" {look.glyphs.dot} ", "dim"), inner - 2)]
    out = [line]
    if not capacity and share is not None and inner >= 60:
        out += words.told(f"how much that is, is not told: {seen.why('kv_capacity', 'blocks')}", inner)
    if share is not None:
        out.append(_bar(share, inner - 2, seen.role("shared"), look))
    return out


def _blocks(facts: Mapping[str, str], several: bool) -> str:
    """How many blocks of how many tokens: of each engine, where there are several."""
    size = clean(facts["block_size"])
    if not facts.get("blocks"):
        return f"blocks of {size}"
    counts = [f"{int(one):,}" if one.isdecimal() else clean(one) for one in facts["blocks"].split(", ")]
    return f"{' or '.join(counts)} blocks of {size}{' each' if several else ''}"


def _bar(share: float, width: int, role: str, look: Look) -> Line:
    filled = max(1 if share > 0 else 0, round(min(1.0, share) * width))
    return [(" ", "text"), (look.glyphs.line * filled, role), (look.glyphs.rest * (width - filled), "faint")]


def _engines(seen: Seen, inner: int, few: int, most: int, look: Look) -> list[Line]:
    """Each engine's share: shares of different memories do not add up. On a line of its own where that takes a `few`
    lines, else two on a line where there is room, on `most` lines."""
    engines, shares, capacities = seen.server.engines, seen.gauges("kv_usage"), seen.gauges("kv_capacity")
    names = {engine: name_of(engine, engines) for engine in shares}
    beside = 2 if len(shares) > few and inner >= _BESIDE else 1
    width = inner // beside
    wide = min(max((len(name) for name in names.values()), default=0), max(8, width // 3))
    cells: list[Line] = []
    for engine, share in sorted(shares.items()):
        line: Line = [(f" {names[engine][:wide]:<{wide}} ", "dim")]
        line.append((f"{figures.percent(share):>6} ", seen.role("value")))
        capacity = capacities.get(engine)
        of: Line = [(f" of {capacity:,.0f} tokens ", "dim")] if capacity and width >= 60 else []
        room = width - length(line) - length(of) - 1
        bar = _bar(share, room, seen.role("shared"), look)[1:] if room >= 4 else []
        cells.append(fit([*line, *bar, *of], width))
    out: list[Line] = [
        [span for cell in cells[at : at + beside] for span in cell] for at in range(0, len(cells), beside)
    ]
    if len(out) > most and most > 0:
        left = len(shares) - (most - 1) * beside
        out = [*out[: most - 1], fit([(f" {look.glyphs.more} and {left:,} engines more: v shows each", "dim")], inner)]
    return out[: max(0, most)]


def _states(seen: Seen, inner: int, look: Look) -> list[Line]:
    """Of our own engine: how many blocks are in each state."""
    if not seen.tells("blocks_free"):
        return []
    counts = [(word, role, seen.gauge(term) or 0.0) for term, word, role in _STATES]
    parts: list[Line] = [[(f"{count:,.0f}", seen.role(role)), (f" {word}", "dim")] for word, role, count in counts]
    head = "blocks: " if inner >= 60 else ""
    return [[(f" {head}", "dim"), *join(parts, ("  " if inner >= 60 else " ", "text"), inner - len(head) - 1)]]


def _told(seen: Seen, forest: Forest | None, inner: int, look: Look) -> list[Line]:
    """What the map is, or why there is none."""
    server = seen.server
    if server.kv:
        brief = inner < _BRIEF
        told = prefix_detail.doubts(seen) if brief else prefix_detail.honesty(seen, inner)
        if forest is None or not len(forest):
            return told
        title = prefix_map.TITLE_BRIEF if brief else prefix_map.TITLE
        return [*words.told(title, inner), *told, *prefix_map.legend(forest, inner, look)]
    if seen.reading is None:  # why nothing is told at all is said already
        return []
    if inner < _BRIEF:
        return words.told(words.NO_MAP_BRIEF, inner)
    if server.kind == "paged-engine":
        return words.told(f"no map of its blocks here: {words.steps(seen.steps)}", inner)
    further = words.MAP_BY_PREFIX if words.kv_flag(server.kind) else ""
    why = words.NO_MAP if seen.tells("kv_usage") else f"no map of blocks: {words.missing(server.kind, 'blocks')}"
    return words.told(why, inner) + (words.told(further, inner) if further else [])
