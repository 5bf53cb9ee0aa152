"""The command palette, which may be closed and opened at any pace.

Textual's own ends the program on the second of two quick clicks beside it, and where it is opened again while it
still leaves: two screens of the same id.
"""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette


class Palette(CommandPalette):
    """A click, an escape or a choice that comes when it has closed already does nothing more. It has no id."""

    def dismiss(self, result: object = None) -> AwaitComplete:
        return super().dismiss(None) if self.is_current else AwaitComplete()
