"""The line in which a question is answered: the footer's, while it is open."""

from __future__ import annotations

from textual.widgets import Input


class AskLine(Input):
    """Enter answers, escape takes the question back (the app does both)."""

    DEFAULT_CSS = """
    AskLine, AskLine:focus { position: absolute; layer: overlay; height: 1; border: none; padding: 0; }
    """

    def put(self, x: int, y: int, width: int) -> None:
        """Lie on the screen's last line, behind its label."""
        self.styles.offset = (x, y)
        self.styles.width = max(8, width)
