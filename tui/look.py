"""What things look like: one glyph for each meaning, and a theme's colour for each role. Glyphs alone tell all."""

from __future__ import annotations

from dataclasses import dataclass

from tui.themes import DARK, HUES, Theme

__all__ = ["ASCII", "HUES", "UNICODE", "Glyphs", "Look"]


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
    more: str = "…"
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
    more="..",
    ascii=True,
)


@dataclass(frozen=True, slots=True)
class Look:
    """Glyphs, and the colours of a theme."""

    glyphs: Glyphs = UNICODE
    theme: Theme = DARK

    def style(self, role: str) -> str:
        """The Rich style definition of a role."""
        return self.theme.style(role)

    @property
    def background(self) -> str | None:
        return self.theme.back
