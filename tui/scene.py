"""Which panel goes where at a size, and a whole screen as lines. The app and `--once` both draw from here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from tui.figures import NOT_MEASURED
from tui.focus import PANELS as STEP_PANELS
from tui.look import ASCII, Look
from tui.panels import block_map, footer, header, inspect, loads, scrub, sets, speed, waste
from tui.panels import help as help_panel
from tui.panels.line import Line, fit
from tui.panels.modules import MODULES, draws
from tui.view import Frame

MIN_WIDTH, MIN_HEIGHT = 40, 12

Cell = tuple[str, str]  # a character and its role


@dataclass(frozen=True, slots=True)
class Place:
    """A panel's place on the screen, in cells."""

    name: str
    x: int
    y: int
    width: int
    height: int


PANELS = draws(
    MODULES,
    waste,
    header=header,
    speed=speed,
    loads=loads,
    scrub=scrub,
    footer=footer,
    help=help_panel,
    inspect=inspect,
)
OVERLAYS = ("help", "inspect")


def owner(place: str, panels: Collection[str] = STEP_PANELS) -> str | None:
    """The one of these panels that the keys and clicks of a place belong to."""
    name = place.split("-")[0]
    name = "ledgers" if name in ("waste", "speed") else name
    return name if name in panels else None


def arrange(width: int, height: int, frame: Frame) -> tuple[Place, ...]:
    """Places for a screen: the ledgers go first when space is short, then sharing, then the batch; the map stays.

    A panel in front that has no place among the others gets the whole screen, and so does one that is expanded.
    Load generators have lines of their own above the last one, as long as there are any.
    Overlays come last. Empty when the screen is too small.
    """
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return ()
    frame = sets.settled(frame)
    focus, blocks = frame.focus, len(frame.view.blocks) if frame.view else 0
    low = 2 if scrub.wanted(frame) else 1
    ends = [Place("header", 0, 0, width, 2), Place("footer", 0, height - 1, width, 1)]
    if low == 2:
        ends.append(Place("scrub", 0, height - 2, width, 1))
    top, body = 2, height - 2 - low
    if frame.kind != "steps":
        return (*ends, *_of_servers(frame, width, top, body), *_overlays(frame, width, top, body))
    if told := _told(frame, width, body, blocks):
        body -= told
        ends.append(Place("loads", 0, top + body, width, told))
    places = _dashboard(width, top, body, blocks)
    if focus.expanded or focus.panel not in {owner(place.name) for place in places}:
        places = (Place(focus.panel, 0, top, width, body),)
    return (*ends, *places, *_overlays(frame, width, top, body))


def _of_servers(frame: Frame, width: int, top: int, body: int) -> tuple[Place, ...]:
    """The table of a fleet has the whole screen; the panels of one server, or of a cluster, are side by side."""
    focus = frame.focus
    if frame.kind == "fleet":
        return (Place("fleet", 0, top, width, body),)
    places = _of_cluster(frame, width, top, body) if frame.kind == "cluster" else _dashboard(width, top, body, 0)
    if focus.expanded or focus.panel not in {owner(place.name, sets.of(frame).names) for place in places}:
        places = (Place(focus.panel, 0, top, width, body),)
    return places


def _of_cluster(frame: Frame, width: int, top: int, body: int) -> tuple[Place, ...]:
    """Workers above, as high as there are any; what is moved, what prefills cost decodes and the router below."""
    if width < 64 or body < 19:
        return (Place("workers", 0, top, width, body),)
    rows = max(map(len, frame.cluster.pools.values()), default=0) if frame.cluster is not None else 0
    most = body - 12 if body < 30 else body * 3 // 5
    high = max(9, min(most, rows + 7))
    y, low, left = top + high, body - high, width // 2
    router = low - 9 if low < 18 else 7
    return (
        Place("workers", 0, top, width, high),
        Place("transfers", 0, y, left, low),
        Place("interference", left, y, width - left, low - router),
        Place("router", left, y + low - router, width - left, router),
    )


def _told(frame: Frame, width: int, body: int, blocks: int) -> int:
    """Lines for the load generators: as many as cost no panel its place, and one at least, unless time has one."""

    def names(body: int) -> list[str]:
        return [place.name for place in _dashboard(width, 0, body, blocks)]

    choices = loads.rows(frame, width, body)
    least = 0 if not choices or scrub.wanted(frame) else choices[-1]
    return next((rows for rows in choices if names(body - rows) == names(body)), least)


def _overlays(frame: Frame, width: int, top: int, body: int) -> tuple[Place, ...]:
    out: list[Place] = []
    if frame.focus.inspecting:
        wide, high = min(width, max(60, width * 2 // 5)), min(body, max(10, body * 2 // 3))
        out.append(Place("inspect", width - wide, top + body - high, wide, high))
    if frame.focus.helping:
        wide = min(width, 138 if width >= 140 else 92 if width >= 92 else 60)
        out.append(Place("help", (width - wide) // 2, top, wide, body))
    return tuple(out)


def _dashboard(width: int, top: int, body: int, blocks: int) -> tuple[Place, ...]:
    """The panels side by side; `blocks` is the pool's size: a wide screen gives the map what it can use."""
    if width >= 200 and body >= 33:
        side = min(92, width - 140)
        return (*_wide(width - side, top, body, blocks), Place("requests", width - side, top, side, body))
    if width >= 120 and body >= 33:
        return _wide(width, top, body, blocks)
    if width >= 80 and body >= 19:
        low = 9 if body < 24 else min(16, max(9, body * 2 // 5))
        if blocks:
            wanted = -(-blocks // block_map.columns_for(blocks, width - 2, body - low - 2)) + 2
            low = max(low, body - max(8, wanted))
        return _medium(width, top, body, low)
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
    return (Place("blocks", 0, top, width, map_height), *places)


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
    lines = (sets.of(frame).draws.get(name) or PANELS[name])(frame, width, height, look)
    return [[(_ascii(text), role) for text, role in line] for line in lines] if look.glyphs.ascii else lines


def _ascii(text: str) -> str:
    """Each character by one that is as wide."""
    if text.isascii():
        return text
    text = text.replace(NOT_MEASURED, ASCII.dash).replace("≤ ", "<=").replace("≤", "<").replace("µ", "u")
    return text.encode("ascii", "replace").decode()


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    """The whole screen: exactly `height` lines of `width` cells."""
    frame = sets.settled(frame)
    places = arrange(width, height, frame)
    if not places:
        return [fit(line, width) for line in too_small(width, height)]
    rows: list[list[Cell]] = [[(" ", "text")] * width for _ in range(height)]
    for place in places:  # overlays last
        lines = panel(place.name, frame, place.width, place.height, look)
        for offset in range(place.height):
            line = fit(lines[offset] if offset < len(lines) else [], place.width)
            cells = [(character, role) for text, role in line for character in text]
            rows[place.y + offset][place.x : place.x + place.width] = cells
    return [_merged(row) for row in rows]


def _merged(cells: list[Cell]) -> Line:
    """Equal neighbours as one span."""
    return [("".join(character for character, _ in run), role) for role, run in groupby(cells, key=itemgetter(1))]
