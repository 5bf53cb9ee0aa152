"""A chart of columns made of text: one glyph wide each, as many rows high as there is room."""

from __future__ import annotations

from collections.abc import Sequence

EIGHTHS = " ▁▂▃▄▅▆▇█"
ASCII = " ..::==##"


def columns(values: Sequence[float], height: int, top: float, glyphs: str = EIGHTHS) -> list[str]:
    """Rows from the highest down, in which `top` fills the height. What is above 0 shows, however little it is."""
    if not top > 0:
        return [" " * len(values)] * height
    steps = [round(min(value, top) / top * height * 8) or int(value > 0) for value in values]
    return ["".join(glyphs[max(0, min(8, step - 8 * row))] for step in steps) for row in range(height - 1, -1, -1)]
