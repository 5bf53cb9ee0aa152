"""What things look like: one glyph for each meaning, and one colour for each role. Glyphs alone tell everything."""

from __future__ import annotations

from dataclasses import dataclass

HUES = 10  # colours that tell neighbouring requests apart; a repeat is no error, ids say who is who


@dataclass(frozen=True, slots=True)
class Glyphs:
    """`fills` are levels from least to full; with `ascii` a shared block is its number of references instead."""

    free: str = "·"
    hole: str = "×"
    cached: str = "▒"
    reserved: str = "░"
    fills: str = "▁▂▃▄▅▆▇█"
    shared: str = "◆"
    source: str = "◇"
    target: str = "◈"
    prefill: str = "█"
    decode: str = "━"
    fork: str = "┝"
    held: str = "╌"
    left: str = "┤"
    aborted: str = "╳"
    preempted: str = "↯"
    swapped: str = "⇄"
    missing: str = "?"
    bars: str = "▁▂▃▄▅▆▇█"
    switch: str = "┊"
    live: str = "●"
    down: str = "○"
    paused: str = "‖"
    arrow: str = "→"
    dot: str = "·"
    line: str = "━"
    rest: str = "─"
    corners: str = "╭╮╰╯"
    tees: str = "├┤"
    horizontal: str = "─"
    vertical: str = "│"
    dash: str = "—"
    branch: str = "├╴"
    last_branch: str = "└╴"
    trunk: str = "│ "
    right: str = "▸"
    down_open: str = "▾"
    taken: str = "✚"
    released: str = "▿"
    waiting: str = "░"
    ascii: bool = False


UNICODE = Glyphs()
ASCII = Glyphs(
    free=".",
    hole="x",
    cached="%",
    reserved="_",
    fills="abcdefg#",
    shared="2",
    source="<",
    target=">",
    prefill="#",
    decode="=",
    fork="Y",
    held="~",
    left="|",
    aborted="X",
    preempted="!",
    swapped="s",
    missing="?",
    bars="_.,:-=+#",
    switch="!",
    live="*",
    down="o",
    paused="=",
    arrow=">",
    dot=",",
    line="=",
    rest="-",
    corners="++++",
    tees="++",
    horizontal="-",
    vertical="|",
    dash="-",
    branch="|-",
    last_branch="`-",
    trunk="| ",
    right=">",
    down_open="v",
    taken="+",
    released="-",
    waiting="_",
    ascii=True,
)

_HUE_COLOURS = (
    "#61afef", "#98c379", "#c678dd", "#56b6c2", "#d19a66",
    "#7f9cf5", "#4fb38a", "#d98ac2", "#8fb8de", "#b5bd68",
)  # fmt: skip

BACKGROUND = "#0d1117"

_COLOURS = {
    "text": "#c9d1d9",
    "dim": "#6e7681",
    "faint": "#30363d",
    "border": "#3d4550",
    "title": "bold #e6edf3",
    "value": "bold #e6edf3",
    "key": "bold #f0b429",
    "good": "#3fb950",
    "warn": "#f0b429",
    "bad": "bold #ff7b72",
    "mode": "bold #79c0ff",
    "mode-old": "bold #ff9e64",
    "free": "#3d4550",
    "hole": "#ff7b72",
    "cached": "#56708f",
    "shared": "bold #f5c542",
    "copied": "bold #ffffff",
    "reserved": "#a0604f",
    "prefill": "#e6edf3",
    "held": "#a0604f",
    "end": "bold #e6edf3",
    "waste": "#ff9e64",
    "speed": "#3fb950",
    "prefill-speed": "#79c0ff",
    "latency": "#d2a8ff",
    "queue": "#f0b429",
    "switch": "bold #f5c542",
    "front": "bold reverse #79c0ff",
    "cursor": "bold reverse #e6edf3",
    "lit": "bold #f0b429",
    "unlit": "#30363d",
    "changed": "bold #ffffff",
    "selected": "bold #f0b429",
    "waiting": "#6e7681",
    "axis": "#6e7681",
    "heat0": "#f5c542",
    "heat1": "#d19a66",
    "heat2": "#c678dd",
    "heat3": "#61afef",
    "heat4": "#56708f",
    **{f"hue{index}": colour for index, colour in enumerate(_HUE_COLOURS)},
}

_PLAIN = {
    name: "reverse"
    if "reverse" in style
    else "bold"
    if "bold" in style
    else "dim"
    if name in ("dim", "faint", "border", "free", "unlit", "waiting")
    else ""
    for name, style in _COLOURS.items()
}


@dataclass(frozen=True, slots=True)
class Look:
    """Glyphs, and whether there are colours (without: weight alone, as NO_COLOR asks)."""

    glyphs: Glyphs = UNICODE
    coloured: bool = True

    def style(self, role: str) -> str:
        """The Rich style definition of a role."""
        return (_COLOURS if self.coloured else _PLAIN)[role]

    @property
    def background(self) -> str | None:
        return BACKGROUND if self.coloured else None
