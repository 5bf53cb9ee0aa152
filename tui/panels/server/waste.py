"""Waste in slots, which our own engine's metrics have; of others what preemption did, and that the rest is not told."""

from __future__ import annotations

from tui import figures
from tui.look import Look
from tui.panels.line import Line, spread
from tui.panels.server import choice, plots, words
from tui.panels.server.seen import Seen
from tui.view import Frame

_NARROW = 34  # cells, under which words are few
_SLOTS = (  # term, name, of which term it is a share
    ("slots_held", "held", ""),
    ("slots_filled", "filled", "slots_held"),
    ("slots_internal", "internal", "slots_held"),
    ("slots_external", "external", ""),
)


def draw(frame: Frame, width: int, height: int, look: Look, top_joint: bool = False) -> list[Line]:
    seen, inner, rows = Seen.of(frame), width - 2, height - 2
    body = [*_slots(seen, inner, rows), *_lost(seen, inner)][:rows]
    if not seen.tells("slots_held"):
        said = words.NO_SLOTS if inner >= _NARROW else words.NO_SLOTS_BRIEF
        notes = words.told(seen.why("slots_held", "waste") if seen.reading is None else said, inner)
        body += words.fitted(notes, rows - len(body), inner, look.glyphs.more)
    return choice.bordered("ledgers", "waste", frame, seen, body, width, height, look, rates=True, top_joint=top_joint)


def _slots(seen: Seen, inner: int, rows: int) -> list[Line]:
    if not seen.tells("slots_held"):
        return []
    capacity = seen.gauge("kv_capacity")
    named = _SLOTS if rows >= 4 else _SLOTS[2:]
    out: list[Line] = []
    for term, name, of in named:
        value, whole = seen.gauge(term), seen.gauge(of) if of else capacity
        share = figures.ratio(value, whole) if value is not None and whole is not None else None
        role = seen.role("waste" if name in ("internal", "external") else "value")
        wide = 8 if inner >= _NARROW else 5
        left: Line = [(f" {name:<{wide + 1}}", "dim"), (f"{figures.count(value):>{wide}}", role)]
        words_of = (" of held" if of else " of pool") if inner >= 36 else ""
        out.append(spread(left, [(f"{figures.percent(share)}{words_of} ", role)], inner))
    return out


def _lost(seen: Seen, inner: int) -> list[Line]:
    """How often requests were preempted, in the window."""
    if not seen.tells("preemptions"):
        if inner < _NARROW:
            return [spread([(" preempted ", "dim")], [(f"{figures.NOT_MEASURED} ", "dim")], inner)]
        return words.told(f"{figures.NOT_MEASURED} preemptions: {seen.why('preemptions')}", inner)
    grown = seen.measures.growth.get("preemptions") if seen.measures is not None else None
    rate = plots.a_second(seen.rate("preemptions"))
    return [spread([(" preempted ", "dim"), (figures.count(grown), "waste")], [(f"{rate} ", "dim")], inner)]
