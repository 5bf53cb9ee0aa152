"""Every control and what it can be, the replay, and advice with its figures: what is sent is chosen here."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tui import controls, figures
from tui.advice import Suggestion
from tui.commands import Change, Key, Reaction, Replay, Say
from tui.controls import CONTROLS, NUMBERS, AnyControl, Number
from tui.look import Look
from tui.panels import compare, loads
from tui.panels.line import Line, box, clean, fit, length, spread
from tui.panels.measures import COMPARED
from tui.replay import FASTEST, SLOWEST, Load
from tui.view import Frame, View

KEYS: tuple[Key, ...] = (
    Key("up down", "select a line"),
    Key("enter", "the next value, ask for a number, start or stop the replay, apply advice"),
    Key("+ -", "double or halve a number, or the replay's speed"),
)
REPLAY_ROW = len(CONTROLS)
FIRST_ADVICE = REPLAY_ROW + 1
_PAGE = 5
_NAME, _VALUE = 17, 18  # cells of a name and of a value
_NARROW = 44  # cells, under which names are short
_COMPARED_CELLS = 40  # of a figure before and after

_UNIT = re.compile(r"(?<=\d) (?=(?:%|m?s)(?:\W|$))")
_TIE = "\u2060"  # stands for a space at which no line breaks

_MEANING = {
    "batching": "continuous: requests join and leave at every step. static: a batch ends with its longest member.",
    "allocation": "paged: blocks as they are needed. reserved: slots for the longest context, in one run.",
    "reserved_fit": "Which hole a reservation takes: the first that is long enough, or the shortest such.",
    "prefix_cache": "Whether prompts that begin alike share blocks that are computed already.",
    "max_num_seqs": "How many requests may run at once.",
    "max_num_batched_tokens": "How many tokens a step may compute, prompts and answers together.",
    "chunked_prefill": "Whether a prompt may be computed in parts, beside the answers of others.",
    "max_prefill_chunk": "The most tokens of one prompt in a step.",
    "scheduling_policy": "Who of those that wait is next.",
    "max_wait": "After how long a request goes first that shorter ones have passed.",
    "preempt": "What becomes of the KV of a request that must give its blocks up.",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the panel. `row`: what it selects, if anything; the cells of `value` are those that change it."""

    line: Line
    row: int | None = None
    value: range = range(0)


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    entries = _entries(frame, width - 2, look)
    top = _top(frame, entries, height - 2)
    right: Line = [(frame.status.fixed, "warn")] if frame.status.fixed else []
    body = [entry.line for entry in entries[top : top + height - 2]]
    return box("control", right, body, width, height, look.glyphs, front=frame.focus.panel == "control")


def press(frame: Frame, key: str, width: int, height: int) -> Reaction:
    row, last = _row(frame), _rows(frame) - 1
    match key:
        case "up" | "down":
            return _at(frame, row + (1 if key == "down" else -1))
        case "pageup" | "pagedown":
            return _at(frame, row + (_PAGE if key == "pagedown" else -_PAGE))
        case "home" | "end":
            return _at(frame, 0 if key == "home" else last)
        case "enter":
            return _enter(frame, row)
        case "plus" | "minus":
            return _scaled(frame, row, key == "plus")
    return None


def point(frame: Frame, x: int, y: int, width: int, height: int) -> Reaction:
    """A click on a line selects it, on its value it does what enter does."""
    entries = _entries(frame, width - 2, Look())
    at = _top(frame, entries, height - 2) + y - 1
    if not 0 < y < height - 1 or at >= len(entries) or entries[at].row is None:
        return None
    entry = entries[at]
    assert entry.row is not None
    return _enter(frame, entry.row) if x - 1 in entry.value else _at(frame, entry.row)


def wheel(frame: Frame, x: int, y: int, up: bool, width: int, height: int) -> Reaction:
    return _at(frame, _row(frame) + (-1 if up else 1))


