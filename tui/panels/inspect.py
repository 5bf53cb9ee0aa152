"""The inspector: what is selected in the panel in front, told in full in a box over the others."""

from __future__ import annotations

from tui.look import Look
from tui.panels import sets
from tui.panels.line import Line, box
from tui.view import Frame


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    """The details from line `focus.inspect_top` on; the border says how many there are beyond it."""
    title, lines = details(frame, width - 2, look)
    rows = height - 2
    top = min(frame.focus.inspect_top, max(0, len(lines) - rows))
    below = len(lines) - top - rows
    more: Line = [(f"{below:,} more lines: J K", "dim")] if below > 0 else [("esc closes", "dim")]
    return box(title, more, lines[top : top + rows], width, height, look.glyphs, front=True)


def details(frame: Frame, inner: int, look: Look) -> tuple[str, list[Line]]:
    """Title and lines of what is selected."""
    detail = getattr(sets.of(frame).modules[frame.focus.panel], "detail", None)
    if detail is None or (frame.kind == "steps" and frame.view is None):
        return frame.focus.panel, [[(" nothing to inspect here", "dim")]]
    title, lines = detail(frame, inner, look)
    return title, lines
