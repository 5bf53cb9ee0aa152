"""The command palette, which closes once: Textual's own ends the program on the second of two clicks beside it."""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.command import CommandPalette


class Palette(CommandPalette):
    """A click, an escape or a choice that comes when it has closed already does nothing more."""

    def dismiss(self, result: object = None) -> AwaitComplete:
        return super().dismiss(None) if self.is_current else AwaitComplete()