def answer(frame: Frame, what: str, text: str) -> Reaction:
    """The number that was asked for."""
    if what not in NUMBERS:
        return None
    try:
        return _sent(frame, Change({what: NUMBERS[what].read(text)}))
    except ValueError as error:
        return Say(str(error), bad=True)


def detail(frame: Frame, width: int, look: Look) -> tuple[str, list[Line]]:
    """What the selected line is about."""
    row, view = _row(frame), frame.view
    if row >= FIRST_ADVICE and frame.advice:
        suggestion = frame.advice[row - FIRST_ADVICE]
        parts = [("", suggestion.why), *(("measured: ", line) for line in suggestion.evidence)]
        parts += [("expected: ", suggestion.expect), ("changes: ", _changes(suggestion, view, look))]
        return "advice", [line for name, text in parts for line in _wrapped(name, text, width)]
    if row >= REPLAY_ROW:
        return "replay", _wrapped("", _load_words(Load.of(frame.status.replay)), width)
    control = CONTROLS[row]
    lines = [*_wrapped("", _MEANING[control.field], width), *_wrapped("can be: ", control.allowed, width)]
    if view is None:
        return control.name, lines
    value = controls.reads(control.field, getattr(view.control, control.field))
    lines += _wrapped("is: ", f"{value}, in step {view.seq:,}", width)
    lines += _wrapped("here: ", _note(control, view), width) if _note(control, view) else []
    for switch in reversed(view.history.switches):
        old, new = (getattr(side, control.field) for side in (switch.before, switch.after))
        if old != new:
            words = f"{controls.reads(control.field, old)} {look.glyphs.arrow} {controls.reads(control.field, new)}"
            lines += _wrapped(f"from step {switch.seq:,}: ", words, width)
    return control.name, lines


# What keys do


def _rows(frame: Frame) -> int:
    return FIRST_ADVICE + len(frame.advice)


def _row(frame: Frame) -> int:
    return max(0, min(frame.focus.control.row, _rows(frame) - 1))


def _at(frame: Frame, row: int) -> Reaction:
    row = max(0, min(row, _rows(frame) - 1))
    return frame.focus.but(control=replace(frame.focus.control, row=row))


def _sent(frame: Frame, command: Reaction) -> Reaction:
    """The command, where anything may be sent."""
    if frame.status.fixed:
        return Say(frame.status.fixed, bad=True)
    if frame.view is None:
        return Say("there is no engine yet", bad=True)
    return command


def _enter(frame: Frame, row: int) -> Reaction:
    view = frame.view
    if view is None or frame.status.fixed:
        return _sent(frame, None)
    if row >= FIRST_ADVICE:
        return Change(dict(frame.advice[row - FIRST_ADVICE].changes))
    if row == REPLAY_ROW:
        load = Load.of(frame.status.replay)
        return Replay("stop" if load is not None and load.runs else "start")
    control = CONTROLS[row]
    now = getattr(view.control, control.field)
    if isinstance(control, Number):
        return control.ask(view.control)
    refused = controls.cannot(control.field, view.control, view.engine)
    value = control.after(now)
    while value in refused:
        value = control.after(value)
    if value == now:
        return Say(f"{control.name} stays {controls.word(now)}: {', '.join(refused.values())}", bad=True)
    return Change({control.field: value})


def _scaled(frame: Frame, row: int, up: bool) -> Reaction:
    """Twice or half of what a line has."""
    view = frame.view
    if row == REPLAY_ROW:
        load = Load.of(frame.status.replay)
        now = 1.0 if load is None else load.asked or load.speed
        speed = min(FASTEST, max(SLOWEST, now * (2.0 if up else 0.5)))
        if speed == now:
            return Say(f"a replay's speed is from {SLOWEST:g}x to {FASTEST:g}x", bad=True)
        return _sent(frame, Replay("speed", speed))
    if row >= REPLAY_ROW or not isinstance(CONTROLS[row], Number):
        return None
    if view is None:
        return _sent(frame, None)
    number = NUMBERS[CONTROLS[row].field]
    value = number.doubled(view.control) if up else number.halved(view.control)
    if value == getattr(view.control, number.field):
        return Say(f"{number.name} is {number.reads(value)}: it can be {number.allowed}", bad=True)
    return _sent(frame, Change({number.field: value}))


