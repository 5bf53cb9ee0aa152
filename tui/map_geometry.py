"""Which block is drawn where: the block map's zoom, what part of the pool it shows, and how the cursor moves it.

A scale is a number of blocks in a cell, or of cells for a block. The farthest shows the whole pool; each nearer one is
a power of two. Rows begin at multiples of a row's blocks, so that panning keeps blocks in their columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tui.focus import MapFocus

WIDEST_FIT = 4  # cells that a block of a small pool gets by itself
WIDEST = 8
_ALIGN = 8  # cells of a row are a multiple of it when near, so that scales halve exactly


@dataclass(frozen=True, slots=True)
class Geometry:
    """A map of `blocks` in `rows` rows of `inner` cells: it begins with block `first`.

    One of `per_cell` (blocks a cell) and `wide` (cells a block) is 1. A row has `columns` units of `wide` cells.
    """

    blocks: int
    inner: int
    rows: int
    per_cell: int
    wide: int
    columns: int
    first: int = 0

    @property
    def row_blocks(self) -> int:
        return self.columns * self.per_cell

    @property
    def last(self) -> int:
        """The block after the last shown."""
        return min(self.blocks, self.first + self.rows * self.row_blocks)

    @property
    def margin(self) -> int:
        return (self.inner - self.columns * self.wide) // 2

    @property
    def whole(self) -> bool:
        return self.first == 0 and self.last == self.blocks

    def block_at(self, x: int, y: int) -> int | None:
        """The first block of the cell at column `x` of row `y` of the inside; None: no block is drawn there."""
        column = (x - self.margin) // self.wide
        if not (0 <= column < self.columns and 0 <= y < self.rows):
            return None
        block = self.first + (y * self.columns + column) * self.per_cell
        return block if block < self.blocks else None

    def place_of(self, block: int) -> tuple[int, int] | None:
        """Column and row of the (first) cell that a block is drawn in; None: it is not shown."""
        if not self.first <= block < self.last:
            return None
        row, column = divmod((block - self.first) // self.per_cell, self.columns)
        return self.margin + column * self.wide, row

    def at(self, top: int) -> Geometry:
        """The same, beginning with the row of block `top`, but not so late that space stays empty."""
        rows = -(-self.blocks // self.row_blocks)
        row = min(max(0, top // self.row_blocks), max(0, rows - self.rows))
        return replace(self, first=row * self.row_blocks)

    def showing(self, block: int) -> Geometry:
        """The same, moved by as few rows as bring `block` in."""
        row, first = block // self.row_blocks, self.first // self.row_blocks
        return self.at(min(max(first, row - self.rows + 1), row) * self.row_blocks)


def geometry(blocks: int, inner: int, rows: int, focus: MapFocus) -> Geometry:
    """The map as it is drawn: at `focus.zoom`, from `focus.top` on, with the block under the cursor in it."""
    scales = _scales(blocks, inner, max(1, rows))
    shape = scales[min(max(0, focus.zoom), len(scales) - 1)].at(focus.top)
    return shape if focus.block is None or not blocks else shape.showing(min(focus.block, blocks - 1))


def fitting(blocks: int, inner: int, rows: int) -> Geometry:
    """The whole pool, as near as there is space for; with a margin on both sides where that costs no zoom."""
    inner, rows = max(1, inner), max(1, rows)
    wide = WIDEST_FIT
    while wide > 1 and blocks > inner // wide * rows:
        wide //= 2
    if wide > 1:
        return Geometry(blocks, inner, rows, 1, wide, inner // wide)
    per_cell = max(1, -(-blocks // (inner * rows)))
    within = max(1, inner - 2)
    columns = within if max(1, -(-blocks // (within * rows))) == per_cell else inner
    return Geometry(blocks, inner, rows, per_cell, 1, columns)


def _scales(blocks: int, inner: int, rows: int) -> list[Geometry]:
    """From the whole pool to the nearest."""
    fit = fitting(blocks, inner, rows)
    inner = fit.inner
    cells = inner - inner % _ALIGN if inner >= _ALIGN else inner
    out = [fit]
    per_cell = 1 << ((fit.per_cell - 1).bit_length() - 1) if fit.per_cell > 1 else 0
    while per_cell:
        out.append(Geometry(blocks, inner, rows, per_cell, 1, cells))
        per_cell //= 2
    wide = fit.wide * 2
    while wide <= min(WIDEST, cells):
        out.append(Geometry(blocks, inner, rows, 1, wide, cells // wide))
        wide *= 2
    return out


def zoomed(shown: Geometry, focus: MapFocus, nearer: bool, anchor: int) -> MapFocus:
    """One scale nearer or farther, with block `anchor` under the cursor and in the row of the panel it was in."""
    scales = _scales(shown.blocks, shown.inner, shown.rows)
    now = min(max(0, focus.zoom), len(scales) - 1)
    zoom = min(max(0, now + (1 if nearer else -1)), len(scales) - 1)
    row = anchor // shown.row_blocks - shown.first // shown.row_blocks
    target = scales[zoom]
    moved = target.at(max(0, anchor // target.row_blocks - row) * target.row_blocks).showing(anchor)
    return replace(focus, zoom=zoom, top=moved.first, block=anchor)


def moved(shown: Geometry, focus: MapFocus, key: str) -> MapFocus | None:
    """The cursor after a key that moves it, and the map with it; None: the key moves nothing."""
    if not shown.blocks:
        return None
    cell, row, page = shown.per_cell, shown.row_blocks, shown.row_blocks * max(1, shown.rows - 1)
    steps = {"left": -cell, "right": cell, "up": -row, "down": row, "pageup": -page, "pagedown": page}
    end = shown.blocks - 1
    if key in ("home", "end"):
        block = 0 if key == "home" else end
    elif key not in steps:
        return None
    elif focus.block is None:
        block = shown.first
    else:
        block = min(focus.block, end) + steps[key]
        if key in ("up", "down") and not 0 <= block // row <= end // row:
            block = min(focus.block, end)  # no such row
        block = min(max(0, block), end)
    return replace(focus, block=block, top=shown.showing(block).first)
