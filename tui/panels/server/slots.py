"""llama.cpp's slots as rows: which are busy, and how far each is. No other server tells single requests."""

from __future__ import annotations

from dataclasses import replace

from servers.slots import Slot
from tui import figures
from tui.commands import Reaction
from tui.focus import ServerFocus
from tui.look import Look
from tui.panels.line import Line, fit, length, spread
from tui.panels.server import words
from tui.panels.server.seen import Seen, server_of
from tui.view import Frame

_BAR = 60  # cells from which on a row shows how much of its context is used


def lines(seen: Seen, focus: ServerFocus, inner: int, count: int, look: Look) -> list[Line]:
    """Their names' row, and as many slots as fit from where the selected one is among them."""
    slots = seen.server.slots or ()
    top = top_of(slots, focus, count - 1)
    names = _columns(inner, "state", "prompt", "cached", "decoded", "held", "fits")
    out = [fit([(f" slot {names}", "dim")], inner)]
    for slot in slots[top : top + count - 1]:
        chosen = slot.id == focus.slot
        role = "selected" if chosen else seen.role("text" if slot.busy else "waiting")
        text = _columns(
            inner,
            "busy" if slot.busy else "idle",
            figures.count(slot.prompt_tokens),
            figures.count(slot.cached_tokens),
            figures.count(slot.decoded),
            figures.count(tokens(slot)),
            figures.count(slot.context),
        )
        line: Line = [(look.glyphs.right if chosen else " ", "selected"), (f"{slot.id:>4} {text}", role)]
        room = inner - length(line) - 3
        used = tokens(slot)
        if inner >= _BAR and room >= 6 and slot.context and used is not None:
            filled = min(room, round(room * used / slot.context))
            line += [("  ", "text"), (look.glyphs.line * filled, seen.role("speed"))]
            line.append((look.glyphs.rest * (room - filled), "faint"))
        out.append(line)
    return out[:count]


def tokens(slot: Slot) -> int | None:
    """Of its context in use, as far as told."""
    if slot.held is not None:
        return slot.held
    if slot.prompt_tokens is None and slot.decoded is None:
        return None
    return (slot.prompt_tokens or 0) + (slot.decoded or 0)


def _columns(inner: int, *cells: str) -> str:
    state, *numbers = cells
    shown = numbers if inner >= 58 else numbers[:4] if inner >= 48 else [numbers[0], numbers[3]]
    shown = shown if inner >= 30 else [numbers[3]]
    return f"{state:<5}" + "".join(f" {number:>8}" for number in shown)


def top_of(slots: tuple[Slot, ...], focus: ServerFocus, count: int) -> int:
    at = _place(slots, focus)
    return max(0, min((at or 0) - count // 2, len(slots) - count))


def _place(slots: tuple[Slot, ...], focus: ServerFocus) -> int | None:
    return next((at for at, slot in enumerate(slots) if slot.id == focus.slot), None)


def press(frame: Frame, key: str, count: int) -> Reaction:
    """Keys that walk the slots."""
    slots, focus = server_of(frame).slots or (), frame.focus
    if not slots:
        return None
    at = _place(slots, focus.server)
    moves = {
        "up": 0 if at is None else at - 1,
        "down": 0 if at is None else at + 1,
        "pageup": (at or 0) - count,
        "pagedown": (at or 0) + count,
        "home": 0,
        "end": len(slots) - 1,
    }
    if key == "enter":
        return focus.but(server=replace(focus.server, slot=slots[at or 0].id), inspecting=True)
    if key not in moves:
        return None
    chosen = slots[max(0, min(moves[key], len(slots) - 1))]
    return focus.but(server=replace(focus.server, slot=chosen.id))


def point(frame: Frame, y: int, count: int) -> Reaction:
    """A click on a row, the one of the names being 0, of `count` in all; on the selected one it opens the inspector."""
    slots, focus = server_of(frame).slots or (), frame.focus
    at = top_of(slots, focus.server, count - 1) + y - 1
    if not (0 < y < count and at < len(slots)):
        return None
    if slots[at].id == focus.server.slot:
        return focus.but(inspecting=True)
    return focus.but(server=replace(focus.server, slot=slots[at].id))


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    """The selected slot in full."""
    server = server_of(frame)
    slots = server.slots or ()
    at = _place(slots, frame.focus.server)
    if at is None:
        return "slot", words.told("no slot is selected", width)
    slot = slots[at]

    def row(name: str, value: str) -> Line:
        return [(" ", "text"), *spread([(name, "dim")], [(value, "value"), (" ", "text")], width - 1)]

    out = [
        row("state", "busy" if slot.busy else "idle"),
        row("task", figures.count(slot.task)),
        row("prompt tokens", figures.count(slot.prompt_tokens)),
        row("of them found in its cache", figures.count(slot.cached_tokens)),
        row("tokens decoded", figures.count(slot.decoded)),
        row("held in its context", figures.count(tokens(slot))),
        row("tokens that fit", figures.count(slot.context)),
        [],
        *words.told("an idle slot keeps its tokens for a prompt that begins so", width),
        *words.told("its texts are not kept here", width),
    ]
    return f"slot {slot.id}", out
