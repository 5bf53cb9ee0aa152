"""The last line: the keys that work here, or what was just said to or by the engine."""

from __future__ import annotations

from tui.controls import KEYED
from tui.look import Look
from tui.panels.line import Line, clean, join, length, spread
from tui.view import Frame


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    status = frame.status
    if status.notice:
        notice: Line = [(" ", "text"), (clean(status.notice), "bad" if status.notice_bad else "good")]
        return [spread(notice, [(clean(status.replay) + " ", "queue")] if status.replay else [], width)]
    parts: list[Line] = [[("q", "key"), (" quit", "dim")], [("?", "key"), (" help", "dim")]]
    pause = "resume" if status.paused else "pause"
    parts.append([("space", "key"), (f" {pause}", "dim")])
    if status.readonly:
        parts.append([(f"readonly: {' '.join(keyed.key for keyed in KEYED)} send nothing", "dim")])
    else:
        reserved = frame.view is not None and frame.view.control.allocation == "reserved"
        shown = [keyed for keyed in KEYED if reserved or keyed.field != "reserved_fit"]
        parts += [[(keyed.key, "key"), (f" {keyed.short}", "dim")] for keyed in shown]
    line: Line = [(" ", "text"), *join(parts, ("  ", "text"), width - 2)]
    replay: Line = [(clean(status.replay), "queue"), (" ", "text")] if status.replay else []
    if replay and length(line) + length(replay) > width - 1:
        line = [(" ", "text"), *join(parts, ("  ", "text"), width - 3 - length(replay))]
    return [spread(line, replay, width)]
