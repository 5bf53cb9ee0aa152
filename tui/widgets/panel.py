"""One panel on the screen. It keeps the lines it shows and repaints only those that changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tui import scene
from tui.look import Look
from tui.panels.line import Line, fit, text_of
from tui.scene import Place
from tui.view import Frame


@lru_cache(maxsize=1024)
def _style(definition: str, background: str | None) -> Style:
    return Style.parse(definition) + Style(bgcolor=background)


class Panel(Widget):
    """Drawn with the Line API from a frame; where it is, its `place` says."""

    DEFAULT_CSS = """
    Panel { position: absolute; width: 1; height: 1; }
    """

    @dataclass
    class Pointed(Message):
        """The mouse did something at cell (x, y) of a panel."""

        place: Place
        kind: Literal["click", "hover", "up", "down"]
        x: int
        y: int

    def __init__(self, name: str, look: Look) -> None:
        super().__init__(id=name)
        self.display = False  # until it has a place
        self._look = look
        self._place: Place | None = None
        self._lines: list[Line] = []
        self._hovered: tuple[int, int] | None = None

    def put(self, place: Place | None) -> None:
        """Move to a place; None hides the panel."""
        if place == self._place:
            return
        self._place = place
        self.display = place is not None
        if place:
            self.styles.offset = (place.x, place.y)
            self.styles.width = place.width
            self.styles.height = place.height

    def show(self, frame: Frame, look: Look) -> None:
        """Draw a frame; only lines that differ from what is on the screen are painted."""
        place = self._place
        if place is None:
            return
        new = scene.panel(place.name, frame, place.width, place.height, look)
        old, self._lines = self._lines, new
        if look != self._look:
            self._look = look
            self.refresh()
            return
        changed = [
            Region(0, y, place.width, 1)
            for y in range(max(len(old), len(new)))
            if y >= len(old) or y >= len(new) or old[y] != new[y]
        ]
        if changed:
            self.refresh(*changed)

    @property
    def text(self) -> str:
        """What is shown, without colours."""
        return "\n".join(text_of(line) for line in self._lines)

    def line(self, y: int) -> Line:
        """One line of what is shown."""
        return self._lines[y] if y < len(self._lines) else []

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        line = fit(self.line(y), width)
        look = self._look
        segments = [Segment(text, _style(look.style(role), look.background)) for text, role in line]
        return Strip(segments, width)

    def on_click(self, event: events.Click) -> None:
        self._pointed("click", event.x, event.y)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if (event.x, event.y) != self._hovered:
            self._hovered = (event.x, event.y)
            self._pointed("hover", event.x, event.y)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._pointed("up", event.x, event.y)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._pointed("down", event.x, event.y)

    def _pointed(self, kind: Literal["click", "hover", "up", "down"], x: int, y: int) -> None:
        if self._place is not None:
            self.post_message(self.Pointed(self._place, kind, x, y))
