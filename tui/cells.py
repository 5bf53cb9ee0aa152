"""The block map's cells: what each physical block is, and what a cell of several blocks is a mix of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np
import numpy.typing as npt

from engine.protocol import Copy
from tui import block_columns
from tui.block_columns import UNKNOWN
from tui.focus import ColourBy
from tui.history import Step
from tui.look import HUES
from tui.view import COPIES_SHOWN, View

FREE, CACHED, RESERVED, FILLING, FULL, SHARED = range(6)  # as `block_columns` has them
HOLE = 6  # nobody's, and too short for the next reservation
STATES = 7
NOBODY = 255  # no tint
UNMARKED, GREW, RELEASED, TAKEN, SOURCE, TARGET = range(6)
CHANGES_SHOWN = 0.12  # seconds for which taken and released blocks stay marked, about a frame; those of the last record
LAST_SHOWN = 1.0  # seconds, unless the next one comes before
MARKED_MIX = 4  # a cell of more blocks is marked by nothing: its mix says more
REFERENCE_STEPS = (2, 3, 5, 10)  # the least references of each warmer tint
AGE_STEPS = (1.0, 10.0, 60.0, 600.0)  # seconds: where each colder tint begins
QUARTERS = 4
_BITS = 9
_PACKED = (1 << _BITS) - 1  # blocks of a cell whose counts fit
_FULLER = np.array([SHARED, FULL, FILLING, RESERVED, CACHED, HOLE, FREE], np.uint8)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

assert (block_columns.FREE, block_columns.SHARED) == (FREE, SHARED)


@dataclass(frozen=True, slots=True)
class Cells:
    """One entry per block, or per `per_cell` blocks, from block `first` on. Each [cells] but `counts`.

    `counts` int [cells, STATES] are its blocks by state, `state` the commonest (of equals the fuller one); `mixed`:
    there are several. `level` is the filled share of its slots in eighths, 0..8. `references` are the most of any
    block; `tint` is a number of a colour (a hue, or warm to cold) or NOBODY; `mark` what has just happened to it.
    """

    first: int
    per_cell: int
    counts: Ints
    state: Bytes
    level: Bytes
    mixed: Flags
    references: Ints
    tint: Bytes
    mark: Bytes

    @classmethod
    def of(
        cls,
        view: View,
        first: int = 0,
        last: int | None = None,
        per_cell: int = 1,
        colour_by: ColourBy = "owner",
    ) -> Cells:
        """Cells of blocks `first` to before `last`, of the whole pool unless said; copies, nothing of the columns."""
        blocks, size = view.blocks, view.engine.block_size
        last = len(blocks) if last is None else min(last, len(blocks))
        part = slice(first, last)
        state = states(view, first, last)
        starts = np.arange(0, last - first, per_cell)
        if per_cell == 1:
            counts = (state[:, None] == np.arange(STATES)).astype(np.int64)
            commonest, mixed, level = state, np.zeros(len(state), np.bool_), _levels(blocks.filled[part], size)
            references = blocks.references[part]
        else:
            members = np.minimum(per_cell, last - first - starts)
            counts = _counts(state, starts, members)
            commonest = _FULLER[counts[:, _FULLER].argmax(axis=1)]
            mixed = counts.max(axis=1) < members
            level = _levels(np.add.reduceat(blocks.filled[part], starts), size * members)
            references = np.maximum.reduceat(blocks.references[part], starts)
        return cls(
            first,
            per_cell,
            counts,
            commonest,
            level,
            mixed,
            references.astype(np.int64),
            _tints(view, part, per_cell, references, colour_by),
            marks(view, first, last, per_cell),
        )

    @property
    def used(self) -> Bytes:
        """Quarters of each cell's blocks that requests have filled, wholly or in part, 0..4."""
        return _quarters(self.counts[:, [FILLING, FULL, SHARED]].sum(axis=1), self.counts.sum(axis=1))

    @property
    def kept(self) -> Bytes:
        """Quarters of each cell's blocks that are cached or reserved, 0..4."""
        return _quarters(self.counts[:, [CACHED, RESERVED]].sum(axis=1), self.counts.sum(axis=1))

    def __len__(self) -> int:
        return len(self.state)


