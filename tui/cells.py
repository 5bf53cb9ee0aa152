"""The block map's cells: what each physical block is, and how several become one cell when space is short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
import numpy.typing as npt

from engine.protocol import Copy
from tui.block_columns import UNKNOWN
from tui.history import Step
from tui.look import HUES
from tui.view import COPIES_SHOWN, View

FREE, CACHED, HOLE, RESERVED, FILLING, FULL, SHARED = range(7)
_CODES = np.array([FREE, CACHED, RESERVED, FILLING, FULL, SHARED], np.uint8)  # by `block_columns` code
NOBODY = 255
UNMARKED, SOURCE, TARGET = range(3)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Cells:
    """One entry per block (or per `blocks_per_cell` blocks): state code, level, hue, references and mark, each [cells].

    `level` is the filled share of the slots in eighths, 0..8; `hue` is a colour number or NOBODY; `mark` tells that
    a block has just been copied, or is such a copy.
    """

    state: Bytes
    level: Bytes
    hue: Bytes
    references: Bytes
    mark: Bytes
    blocks_per_cell: int = 1

    @classmethod
    def of(cls, view: View) -> Cells:
        """Cells of a whole pool. With external waste, what is too short for the next reservation is marked."""
        blocks, engine = view.blocks, view.engine
        state = _CODES[blocks.state]
        if view.waste.external:
            _mark_short_holes(state, blocks.references, -(-engine.max_model_len // engine.block_size))
        mark = np.zeros(len(blocks), np.uint8)
        for copy in recent_copies(view.steps, view.now):
            mark[copy.source], mark[copy.target] = SOURCE, TARGET
        mark[(state == FREE) | (state == HOLE)] = UNMARKED  # let go of since
        owned = (blocks.owner != UNKNOWN) & (blocks.references > 0)
        hue = np.where(owned, blocks.owner % HUES, NOBODY).astype(np.uint8)
        references = np.minimum(blocks.references, 255).astype(np.uint8)
        return cls(state, _levels(blocks.filled, engine.block_size), hue, references, mark)

    def __len__(self) -> int:
        return len(self.state)

    def zoomed(self, cells: int) -> Cells:
        """The same pool in at most `cells` cells.

        A cell of several blocks is their commonest state, of two the fuller one; where that is free, filling or
        full, its level is the share of all its slots that is held and filled.
        """
        per_cell = max(1, -(-len(self) // max(1, cells)))
        if per_cell == 1:
            return self
        count = -(-len(self) // per_cell)
        pad = count * per_cell - len(self)
        present = np.arange(count * per_cell).reshape(count, per_cell) < len(self)
        state = np.pad(self.state, (0, pad), constant_values=255).reshape(count, per_cell)
        level = np.pad(self.level, (0, pad)).reshape(count, per_cell)
        hue = np.pad(self.hue, (0, pad), constant_values=NOBODY).reshape(count, per_cell)
        references = np.pad(self.references, (0, pad)).reshape(count, per_cell)
        mark = np.pad(self.mark, (0, pad)).reshape(count, per_cell)
        order = np.arange(SHARED, FREE - 1, -1, dtype=np.uint8)
        winner = order[np.stack([(state == code).sum(axis=1) for code in order]).argmax(axis=0)]
        filled = np.isin(state, (FILLING, FULL, SHARED))
        eighths = np.where(filled, level, 0).sum(axis=1)
        whole = eighths == 8 * present.sum(axis=1)
        levels = np.where(whole, 8, np.minimum(7, np.ceil(eighths / present.sum(axis=1)))).astype(np.uint8)
        by_level = np.isin(winner, (FREE, FILLING, FULL))
        shown = np.where(levels == 0, FREE, np.where(levels == 8, FULL, FILLING)).astype(np.uint8)
        rows = np.arange(count)
        owner = np.where(by_level[:, None], filled, state == winner[:, None]).argmax(axis=1)
        return Cells(
            np.where(by_level, shown, winner).astype(np.uint8),
            levels,
            hue[rows, owner],
            references[rows, owner],
            mark.max(axis=1),
            per_cell,
        )


def _levels(filled: npt.NDArray[np.int32], block_size: int) -> Bytes:
    """Eighths of a block: 0 only when empty, 8 only when full."""
    levels = np.ceil(filled * 8 / block_size)
    return np.where(filled >= block_size, 8, np.minimum(levels, 7)).astype(np.uint8)


def _mark_short_holes(state: Bytes, references: npt.NDArray[np.int32], need: int) -> None:
    """Mark blocks nobody holds that lie in runs shorter than `need`, as the engine's external waste counts them."""
    idle = np.concatenate(([0], (references == 0).astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(idle))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        if end - start < need:
            state[start:end] = HOLE


def recent_copies(steps: Sequence[Step], now: float) -> list[Copy]:
    """Of the last step and those just before it, which may all fall between two frames; the latest last."""
    before = takewhile(lambda step: step.time > now - COPIES_SHOWN, islice(reversed(steps), 1, None))
    recent = [*steps[-1:], *before]
    return [copy for step in reversed(recent) for copy in step.copies]
