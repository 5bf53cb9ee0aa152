"""The last line: the keys that work here, or what was just said to, by or of the engine."""

from __future__ import annotations

from tui.focus import back
from tui.keys import offered
from tui.look import Look
from tui.panels import sets
from tui.panels.line import Line, clean, cut, join, length, spread
from tui.view import Frame

UNCHECKED = "certificates not checked"


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    status = frame.status
    doing = ", ".join(words for words in (status.recording, status.replay) if words)
    right: Line = [(clean(doing), "queue"), (" ", "text")] if doing else []
    if status.unchecked:
        right = [(UNCHECKED, "bad"), (" ", "text"), *right]
    told, is_bad = (status.notice, status.notice_bad) if status.notice else (status.link.news, True)
    if told:
        notice: Line = [(" ", "text"), (clean(told), "bad" if is_bad else "good")]
        right = right if length(notice) + length(right) < width else []
        return [spread(cut(notice, width - 1, look.glyphs.more), right, width)]
    room = width - 2
    if right and length(right) + 40 <= width:
        room -= length(right) + 1
    return [spread([(" ", "text"), *join(_parts(frame), ("  ", "text"), room)], right, width)]


def _parts(frame: Frame) -> list[Line]:
    status = frame.status
    still = status.past is not None or (status.playing is not None and not status.playing.running)
    names = {"pause": "go on" if still else "pause"}
    able = [key for key in offered(frame) if key.brief and not (key.sends and status.fixed)]
    reserved = frame.view is not None and frame.view.control.allocation == "reserved"
    able = [key for key in able if reserved or key.action != "switch('reserved_fit')"]
    own = sets.of(frame).modules[frame.focus.panel].KEYS[:3]
    parts: list[Line] = [_part("esc", _out(frame))] if status.back else []
    parts += [_part(key.shown.split()[0], names.get(key.brief, key.brief)) for key in able[:4]]
    if status.playing is not None:
        parts += [_part("[ ]", "speed"), _part(". n", "step, event")]
    elif status.fixed and frame.kind == "steps":
        parts.append([(status.fixed, "dim")])
    if frame.focus.expanded or frame.kind == "fleet":
        parts += [_part(key.keys, key.does) for key in own]
    return parts + [_part(key.shown.split()[0], key.brief) for key in able[4:]]


def _out(frame: Frame) -> str:
    """What escape does now, where in the end it leads somewhere."""
    focus, after = frame.focus, back(frame.focus, frame.kind)
    if focus.helping or focus.inspecting:
        return "close"
    if focus.expanded:
        return "all panels"
    if after is not None:
        return "blocks" if after.panel != focus.panel else "unselect"
    return "go on" if frame.status.past is not None else frame.status.back


def _part(key: str, does: str) -> Line:
    return [(key, "key"), (f" {does}", "dim")]
