"""The prefix cache: what of the prompts was found, and with KV events the tree of what is resident, and its churn.

The events name blocks by what is in them: who holds them, and where, nobody tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from tui import figures
from tui.commands import Key, Reaction, Say
from tui.look import Look
from tui.panels.line import Line, spread
from tui.panels.server import choice, churn, plots, prefix_detail, prefix_runs, words
from tui.panels.server.prefix_runs import Forest, forest_of, rows_of
from tui.panels.server.seen import Seen, server_of
from tui.view import Frame

KEYS = (
    Key("up down", "with KV events: select a prefix run"),
    Key("+ -", "open and close it"),
    Key("enter", "all that is told of it"),
    Key("pgup pgdn", "a screen up or down"),
    Key("home end", "the first or the last run"),
    *choice.KEYS,
)
detail = prefix_detail.detail
_VALUES = 60  # cells at most to the end of a figure
_CHART = plots.FRAME_ROWS + 3  # rows of the chart of churn
_NARROW = 34  # cells, under which words are few
_UNITS = {"tokens": "tok", "blocks": "blk"}
_WHEEL = 3


@dataclass(frozen=True, slots=True)
class Layout:
    """Lines above the tree, its rows with the names of its columns, rows of the chart, and lines under all. `left_out`:
    there are more lines for above than rows."""

    above: list[Line]
    names: int
    tree: int
    chart: int
    below: list[Line]
    left_out: bool = False

    @classmethod
    def of(cls, seen: Seen, forest: Forest | None, inner: int, rows: int) -> Layout:
        above = _facts(seen, inner)
        below = _told(seen, inner)
        if forest is None:
            below = below[: max(0, rows - len(above))] if len(above) < rows else []
            return cls(above[:rows], 0, 0, 0, below, len(above) > rows)
        above.append(churn.words(seen, inner))
        whole = len(above)
        if rows < 6:
            above = above[: max(1, rows - 2)]
            below = below[: max(0, rows - len(above) - 1)][:1]
            return cls(above, 0, max(1, rows - len(above) - len(below)), 0, below, len(above) < whole)
        below = below[: max(1, rows // 4)]
        above = above[: max(1, rows - len(below) - 3)]
        left = rows - len(above) - len(below) - 1
        chart = _CHART if left >= _CHART + 6 else 0
        return cls(above, 1, max(1, left - chart), chart, below, len(above) < whole)


def draw(frame: Frame, width: int, height: int, look: Look, open_bottom: bool = False) -> list[Line]:
    seen, inner, rows = Seen.of(frame), width - 2, height - (1 if open_bottom else 2)
    forest = _forest(frame)
    layout = Layout.of(seen, forest, inner, rows)
    body = list(layout.above)
    if layout.left_out and body:
        body[-1] = words.marked(body[-1], inner, look.glyphs.more)
    right: Line = []
    if forest is not None:
        body += [prefix_runs.heads(forest, inner)] * layout.names
        shown = prefix_runs.lines(forest, frame.focus.server, inner, layout.tree, look, frame.prefixes)
        if not shown:
            said = " none is resident" if inner < _NARROW else " no prefix block is resident, as far as heard"
            shown = [[(said, "dim")]][: layout.tree]
        body += shown + [[]] * (layout.tree - len(shown))
        if layout.chart:
            body += churn.chart(seen, inner - 1, layout.chart, look)
        right = [(figures.plural(forest.blocks, "block"), "dim")]
    body = words.fitted([*body, *layout.below], rows, inner, look.glyphs.more)
    return choice.bordered(
        "sharing", "sharing", frame, seen, body, width, height, look, right, rates=True, open_bottom=open_bottom
    )


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    if (common := choice.press(frame, key)) is not None:
        return common
    forest, focus = _forest(frame), frame.focus
    if forest is None:
        return Say("there is no tree of prefixes here: it needs KV events") if key in ("up", "down", "enter") else None
    count = Layout.of(Seen.of(frame), forest, width - 2, height - 2).tree
    if key == "enter":
        if not len(forest):
            return None
        rows = rows_of(forest, focus.server, count)
        chosen = forest.name(rows.node(rows.here))
        return focus.but(server=prefix_detail.on(focus.server, chosen), inspecting=True)
    moved = prefix_runs.moved(forest, focus.server, key, count)
    return None if moved is None else focus.but(server=moved)


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A click selects the run of its row; again, it opens the inspector."""
    forest, focus = _forest(frame), frame.focus
    if forest is None or not len(forest):
        return None
    layout = Layout.of(Seen.of(frame), forest, width - 2, height - 2)
    rows = rows_of(forest, focus.server, layout.tree)
    at = rows.top + y - 1 - len(layout.above) - layout.names
    if not rows.top <= at < min(len(rows.nodes), rows.top + layout.tree):
        return None
    if at == rows.selected:
        return focus.but(inspecting=True)
    return focus.but(server=prefix_runs.selected(forest, focus.server, rows, at))


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    forest, focus = _forest(frame), frame.focus
    if forest is None:
        return None
    count = Layout.of(Seen.of(frame), forest, width - 2, height - 2).tree
    return focus.but(server=prefix_runs.scrolled(forest, focus.server, -_WHEEL if up else _WHEEL, count))


