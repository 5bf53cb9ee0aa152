"""The help overlay: keys, and what every glyph means."""

from __future__ import annotations

from tui import controls
from tui.look import Look
from tui.panels.line import Line, box, fit
from tui.view import Frame

KEY_WIDTH = 8  # cells


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    glyphs = look.glyphs
    columns = 3 if width >= 136 else 2 if width >= 78 else 1
    room = (width - 2) // columns
    margin = " " if room >= 39 else ""
    keys = [
        *((keyed.key, _choices(keyed, room - len(margin) - KEY_WIDTH)) for keyed in controls.KEYED),
        ("space p", "pause; the feed goes on"),
        ("? esc", "close this"),
        ("q", "quit"),
    ]
    blocks = [
        (glyphs.free, "free", "free: nobody holds it"),
        (glyphs.reserved, "reserved", "reserved: no slot filled yet"),
        (glyphs.fills[:7], "text", "filling: height is its slots"),
        (glyphs.fills[7], "text", "full: held by one request"),
        ("2-9" if glyphs.ascii else glyphs.shared, "shared", "shared: held by several"),
        (glyphs.cached, "cached", "cached: findable, evictable"),
        (glyphs.hole, "hole", "free, but no reservation fits"),
        (glyphs.source, "copied", "copied just now: the original"),
        (glyphs.target, "copied", "copied just now: the copy"),
    ]
    rows = [
        (glyphs.prefill, "prefill", "prefill: prompt tokens"),
        (glyphs.decode, "text", "decode: one token"),
        (glyphs.fork, "text", "fork: goes on from its parent"),
        (glyphs.left, "end", "the request ended here"),
        (glyphs.held, "held", "held: ended, kept by its batch"),
        (glyphs.preempted, "bad", "preempted: is computed again"),
        (glyphs.swapped, "bad", "preempted: KV to host memory"),
        (glyphs.aborted, "bad", "aborted, failed or too late"),
        (glyphs.missing, "bad", "records before it are missing"),
        (glyphs.switch, "switch", "a control was switched"),
    ]
    notes: list[Line] = [
        [(" A cell of several blocks shows", "dim")],
        [(" their commonest state.", "dim")],
        [(" A colour is a request, the same in", "dim")],
        [(" the map and in the batch; the number", "dim")],
        [(" beside it is its context in tokens.", "dim")],
        [(f" {glyphs.dash} was not measured.", "dim")],
    ]
    left, middle, right = (
        [_entry(margin, *entry) for entry in entries]
        for entries in ([(key, "key", text) for key, text in keys], blocks, rows)
    )
    match columns:
        case 3:
            body = _beside([[*left, [], *notes], middle, right], room)
        case 2:
            body = _beside([[*left, [], *middle], [*right, [], *notes]], room)
        case _:
            body = [*left, *middle, *right]
    closes: Line = [("? closes", "dim")]
    if frame.status.readonly:
        closes = [("readonly: keys of controls send nothing", "dim")]
    return box("help", closes, body, width, height, glyphs)


def _choices(keyed: controls.Keyed, room: int) -> str:
    """What a key goes through, closer together where there is little room."""
    words = [controls.word(choice) for choice in keyed.choices]
    text = f"{keyed.name}: {' / '.join(words)}"
    return text if len(text) <= room else f"{keyed.name}: {'/'.join(word.split()[0] for word in words)}"


def _entry(margin: str, key: str, role: str, text: str) -> Line:
    return [(f"{margin}{key:<{KEY_WIDTH}}", role), (text, "text")]


def _beside(columns: list[list[Line]], width: int) -> list[Line]:
    rows = max(len(column) for column in columns)
    return [
        [span for column in columns for span in fit(column[row] if row < len(column) else [], width)]
        for row in range(rows)
    ]
