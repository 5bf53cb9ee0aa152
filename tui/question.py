"""A question on the last line: asked, answered with enter, taken back with escape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.geometry import Size
from textual.screen import Screen

from tui.commands import Ask

if TYPE_CHECKING:
    from tui.widgets.ask import AskLine


class Question:
    """At most one at a time; `asked` is the one that is open."""

    def __init__(self) -> None:
        self.asked: Ask | None = None
        self._line: AskLine | None = None

    async def ask(self, ask: Ask, screen: Screen[object], size: Size) -> None:
        """Open it; one that is open gives way."""
        from tui.widgets.ask import AskLine  # what few need is loaded when they do

        await self.close()
        self.asked, self._line = ask, AskLine(ask.value, compact=True)
        await screen.mount(self._line)
        self.put(size)
        self._line.focus()

    def put(self, size: Size) -> None:
        """Lie on the last line of a screen of this size."""
        if self.asked is not None and self._line is not None:
            label = len(self.asked.label) + 3
            self._line.put(label, size.height - 1, size.width - label)

    async def close(self) -> Ask | None:
        """Take it off the screen; returns what was asked."""
        ask, line = self.asked, self._line
        self.asked = self._line = None
        if line is not None:
            await line.remove()
        return ask
