"""The help overlay: keys, and what every glyph means."""

from __future__ import annotations

from tui.look import Look
from tui.panels.line import Line, box, fit
from tui.view import Frame


def draw(frame: Frame, width: int, height: int, look: Look) -> list[Line]:
    glyphs = look.glyphs
    reads = " (sends nothing: readonly)" if frame.status.readonly else ""
    keys = [
        ("m", f"batching: continuous / static{reads}"),
        ("a", f"allocation: paged / reserved{reads}"),
        ("c", f"prefix cache: on / off{reads}"),
        ("space p", "pause the view; the feed goes on"),
        ("? esc", "close this"),
        ("q", "quit"),
    ]
    blocks = [
        (glyphs.free, "free", "free: nobody holds it, nothing in it"),
        (glyphs.reserved, "reserved", "reserved: held, not a slot filled"),
        (glyphs.fills[:7], "text", "filling: height is the filled slots"),
        (glyphs.fills[7], "text", "full: held by one request"),
        ("2-9" if glyphs.ascii else glyphs.shared, "shared", "shared: held by several requests"),
        (glyphs.cached, "cached", "cached: can be found again, or evicted"),
        (glyphs.hole, "hole", "free, in a hole no reservation fits"),
    ]
    rows = [
        (glyphs.prefill, "prefill", "prefill: prompt tokens are computed"),
        (glyphs.decode, "text", "decode: one token"),
        (glyphs.left, "end", "the request ended here"),
        (glyphs.held, "held", "held: ended, kept by its static batch"),
        (glyphs.preempted, "bad", "preempted: will be computed again"),
        (glyphs.aborted, "bad", "aborted or failed"),
        (glyphs.missing, "bad", "records are missing before this step"),
        (glyphs.switch, "switch", "batching or allocation was switched"),
    ]
    left: list[Line] = [_entry(key, "key", text) for key, text in keys]
    left += [[], [(" A cell of several blocks shows", "dim")], [(" their commonest state.", "dim")]]
    left += [[(" A colour is a request, the same in", "dim")], [(" the map and in the batch.", "dim")]]
    left += [[(" The number beside a request is its", "dim")], [(" context in tokens.", "dim")]]
    left += [[(f" {glyphs.dash} was not measured.", "dim")]]
    right = [_entry(glyph, role, text) for glyph, role, text in blocks]
    glyph_rows = [_entry(*row) for row in rows]
    if width >= 136:
        body = _beside([left, right, glyph_rows], (width - 2) // 3)
    elif width >= 92:
        body = _beside([left, [*right, [], *glyph_rows]], (width - 2) // 2)
    else:
        body = [*left[: len(keys)], *right, *glyph_rows]
    return box("help", [("? closes", "dim")], body, width, height, glyphs)


def _entry(key: str, role: str, text: str) -> Line:
    return [(f" {key:<8}", role), (text, "text")]


def _beside(columns: list[list[Line]], width: int) -> list[Line]:
    rows = max(len(column) for column in columns)
    return [
        [span for column in columns for span in fit(column[row] if row < len(column) else [], width)]
        for row in range(rows)
    ]
