"""The command palette, which may be closed and opened at any pace.

Textual's own ends the program on the second of two quick clicks beside it, and where it is opened again while it
still leaves: two screens of the same id. So does a click on a line that the search has just taken away.
"""

from __future__ import annotations

from textual.await_complete import AwaitComplete
from textual.command import CommandList, CommandPalette
from textual.events import Click


class Results(CommandList):
    """Commands that match, of which some may be on the screen a moment longer than in the list."""

    def on_click(self, event: Click) -> None:
        if event.style.meta.get("option", -1) >= self.option_count:
            event.prevent_default()


class Palette(CommandPalette):
    """A click, an escape or a choice that comes when it has closed already does nothing more. It has no id."""

    def on_mount(self) -> None:
        self.query_one(CommandList).__class__ = Results  # Textual's own names its list's class itself

    def dismiss(self, result: object = None) -> AwaitComplete:
        return super().dismiss(None) if self.is_current else AwaitComplete()
