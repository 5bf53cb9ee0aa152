"""One panel on the screen. It keeps what it shows, line by line, and makes and paints only the lines that changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
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
from tui.themes import THEMES
from tui.view import Frame

_NEW = tuple.__new__


@cache
def _styles(theme: str) -> dict[str, Style]:
    """The style of every role, with the theme's background."""
    back = Style(bgcolor=THEMES[theme].back)
    return {role: Style.parse(definition) + back for role, definition in THEMES[theme].styles.items()}


def strip(line: Line, theme: str, width: int) -> Strip:
    """A line, cut or padded to `width` cells, as Textual paints it."""
    styles = _styles(theme)
    # As `Segment(text, style)` makes them, less a call for each of the thousands in a frame.
    segments = [_NEW(Segment, (text, styles[role], None)) for text, role in fit(line, width) if text]
    return Strip(segments, width)


def _runs(rows: Sequence[int], width: int) -> list[Region]:
    """Regions that cover some rows, those that follow each other in one."""
    regions: list[Region] = []
    for y in rows:
        if regions and regions[-1].bottom == y:
            regions[-1] = Region(0, regions[-1].y, width, regions[-1].height + 1)
        else:
            regions.append(Region(0, y, width, 1))
    return regions


class Panel(Widget):
    """Drawn with the Line API from a frame; where it is, its `place` says.

    It has no border, padding or text selection, so its finished strips go to the screen as they are.
    """

    ALLOW_SELECT = False
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
        self._strips: list[Strip] = []
        self._drawn = (0, 0)  # width and height of what the strips are of
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
        width, height = place.width, place.height
        lines = scene.panel(place.name, frame, width, height, look)[:height]
        lines += [[] for _ in range(height - len(lines))]
        again = look is not self._look or (width, height) != self._drawn
        changed = [y for y, line in enumerate(lines) if again or self._lines[y] != line]
        if again:
            self._strips = [Strip.blank(width)] * height
        for y in changed:
            self._strips[y] = strip(lines[y], look.theme.name, width)
        self._look, self._lines, self._drawn = look, lines, (width, height)
        if changed:
            self.refresh(*_runs(changed, width))

    @property
    def text(self) -> str:
        """What is shown, without colours."""
        return "\n".join(text_of(line) for line in self._lines)

    def line(self, y: int) -> Line:
        """One line of what is shown."""
        return self._lines[y] if y < len(self._lines) else []

    def render_line(self, y: int) -> Strip:
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a region, without the passes for what this widget has not."""
        strips = [self.render_line(y) for y in range(crop.y, crop.bottom)]
        return [strip.crop_extend(crop.x, crop.right, None) for strip in strips]

    def on_click(self, event: events.Click) -> None:
        self._pointed("click", event.x, event.y)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if (event.x, event.y) != self._hovered:
            self._hovered = (event.x, event.y)
            self._pointed("hover", event.x, event.y)

    def on_leave(self) -> None:
        self._hovered = None
        self._pointed("hover", -1, -1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._pointed("up", event.x, event.y)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._pointed("down", event.x, event.y)

    def _pointed(self, kind: Literal["click", "hover", "up", "down"], x: int, y: int) -> None:
        if self._place is not None:
            self.post_message(self.Pointed(self._place, kind, x, y))
