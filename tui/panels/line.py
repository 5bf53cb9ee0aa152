"""Lines of styled text: what every panel is drawn with. A span is (text, role); a role is a name of `tui.look`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len

from tui.look import Glyphs

Span = tuple[str, str]
Line = list[Span]

_PREFIXES = ("chatcmpl-", "cmpl-")


def clean(text: str) -> str:
    """Text from outside with every character that is not one cell wide replaced, so that columns hold."""
    return "".join(c if c.isprintable() and cell_len(c) == 1 else "?" for c in text)


def short_id(request: str, width: int) -> str:
    """The end of an id, where ids differ."""
    name = clean(request)
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name if len(name) <= width else name[-width:]


def breaks(text: str, width: int, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Where the lines of a text begin and end, from `begin` on: `width` cells at most, whole words where they fit.

    The blank at which a line breaks is in none of them.
    """
    while True:
        end = text.find("\n", begin, begin + width + 1)
        if end < 0:
            if len(text) - begin <= width:
                yield begin, len(text)
                return
            end = text.rfind(" ", begin + 1, begin + width + 1)
        if end < 0:  # one long word
            yield begin, begin + width
            begin += width
        else:
            yield begin, end
            begin = end + 1
            if begin == len(text) and text[end] == " ":
                return


def length(line: Iterable[Span]) -> int:
    return sum([len(text) for text, _ in line])


def text_of(line: Iterable[Span]) -> str:
    return "".join(text for text, _ in line)


def fit(line: Sequence[Span], width: int) -> Line:
    """The line cut or padded to exactly `width` cells."""
    free = width - length(line)
    if free == 0:
        return list(line)
    if free > 0:
        return [*line, (" " * free, "text")]
    out: Line = []
    left = max(0, width)
    for text, role in line:
        if not left:
            break
        out.append((text[:left], role))
        left -= min(left, len(text))
    return out


def cut(line: Sequence[Span], width: int, more: str) -> Line:
    """The line, or as much of its beginning as fits into `width` cells with `more`: up to a word's end where one is
    not far."""
    if length(line) <= width:
        return list(line)
    out = fit(line, max(0, width - len(more)))
    if not out:
        return fit([(more, "text")], width)
    (text, role), following = out[-1], text_of(line)[length(out) :][:1]
    words = text if following == " " else text.rpartition(" ")[0]
    text = words if 2 * len(words) >= len(text) else text
    return [*out[:-1], (text.rstrip(" ,;:") + more, role)]


def spread(left: Sequence[Span], right: Sequence[Span], width: int) -> Line:
    """`left` and `right` at the two ends; `right` gives way where both do not fit."""
    gap = width - length(left) - length(right)
    if gap < 1:
        return fit(left, width)
    return [*left, (" " * gap, "text"), *right]


def join(parts: Iterable[Sequence[Span]], separator: Span, width: int) -> Line:
    """As many of `parts` as fit whole, in order."""
    out: Line = []
    for part in parts:
        extra = [*([separator] if out else []), *part]
        if length(out) + length(extra) > width:
            break
        out.extend(extra)
    return out


def box(
    title: str,
    right: Sequence[Span],
    body: Sequence[Sequence[Span]],
    width: int,
    height: int,
    glyphs: Glyphs,
    bottom: Sequence[Span] = (),
    bottom_right: Sequence[Span] = (),
    top_joint: bool = False,
    open_bottom: bool = False,
    front: bool = False,
) -> list[Line]:
    """A bordered panel of exactly `width` x `height`; `top_joint` continues the box above, whose bottom is open.

    `front`: the keys go to this one.
    """
    inner = width - 2
    tops = glyphs.tees if top_joint else glyphs.corners[:2]
    lines = [_edge(tops, [(f" {title} ", "front" if front else "title")], right, inner, glyphs)]
    rows = height - 1 if open_bottom else height - 2
    for index in range(rows):
        content = body[index] if index < len(body) else []
        side = (glyphs.vertical, "border")
        lines.append([side, *fit(content, inner), side])
    if not open_bottom:
        lines.append(_edge(glyphs.corners[2:], bottom, bottom_right, inner, glyphs))
    return lines[:height]


def _edge(ends: str, left: Sequence[Span], right: Sequence[Span], inner: int, glyphs: Glyphs) -> Line:
    """One horizontal border with text set into it; the right text gives way, then the left is cut."""
    rule = glyphs.horizontal
    left = list(left) if length(left) <= inner - 1 else fit(left, inner - 1)
    if length(left) + length(right) > inner - 4:
        right = []
    if right:
        right = [(" ", "border"), *right, (" ", "border")]
    gap = inner - length(left) - length(right) - (1 if left else 0) - (1 if right else 0)
    return [
        (ends[0] + (rule if left else ""), "border"),
        *left,
        (rule * gap, "border"),
        *right,
        ((rule if right else "") + ends[1], "border"),
    ]
