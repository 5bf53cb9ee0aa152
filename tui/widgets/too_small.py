"""What is shown when the terminal is too small for any panel."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from tui.look import Look
from tui.panels.line import fit, text_of
from tui.scene import too_small


class TooSmall(Widget):
    """Says how large the terminal is and how large it must be."""

    DEFAULT_CSS = """
    TooSmall { width: 100%; height: 100%; display: none; }
    """

    def __init__(self, look: Look) -> None:
        super().__init__()
        self._look = look

    @property
    def text(self) -> str:
        return "\n".join(text_of(line) for line in too_small(*self.size))

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        style = Style.parse(self._look.style("text")) + Style(bgcolor=self._look.background)
        return Strip([Segment(text, style) for text, _ in fit(too_small(width, height)[y], width)], width)
