"""Requests: no metrics tell single ones. What is told: llama.cpp's slots, how requests ended, and mean lengths."""

from __future__ import annotations

from tui import figures
from tui.commands import Key, Reaction, Say
from tui.look import Look
from tui.panels.line import Line, clean
from tui.panels.server import choice, plots, slots, words
from tui.panels.server.seen import Seen
from tui.view import Frame

KEYS = (
    Key("up down", "of llama.cpp: select a slot"),
    Key("enter", "of llama.cpp: all that is told of the slot"),
    *choice.KEYS,
)
detail = slots.detail
_REASONS = ("finished_reason", "finish_reason", "reason", "status")  # labels that say how a request ended


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    seen, inner, rows = Seen.of(frame), width - 2, height - 2
    body: list[Line] = []
    if seen.server.slots:
        count = _slot_rows(seen, rows)
        body += [*slots.lines(seen, frame.focus.server, inner, count, look), []]
    elif seen.server.kind == "paged-engine":
        body += [*words.told(f"single requests: {words.steps(seen.steps)}", inner), []]
    else:
        body += words.told(f"{figures.NOT_MEASURED} {words.NO_REQUESTS}", inner)
        if seen.server.kind == "llama.cpp":
            body += words.told(f"its slots tell of them: {words.missing(seen.server.kind, 'slots')}", inner)
        body.append([])
    body += _ended(seen, inner)
    title = f"requests, last {figures.seconds(seen.window)}"
    return choice.bordered("requests", title, frame, seen, body[:rows], width, height, look, rates=True)


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    if (common := choice.press(frame, key)) is not None:
        return common
    if (walked := slots.press(frame, key, max(1, height - 9))) is not None:
        return walked
    return Say(words.NO_REQUESTS) if key in ("up", "down", "enter", "x") else None


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    return slots.press(frame, "up" if up else "down", max(1, height - 9))


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A click selects a slot of llama.cpp; again, it opens the inspector."""
    return slots.point(frame, y - 1, _slot_rows(Seen.of(frame), height - 2))


def _slot_rows(seen: Seen, rows: int) -> int:
    """Of the slots and their names, over what ended."""
    return min(len(seen.server.slots or ()) + 1, max(2, rows - 6))


def _ended(seen: Seen, inner: int) -> list[Line]:
    """How many ended in the window, how long they were, and how all of them ended since the server started."""
    measures = seen.measures
    out: list[Line] = []
    if seen.tells("requests"):
        grown = measures.growth.get("requests") if measures is not None else None
        note = plots.a_second(seen.rate("requests")) if grown is not None else seen.why("requests", "requests")
        out.append(choice.fact("ended", figures.count(grown), inner, note=note))
    else:
        out += words.told(f"{figures.NOT_MEASURED} ended: {seen.why('requests', 'requests')}", inner)
    for term, name in (("prompt_length", "mean prompt"), ("generation_length", "mean answer")):
        if not seen.tells(term):
            continue
        count, mean = (measures.count(term), measures.mean(term)) if measures is not None else (None, None)
        of = f"over {figures.plural(round(count), 'request')}" if count else seen.why(term, "requests")
        value = f"{figures.count(mean)} tokens" if mean is not None else figures.NOT_MEASURED
        out.append(choice.fact(name, value, inner, note=of))
    reasons = by_reason(seen)
    if reasons:
        out.append([(" ended since the server started, by reason", "dim")])
        out += [choice.fact(f"  {clean(reason)}", figures.count(value), inner) for reason, value in reasons]
    return out


def by_reason(seen: Seen) -> list[tuple[str, float]]:
    """How many requests ended in which way since the server started, the most frequent first."""
    found: dict[str, float] = {}
    for labels, value in (seen.reading.counters.get("requests", {}) if seen.reading is not None else {}).items():
        reason = next((of for name, of in labels if name in _REASONS), None)
        if reason is not None:
            found[reason] = found.get(reason, 0.0) + value
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))
