"""One line of time: where the frozen picture lies in what is kept, or how far a recording has been played."""

from __future__ import annotations

from math import isfinite

from tui import figures
from tui.look import Look
from tui.panels.line import Line, clean, fit, length
from tui.view import Frame, Past, Playing


def wanted(frame: Frame) -> bool:
    """Whether there is a time to show other than now."""
    return frame.status.past is not None or frame.status.playing is not None


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    status = frame.status
    if status.past:
        return [_past(status.past, width, look)]
    return [_playing(status.playing, width, look)] if status.playing else [[]]


def share(frame: Frame, x: int, width: int) -> float | None:
    """The part of the bar at cell `x`, from 0 to 1; None outside of it."""
    if frame.status.past is None:
        return None
    left, bar = _bar_place(frame.status.past, width)
    return (x - left) / max(1, bar - 1) if left <= x < left + bar else None


def _words(past: Past) -> tuple[str, str]:
    """What stands on the two sides of the bar, as wide at every step, so that the bar stays where it is."""
    wide = len(f"{past.last:,}")
    newer, back = past.last - past.seq, figures.seconds(past.behind)
    return (
        f" {past.unit} {past.seq:>{wide},}  {past.first:,} ",
        f" {past.last:,}  {newer:>{wide},} since, {back:>8} back ",
    )


def _bar_place(past: Past, width: int) -> tuple[int, int]:
    """Where the bar begins, and its length; 0 where there is no room."""
    left, right = _words(past)
    return len(left) + 1, max(0, width - len(left) - len(right) - 2)


def _past(past: Past, width: int, look: Look) -> Line:
    left, right = _words(past)
    head: Line = [(look.glyphs.paused, "key"), (left, "value")]
    _, bar = _bar_place(past, width)
    if bar < 8:
        return fit([*head, (right, "dim")], width)
    at = round((past.seq - past.first) / max(1, past.last - past.first) * (bar - 1))
    line = [(look.glyphs.line * at, "mode"), (look.glyphs.live, "key"), (look.glyphs.rest * (bar - at - 1), "faint")]
    return fit([*head, *line, (right, "dim")], width)


def _playing(playing: Playing, width: int, look: Look) -> Line:
    state = "ended" if playing.ended else "playing" if playing.running else "stopped"
    head: Line = [
        (f" {state} ", "value"),
        (f"{figures.clock(playing.position)}", "value"),
        (f" of {figures.clock(playing.duration)}" if playing.duration is not None else "", "dim"),
        (f"  {_pace(playing.speed)}", "dim"),
    ]
    tail: Line = [(f"  next record in {figures.seconds(playing.waits)}", "dim")] if playing.waits > 1 else []
    if playing.ended and playing.note:
        tail = [(f"  {clean(playing.note)}", "warn")]
    bar = width - length(head) - length(tail) - 3
    if playing.duration and bar >= 8:
        at = min(bar - 1, round(playing.position / playing.duration * (bar - 1)))
        head += [("  ", "text"), (look.glyphs.line * at, "mode"), (look.glyphs.live, "key")]
        head += [(look.glyphs.rest * (bar - at - 1), "faint")]
    return fit([*head, *tail], width)


def _pace(speed: float) -> str:
    if speed == 1:
        return "as fast as it was"
    return f"{speed:g} times as fast" if isfinite(speed) else "read at once"