# What is drawn


def _top(frame: Frame, entries: Sequence[_Entry], rows: int) -> int:
    """The first line shown, so that the selected one is in the middle where not all fit."""
    selected = next((at for at, entry in enumerate(entries) if entry.row == _row(frame)), 0)
    if selected < rows // 2 + 1:
        return 0
    return max(0, min(len(entries) - rows, selected - rows // 2))


def _entries(frame: Frame, inner: int, look: Look) -> list[_Entry]:
    view = frame.view
    if view is None:
        return [_Entry([(" no engine yet", "dim")])]
    out = [_control(frame, view, row, inner, look) for row in range(len(CONTROLS))]
    out.append(_Entry(_last_change(view, look)))
    out.append(_replay(frame, inner, look))
    return [*out, *_loads(frame, inner, look), *_advice(frame, inner, look), *_compared(view, inner, look)]


def _mark(frame: Frame, row: int, look: Look) -> Line:
    selected = row == _row(frame)
    front = selected and frame.focus.panel == "control"
    return [(look.glyphs.right if selected else " ", "lit" if front else "dim")]


def _control(frame: Frame, view: View, row: int, inner: int, look: Look) -> _Entry:
    control = CONTROLS[row]
    narrow = inner < _NARROW
    names, values = (14, 0) if narrow else (_NAME, _VALUE)
    value = controls.reads(control.field, getattr(view.control, control.field))
    idle = bool(controls.idle(control.field, view.control, view.engine))
    line: Line = [*_mark(frame, row, look), (f"{control.key:<2}", "key")]
    line.append((f"{control.short if narrow else control.name:<{names}}"[:names], "dim"))
    begins = length(line)
    role = "cursor" if row == _row(frame) and frame.focus.panel == "control" else "dim" if idle else "value"
    line += [(value, role), (" " * max(1, values - len(value)), "text")]
    if not narrow:
        line.append((_note(control, view) or control.allowed, "dim"))
    return _Entry(line, row, range(begins, begins + len(value)))


def _note(control: AnyControl, view: View) -> str:
    """What stands against changing it here."""
    refused = controls.cannot(control.field, view.control, view.engine)
    notes = [controls.idle(control.field, view.control, view.engine)]
    notes += [f"{controls.word(choice)}: {why}" for choice, why in refused.items() if why not in notes[0]]
    return ", ".join(note for note in notes if note)


def _words(pairs: Sequence[tuple[str, str]], look: Look) -> str:
    return clean(", ".join(f"{old} {look.glyphs.arrow} {new}" for old, new in pairs))


def _last_change(view: View, look: Look) -> Line:
    """What the engine took last, and from which step on."""
    if not view.history.switches:
        return [(f" {look.glyphs.switch} ", "switch"), ("no control was changed since this screen began", "dim")]
    last = view.history.switches[-1]
    words = _words(controls.changes(last.before, last.after), look)
    since = f" from step {last.seq:,}, {figures.seconds(view.now - last.time)} ago"
    return [(f" {look.glyphs.switch} ", "switch"), (words, "value"), (since, "dim")]


def _load_words(load: Load | None) -> str:
    if load is None:
        return "none was started from here; enter starts one"
    state = {
        "waits": "waits",
        "running": f"running {load.took}",
        "stopping": f"stopping {load.took}",
        "done": f"done in {load.took}",
        "stopped": f"stopped after {load.took}",
        "failed": f"failed with exit code {load.code} after {load.took}",
    }[load.state]
    done = f", {load.done:,} of {load.sessions:,} sessions" if load.done is not None else ""
    asked = f" (asked for {load.asked:g}x)" if load.asked is not None else ""
    return clean(f"{state}, {load.speed:g}x{asked}, {load.trace}{done}")


def _replay(frame: Frame, inner: int, look: Look) -> _Entry:
    load = Load.of(frame.status.replay)
    line: Line = [*_mark(frame, REPLAY_ROW, look), ("R ", "key"), (f"{'replay':<{_NAME}}", "dim")]
    begins, words = length(line), _load_words(load)
    role = "cursor" if _row(frame) == REPLAY_ROW and frame.focus.panel == "control" else "queue"
    return _Entry([*line, (words, role)], REPLAY_ROW, range(begins, min(inner, begins + len(words))))


def _loads(frame: Frame, inner: int, look: Look) -> list[_Entry]:
    """Load generators that play against this engine, whoever started them, with all that they told."""
    if not frame.loads:
        return []
    title: Line = [(" load generators", "title"), ("  as they measured it themselves", "dim")]
    told = [line for load in frame.loads for line in loads.details(frame, load, inner, look)]
    return [_Entry([]), _Entry(title), *(_Entry(line) for line in told)]


def _changes(suggestion: Suggestion, view: View | None, look: Look) -> str:
    now: dict[str, Any] = {} if view is None else {field: getattr(view.control, field) for field in suggestion.changes}
    pairs = [
        (f"{controls.named(field)} {controls.reads(field, now[field])}" if field in now else controls.named(field),
         controls.reads(field, value))
        for field, value in suggestion.changes.items()
    ]  # fmt: skip
    return _words(pairs, look)


def _advice(frame: Frame, inner: int, look: Look) -> list[_Entry]:
    out = [_Entry([]), _Entry([(" advice", "title"), ("  y tries the first, u undoes", "dim")])]
    if not frame.advice:
        still = frame.status.past is not None
        words = "none while the view stands still" if still else "none: nothing measured asks for a change"
        return [*out, _Entry([(f"   {words}", "dim")])]
    for at, suggestion in enumerate(frame.advice):
        row = FIRST_ADVICE + at
        key = "y " if at == 0 else "  "
        role = "cursor" if row == _row(frame) and frame.focus.panel == "control" else "value"
        words = _changes(suggestion, frame.view, look)
        first: Line = [*_mark(frame, row, look), (key, "key"), (words, role)]
        out.append(_Entry(first, row, range(3, 3 + len(words))))
        texts = [(suggestion.why, "text"), *((line, "dim") for line in suggestion.evidence)]
        texts.append((f"expected: {suggestion.expect}", "dim"))
        for text, shade in texts:
            pieces = _wrap(text, inner - 6)
            out += [_Entry([("     " if at else "   ", "text"), (line, shade)], row) for at, line in enumerate(pieces)]
    return out


def _compared(view: View, inner: int, look: Look) -> list[_Entry]:
    """Figures of equal windows on the two sides of the last change."""
    if not view.history.switches:
        return []
    comparison = compare.comparison_of(view)
    if comparison is None:
        return [_Entry([]), *(_Entry(line) for line in compare.table(view, None, inner, 1, look))]
    title: Line = [(" before and after ", "title"), (compare.changed(comparison, look), "value")]
    had = figures.seconds(comparison.after.observed)
    out = [_Entry([]), _Entry(spread(title, [(f"{had} each ", "dim")], inner))]
    cells = [compare.cell(measure, comparison, look) for measure in COMPARED]
    beside = max(1, inner // _COMPARED_CELLS)
    rows = [cells[at : at + beside] for at in range(0, len(cells), beside)]
    return [*out, *(_Entry([span for cell in row for span in fit(cell, inner // beside)]) for row in rows)]


@lru_cache(256)
def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width`; a figure stays with its unit."""
    tied = _UNIT.sub(_TIE, clean(text))
    return [line.replace(_TIE, " ") for line in textwrap.wrap(tied, max(10, width))] or [""]


def _wrapped(name: str, text: str, width: int) -> list[Line]:
    return [[(" ", "text"), (line, "text")] for line in _wrap(name + text, width - 1)]
