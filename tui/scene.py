"""Which panel goes where at a size, and a whole screen as lines. The app and `--once` both draw from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tui.figures import NOT_MEASURED
from tui.look import ASCII, Look
from tui.panels import batch, block_map, footer, header, sharing, speed, waste
from tui.panels import help as help_panel
from tui.panels.line import Line, fit
from tui.view import Frame

MIN_WIDTH, MIN_HEIGHT = 40, 12

Draw = Callable[[Frame, int, int, Look], list[Line]]


@dataclass(frozen=True, slots=True)
class Place:
    """A panel's place on the screen, in cells."""

    name: str
    x: int
    y: int
    width: int
    height: int


PANELS: dict[str, Draw] = {
    "header": header.draw,
    "blocks": block_map.draw,
    "batch": batch.draw,
    "sharing": sharing.draw,
    "sharing-open": partial(sharing.draw, open_bottom=True),
    "waste": waste.draw,
    "waste-joint": partial(waste.draw, top_joint=True),
    "speed": speed.draw,
    "footer": footer.draw,
    "help": help_panel.draw,
}


def arrange(width: int, height: int, blocks: int = 0) -> tuple[Place, ...]:
    """Places for a screen: the ledgers go first when space is short, then sharing, then the batch; the map stays.

    `blocks` is the pool's size: a wide screen gives the map what it can use. Empty when the screen is too small.
    """
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return ()
    ends = (Place("header", 0, 0, width, 2), Place("footer", 0, height - 1, width, 1))
    top, body = 2, height - 3
    if width >= 120 and body >= 33:
        return ends + _wide(width, top, body, blocks)
    if width >= 80 and body >= 20:
        low = 9 if body < 24 else min(16, max(9, body * 2 // 5))
        if blocks:
            wanted = -(-blocks // block_map.columns_for(blocks, width - 2, body - low - 2)) + 2
            low = max(low, body - max(8, wanted))
        return ends + _medium(width, top, body, low)
    map_height = body
    places: tuple[Place, ...] = ()
    low = 7 if body < 19 else 9
    if body >= 14:
        map_height = body - low
        y = top + map_height
        if width >= 64:
            side = 26
            places = (
                Place("batch", 0, y, width - side, low),
                Place("sharing", width - side, y, side, low),
            )
        else:
            places = (Place("batch", 0, y, width, low),)
    return (*ends, Place("blocks", 0, top, width, map_height), *places)


def _medium(width: int, top: int, body: int, low: int) -> tuple[Place, ...]:
    """The map across the screen, and three columns under it."""
    y = top + body - low
    ledgers = 23
    speed_width = max(30, (width - ledgers) // 2)
    batch_width = width - ledgers - speed_width
    x = batch_width
    waste_height = 4 if low < 12 else 6 if low < 16 else 9
    return (
        Place("blocks", 0, top, width, body - low),
        Place("batch", 0, y, batch_width, low),
        Place("sharing-open", x, y, ledgers, low - waste_height),
        Place("waste-joint", x, y + low - waste_height, ledgers, waste_height),
        Place("speed", x + ledgers, y, speed_width, low),
    )


def _wide(width: int, top: int, body: int, blocks: int) -> tuple[Place, ...]:
    """Two columns: the map over sharing and waste, the batch over speed."""
    left = width // 2
    right = width - left
    low = min(20, body - 16)
    columns = block_map.columns_for(blocks, left - 2, body - low - 2)
    wanted = -(-blocks // columns) + 2
    map_height = min(body - low, max(14, wanted)) if blocks else body - low
    low = body - map_height
    y = top + map_height
    waste_height = 6 if low < 22 else 6 + waste.PREEMPTION_ROWS
    return (
        Place("blocks", 0, top, left, map_height),
        Place("batch", left, top, right, map_height),
        Place("sharing-open", 0, y, left, low - waste_height),
        Place("waste-joint", 0, y + low - waste_height, left, waste_height),
        Place("speed", left, y, right, low),
    )


def too_small(width: int, height: int) -> list[Line]:
    text = [
        "too small",
        f"{width} x {height}",
        f"paged-top needs {MIN_WIDTH} x {MIN_HEIGHT}",
    ]
    body: list[Line] = [[(line[:width].center(width), "text")] for line in text[:height]]
    above = (height - len(body)) // 2
    return [[] for _ in range(above)] + body + [[] for _ in range(height - above - len(body))]


def panel(name: str, frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    """One panel's lines; in ASCII where that was asked for, figures and names from outside included."""
    lines = PANELS[name](frame, width, height, look)
    return [[(_ascii(text), role) for text, role in line] for line in lines] if look.glyphs.ascii else lines


def _ascii(text: str) -> str:
    return text if text.isascii() else text.replace(NOT_MEASURED, ASCII.dash).encode("ascii", "replace").decode()


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    """The whole screen: exactly `height` lines of `width` cells."""
    places = arrange(width, height, len(frame.view.blocks) if frame.view else 0)
    if not places:
        return [fit(line, width) for line in too_small(width, height)]
    rows: list[list[tuple[int, Line]]] = [[] for _ in range(height)]
    for place in places:
        lines = panel(place.name, frame, place.width, place.height, look)
        for offset in range(place.height):
            line = lines[offset] if offset < len(lines) else []
            rows[place.y + offset].append((place.x, fit(line, place.width)))
    return [[span for _, line in sorted(row, key=lambda part: part[0]) for span in line] for row in rows]
