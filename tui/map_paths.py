"""What is lit in the block map: a request's block table in its order, or a shared prefix and those who share it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tui.block_columns import UNKNOWN
from tui.focus import Focus
from tui.view import View

Ints = npt.NDArray[np.int64]

RIGHT, LEFT, DOWN, UP, JUMP, TAIL = range(6)  # where the next block of a path is


@dataclass(frozen=True, slots=True)
class Lit:
    """`path`: blocks in logical order [path]. `others`: blocks of its sharers' own [others]. `sharers`: requests.

    `request`: the one whose table the path is; None: it is a prefix.
    """

    path: Ints
    others: Ints
    sharers: int
    request: str | None = None


def lit(view: View, focus: Focus) -> Lit | None:
    """What is selected: in front of the sharing panel its run, else the request, if it holds anything."""
    node = focus.sharing.node
    if focus.panel == "sharing" and node is not None and 0 <= node < len(view.blocks):
        tables = _tables_with(view, node)
        path = _prefix(view, node, tables)
        own = np.unique(np.concatenate([_array(table) for table in tables])) if tables else _array(())
        return Lit(path, np.setdiff1d(own, path, assume_unique=True), len(tables))
    state = view.requests.get(focus.request) if focus.request is not None else None
    if state is None or not state.table:
        return None
    return Lit(_array(state.table), _array(()), 1, state.request)


def chain(view: View, node: int) -> Ints:
    """The blocks of a prefix from its first to `node`: of a table that holds it, else as far back as can be known."""
    return _prefix(view, node, _tables_with(view, node))


def _prefix(view: View, node: int, tables: list[tuple[int, ...]]) -> Ints:
    return _array(tables[0][: tables[0].index(node) + 1] if tables else _seen_before(view, node))


def _seen_before(view: View, node: int) -> list[int]:
    """A block and those it went on from in a table, the first first, while they still hold what they did."""
    parent, hashed = view.blocks.parent, view.blocks.hashed
    back, seen = [node], {node}
    while (before := int(parent[back[-1]])) != UNKNOWN and before not in seen and hashed[before]:
        back.append(before)
        seen.add(before)
    return back[::-1]


def owners(view: View, block: int) -> list[tuple[str, int]]:
    """The requests that hold a block, in the order of their arrival, with its index in their tables."""
    if not view.blocks.references[block]:
        return []
    return [(request, state.table.index(block)) for request, state in view.requests.items() if block in state.table]


def steps(path: Ints, row_blocks: int) -> tuple[Ints, Ints]:
    """Where the next block is from each of a path's, and the number of the stretch of neighbours that each begins.

    Both [path]; the number is 0 for those that begin none. A row of the map goes on in the next one, so the block after
    a row's last is to its right.
    """
    ahead = np.diff(path)
    way = np.full(len(path), JUMP, np.int64)
    for code, offset in ((UP, -row_blocks), (DOWN, row_blocks), (LEFT, -1), (RIGHT, 1)):
        way[:-1][ahead == offset] = code
    begins = np.ones(len(path), np.bool_)
    begins[1:] = way[:-1] == JUMP
    way[-1:] = TAIL
    return way, np.where(begins, np.cumsum(begins), 0)


def _tables_with(view: View, block: int) -> list[tuple[int, ...]]:
    """The block tables that contain a block; they have it at one index, which is tried first where it is known."""
    held = int(view.blocks.references[block])
    if not held:
        return []
    index = len(_seen_before(view, block)) - 1
    tables = [state.table for state in view.requests.values()]
    there = [table for table in tables if index < len(table) and table[index] == block]
    return there if len(there) == held else [table for table in tables if block in table]


def _array(blocks: tuple[int, ...] | list[int]) -> Ints:
    return np.array(blocks, np.int64)