def states(view: View, first: int, last: int) -> Bytes:
    """The state of blocks `first` to before `last`. With external waste, holes too short are HOLE, as it counts them.

    Such holes have free and cached blocks: either can be had by a reservation.
    """
    blocks, engine = view.blocks, view.engine
    state = blocks.state[first:last].copy()
    if not view.waste.external:
        return state
    need = -(-engine.max_model_len // engine.block_size)
    # A hole that reaches this far beyond what is shown is long enough.
    begin, end = max(0, first - need), min(len(blocks), last + need)
    idle = np.zeros(end - begin + 2, np.bool_)
    np.equal(blocks.references[begin:end], 0, out=idle[1:-1])
    edges = np.flatnonzero(idle[1:] != idle[:-1])
    lengths = np.diff(edges)
    # Edges alternate between the start of a hole and its end, so the stretches between them do between hole and held.
    short = np.zeros(len(lengths), np.bool_)
    short[::2] = lengths[::2] < need
    if len(edges):
        inside = np.zeros(end - begin, np.bool_)
        inside[edges[0] : edges[-1]] = np.repeat(short, lengths)
        state[inside[first - begin : last - begin]] = HOLE
    return state


def marks(view: View, first: int, last: int, per_cell: int = 1) -> Bytes:
    """What has just happened to blocks `first` to before `last`, [cells]: the most telling of a cell's.

    RELEASED: let go of, by its last owner or by the cache. GREW: a block being filled got more.
    """
    cells = -(-(last - first) // per_cell)
    mark = np.zeros(last - first, np.uint8)
    if per_cell > MARKED_MIX:
        return np.zeros(cells, np.uint8)
    blocks = view.blocks
    recent = _recent(view)
    held = blocks.references[first:last] > 0
    if recent is not None:
        seq, time = recent
        changed = blocks.changed[first:last] >= seq
        mark[changed & (blocks.state[first:last] == FILLING)] = GREW
        mark[held & (blocks.since[first:last] >= time)] = TAKEN
        mark[changed & ~held] = RELEASED
    for block, code in copied(view).items():
        if first <= block < last:
            mark[block - first] = code
    return mark if per_cell == 1 else np.maximum.reduceat(mark, np.arange(0, last - first, per_cell))


def _recent(view: View) -> tuple[int, float] | None:
    """From which record on, by number and time, changes are marked; None: none is recent."""
    record = view.record
    if record is None or view.now - record.time > LAST_SHOWN:
        return None
    steps = takewhile(lambda step: step.time > view.now - CHANGES_SHOWN, reversed(view.steps))
    return min([(step.seq, step.time) for step in steps], default=(record.seq, record.time))


def copied(view: View) -> dict[int, int]:
    """Blocks copied just now and not let go of since: SOURCE or TARGET, as the latest copy has them."""
    out: dict[int, int] = {}
    for copy in recent_copies(view.steps, view.now):
        out[copy.source], out[copy.target] = SOURCE, TARGET
    return {block: code for block, code in out.items() if view.blocks.state[block] != FREE}


def recent_copies(steps: Sequence[Step], now: float) -> list[Copy]:
    """Of the last step and those just before it, which may all fall between two frames; the latest last."""
    before = takewhile(lambda step: step.time > now - COPIES_SHOWN, islice(reversed(steps), 1, None))
    recent = [*steps[-1:], *before]
    return [copy for step in reversed(recent) for copy in step.copies]


def _counts(state: Bytes, starts: Ints, members: Ints) -> Ints:
    """Blocks by state of each cell, [cells, STATES]."""
    counts = np.zeros((len(members), STATES), np.int64)
    if members[0] <= _PACKED:  # one pass: a field of nine bits for each state
        ones = np.left_shift(np.uint64(1), state * np.uint64(_BITS))
        sums = np.add.reduceat(ones, starts).astype(np.int64)
        for code in range(STATES):
            counts[:, code] = sums >> (code * _BITS) & ((1 << _BITS) - 1)
        return counts
    for code in range(FREE + 1, STATES):
        counts[:, code] = np.add.reduceat((state == code).view(np.uint8), starts)
    counts[:, FREE] = members - counts.sum(axis=1)
    return counts


def _levels(filled: npt.NDArray[np.int32], slots: Ints | int) -> Bytes:
    """Eighths of the slots: 0 only when empty, 8 only when full."""
    eighths = -(-filled.astype(np.int64) * 8 // slots)
    return np.where(filled >= slots, 8, np.minimum(eighths, 7)).astype(np.uint8)


def _quarters(part: Ints, whole: Ints) -> Bytes:
    """Quarters of `whole`: 0 only when there is none, 4 only when it is all."""
    near = np.clip((8 * part + whole) // np.maximum(2 * whole, 1), 1, QUARTERS - 1)
    return np.where(part == 0, 0, np.where(part >= whole, QUARTERS, near)).astype(np.uint8)


def _tints(
    view: View,
    part: slice,
    per_cell: int,
    references: npt.NDArray[np.int32],
    colour_by: ColourBy,
) -> Bytes:
    """A colour's number for each cell: the owner of its first and last held block where that is one, its most
    references, or its newest age."""
    blocks, starts = view.blocks, np.arange(0, part.stop - part.start, per_cell)
    match colour_by:
        case "owner":
            owner, owned = blocks.owner[part], blocks.references[part] > 0
            if per_cell == 1:
                one = owned & (owner != UNKNOWN)
                return np.where(one, owner % HUES, NOBODY).astype(np.uint8)
            first, last = _ends(owned, len(references), per_cell)
            one = owned[first] & (owner[first] == owner[last]) & (owner[first] != UNKNOWN)
            return np.where(one, owner[first] % HUES, NOBODY).astype(np.uint8)
        case "references":
            warmth = len(REFERENCE_STEPS) - np.searchsorted(REFERENCE_STEPS, references, side="right")
            return np.where(references > 0, warmth, NOBODY).astype(np.uint8)
        case "age":
            since = blocks.since[part] if per_cell == 1 else np.fmax.reduceat(blocks.since[part], starts)
            classes = np.searchsorted(AGE_STEPS, view.now - since, side="right")
            return np.where(np.isnan(since), NOBODY, classes).astype(np.uint8)
    return np.full(len(references), NOBODY, np.uint8)


def _ends(flags: Flags, cells: int, per_cell: int) -> tuple[Ints, Ints]:
    """The first and the last index of each cell that is True, or its own first and last; both [cells]."""
    padded = np.zeros(cells * per_cell, np.bool_)
    padded[: len(flags)] = flags
    square, starts = padded.reshape(cells, per_cell), np.arange(0, cells * per_cell, per_cell)
    first: Ints = starts + square.argmax(axis=1)
    last: Ints = starts + per_cell - 1 - square[:, ::-1].argmax(axis=1)
    return first, np.minimum(last, len(flags) - 1)
