"""The inspector over a server's panels: what is selected in the one in front, in full."""

from __future__ import annotations

from tui.look import Look
from tui.panels.line import Line, box, clean
from tui.panels.server import batch, blocks, control, ledgers, requests, sharing
from tui.view import Frame

_DETAILS = {
    "blocks": blocks.detail,
    "batch": batch.detail,
    "sharing": sharing.detail,
    "ledgers": ledgers.detail,
    "requests": requests.detail,
    "control": control.detail,
}


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    """The details from line `focus.inspect_top` on; the border says how many there are beyond it."""
    title, lines = _DETAILS[frame.focus.panel](frame, width - 2, look)
    rows = height - 2
    top = min(frame.focus.inspect_top, max(0, len(lines) - rows))
    below = len(lines) - top - rows
    more: Line = [(f"{below:,} more lines: J K", "dim")] if below > 0 else [("esc closes", "dim")]
    return box(clean(title), more, lines[top : top + rows], width, height, look.glyphs, front=True)