def _forest(frame: Frame) -> Forest | None:
    server = server_of(frame)
    return forest_of(server.kv, server.now) if server.kv else None


def _facts(seen: Seen, inner: int) -> list[Line]:
    """What was found in the cache in the window, by what the server counts; and its own gauge, called so."""
    counted_in = plots.unit_of_hits(seen)
    counted = f"prefix_queried_{counted_in}"
    # Early versions of vLLM raised the same counters by blocks, later ones by tokens.
    unit = "blocks or tokens" if counted_in == "blocks" and seen.server.kind == "vllm" else counted_in
    out: list[Line] = []
    measures = seen.measures
    if seen.tells(f"prefix_hit_{counted_in}"):
        queried = measures.growth.get(counted) if measures is not None else None
        hits = measures.growth.get(f"prefix_hit_{counted_in}") if measures is not None else None
        rate = measures.hit_rate if measures is not None else None
        short = inner < _NARROW
        found = "hit rate" if short else f"of {unit} looked up, found"
        out.append(_row(inner, found, figures.percent(rate), "shared"))
        brief = f"found {_UNITS[unit]}" if unit in _UNITS else "found"
        out.append(_row(inner, brief if short else f"found {unit}", figures.count(hits), "shared"))
        out.append(_row(inner, "looked up" if short else f"{unit} looked up", figures.count(queried)))
        at_end = words.AT_END in words.note(seen.server.kind, plots.as_it_happens(seen, "prompt_tokens"))
        if counted_in == "tokens" and at_end and not short:
            out += words.told(words.AT_END, inner)
        if rate is None and not short:
            out += words.told(seen.why(counted, "hit_rate") if queried is None else words.NONE_CAME, inner)
    elif not seen.tells("hit_rate") and inner < _NARROW:
        out.append(_row(inner, "hit rate", figures.NOT_MEASURED, "dim"))
    elif not seen.tells("hit_rate"):
        out += words.told(f"{figures.NOT_MEASURED} hit rate: {seen.why(counted, 'hit_rate')}", inner)
    if seen.tells("hit_rate"):
        out += _own(seen, inner)
    if seen.tells("physical_blocks"):
        named = ("tables hold", "in memory") if inner < _NARROW else ("blocks that tables hold", "blocks in memory")
        out.append(_row(inner, named[0], *_gauge(seen, "logical_blocks")))
        out.append(_row(inner, named[1], *_gauge(seen, "physical_blocks")))
        saved = seen.gauge("saved_bytes")
        value = figures.size(round(saved)) if saved is not None else figures.NOT_MEASURED
        out.append(_row(inner, "saved by sharing", value, seen.role("shared")))
    return out


def _own(seen: Seen, inner: int) -> list[Line]:
    """The server's own hit rate, of a time that it chooses."""
    rates = seen.gauges("hit_rate")
    shown = [figures.percent(rate) for _, rate in sorted(rates.items())]
    note = words.note(seen.server.kind, "hit_rate") or "over a time of its own"
    name = "its own rate" if inner < _NARROW else "the server's own rate"
    value = shown[0]
    if len(set(shown)) > 1:
        value = f"{figures.percent(min(rates.values()))} to {figures.percent(max(rates.values()))}"
    out = [_row(inner, name, value, seen.role("value"))]
    return out if inner < _NARROW else out + words.told(f"the server's own rate is {note}", inner)


def _gauge(seen: Seen, term: str) -> tuple[str, str]:
    return figures.count(seen.gauge(term)), seen.role("value")


def _row(inner: int, name: str, value: str, role: str = "value") -> Line:
    width = min(inner - 2, _VALUES)  # a name is cut before its figure
    return [(" ", "text"), *spread([(name[: max(0, width - len(value) - 1)], "dim")], [(value, role)], width)]


def _told(seen: Seen, inner: int) -> list[Line]:
    """What KV events leave open, or how to have them."""
    if seen.server.kv and inner < _NARROW:
        return prefix_detail.doubts(seen)
    if seen.server.kv:
        return prefix_detail.honesty(seen, inner)
    if inner < _NARROW:
        return words.told(words.NO_PREFIXES_BRIEF, inner)
    flag = words.kv_flag(seen.server.kind)
    if flag:
        return words.told(flag, inner)
    return words.told(f"which prefixes are resident: {words.missing(seen.server.kind, 'prefixes')}", inner)
