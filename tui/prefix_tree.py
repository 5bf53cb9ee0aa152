"""The tree of what requests share or have found again: runs of blocks, whose they are, and what each run saves.

Built from the block tables of a view and, for cached blocks that nobody holds, from what they were last seen to go on
from. In it are the blocks that several tables hold, that were found in the prefix cache, or from which more than one
other block goes on; and everything before them. A chain without branches and with the same references is one node.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from tui.block_columns import CACHED, UNKNOWN
from tui.history import Windows
from tui.view import View

LARGE_POOL = 16_384  # blocks from which on a tree may be older than the view
LARGE_POOL_AGE = 1.0  # seconds of engine time for which it then serves, at least
LARGE_TREE = 100_000  # blocks in it, for each of which many it serves as long again

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Node:
    """A run of blocks that follow one another with the same references, for as long as nothing branches off.

    `references` is the number of requests that hold it; `hits` how often it, or its beginning, was found in the prefix
    cache; `position` the blocks before it; `depth` the nodes above it, `below` all those under it.
    """

    blocks: tuple[int, ...]
    references: int
    hits: int
    position: int
    depth: int
    below: int
    block_bytes: int

    @property
    def last(self) -> int:
        """The block that stands for the node: while it lives, nothing else ends in it."""
        return self.blocks[-1]

    @property
    def logical_blocks(self) -> int:
        """In block tables."""
        return self.references * len(self.blocks)

    @property
    def saved_blocks(self) -> int:
        return max(0, self.references - 1) * len(self.blocks)

    @property
    def saved_bytes(self) -> int:
        return self.saved_blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Nodes from the top down, each before what goes on from it, what saves most first; arrays are [nodes].

    Node i's blocks are `blocks[starts[i]:starts[i + 1]]`, and its `sizes[i] - 1` descendants follow it. `unknown` is
    the number of cached blocks of which was never seen what they go on from. `seq` is the record it was made after.
    """

    seq: int
    blocks: Ints
    starts: Ints  # [nodes + 1]
    references: Ints
    hits: Ints
    positions: Ints
    depths: Ints
    parents: Ints  # the node above each, UNKNOWN at the top
    sizes: Ints
    unknown: int = 0
    block_bytes: int = 0

    def __len__(self) -> int:
        return len(self.references)

    @property
    def saved(self) -> Ints:
        """Blocks that each node saves."""
        return np.maximum(self.references - 1, 0) * np.diff(self.starts)

    @property
    def saved_blocks(self) -> int:
        return int(self.saved.sum())

    @property
    def lasts(self) -> Ints:
        """The last block of each node."""
        return self.blocks[self.starts[1:] - 1]

    def node(self, index: int) -> Node:
        return Node(
            blocks=tuple(self.blocks[self.starts[index] : self.starts[index + 1]].tolist()),
            references=int(self.references[index]),
            hits=int(self.hits[index]),
            position=int(self.positions[index]),
            depth=int(self.depths[index]),
            below=int(self.sizes[index]) - 1,
            block_bytes=self.block_bytes,
        )

    def index_of(self, block: int | None) -> int | None:
        """The node that has a block, whatever came before or after it since; None where none does."""
        if block is None or not len(self):
            return None
        found = np.flatnonzero(self.blocks == block).tolist()
        return int(np.searchsorted(self.starts, found[0], "right")) - 1 if found else None

    def visible(self, closed: frozenset[int]) -> Ints:
        """The nodes that no node among `closed` (by their last blocks) hides."""
        shown = np.ones(len(self), np.bool_)
        for index in np.flatnonzero(np.isin(self.lasts, list(closed))).tolist() if closed else ():
            shown[index + 1 : index + self.sizes[index]] = False
        return np.flatnonzero(shown)


class _Latest:
    """The last tree made: a frame asks for it several times, and one of a large pool serves for a while."""

    def __init__(self) -> None:
        self.history: Windows | None = None
        self.seq = 0
        self.now = 0.0
        self.tree: PrefixTree | None = None

    def of(self, view: View) -> PrefixTree:
        if self.tree is None or self.history is not view.history or not self._serves(self.tree, view):
            self.tree = build(view)
            self.history, self.seq, self.now = view.history, view.seq, view.now
        return self.tree

    def _serves(self, tree: PrefixTree, view: View) -> bool:
        if self.seq >= view.seq or len(view.blocks) < LARGE_POOL:
            return self.seq == view.seq
        return 0 <= view.now - self.now < LARGE_POOL_AGE * max(1.0, len(tree.blocks) / LARGE_TREE)


_latest = _Latest()


def tree_of(view: View) -> PrefixTree:
    """The tree of a view; of a large pool one that is a second older or, if it is large, some, as its `seq` tells."""
    return _latest.of(view)


def holders(view: View, node: Node) -> tuple[str, ...]:
    """The requests whose tables hold a node's last block, in the order of their arrival."""
    at = node.position + len(node.blocks) - 1
    last = node.last
    found = [name for name, state in view.requests.items() if state.table[at : at + 1] == (last,)]
    if len(found) != node.references:  # it may lie elsewhere in a table that holds another copy of what is before it
        found = [name for name, state in view.requests.items() if last in state.table]
    return tuple(found)


def build(view: View) -> PrefixTree:
    """The tree of what is in memory now."""
    columns = view.blocks
    references, parent = columns.references, columns.parent
    held = references > 0
    cached, unknown = _known(view)
    present = held | cached
    linked = parent[present]
    branches = np.bincount(linked[linked != UNKNOWN], minlength=len(columns)) > 1
    inside = (references > 1) | (present & (branches | (columns.hashed & (columns.hits > 0))))
    before = _predecessors([state.table for state in view.requests.values()], inside & held, parent)
    _close(inside, before)
    ids = np.flatnonzero(inside)
    index = np.full(len(columns), UNKNOWN, np.int64)
    index[ids] = np.arange(len(ids))
    above = before[ids]
    up = np.where(above == UNKNOWN, UNKNOWN, index[above])
    tree = _runs(ids, up, references[ids].astype(np.int64), columns.hits[ids].astype(np.int64))
    return replace(
        tree,
        seq=view.seq,
        unknown=unknown,
        block_bytes=view.engine.block_size * view.engine.kv_bytes_per_token,
    )


def _known(view: View) -> tuple[Bools, int]:
    """Which cached blocks' chains are known to their beginnings [blocks], and of how many others they are not.

    A block goes on from one that was findable when it became so: where that is no longer, the chain is broken.
    """
    columns = view.blocks
    cached = columns.state == CACHED
    ids = np.flatnonzero(cached)
    if not len(ids):
        return cached, 0
    parent = columns.parent[ids].astype(np.int64)
    first = parent == UNKNOWN
    broken = np.where(first, columns.owner[ids] == UNKNOWN, ~columns.hashed[parent])
    if (broken & ~first).any():
        lost = np.zeros(len(columns), np.bool_)
        lost[ids[broken]] = True
        ends = np.arange(len(columns))
        going_on = ~broken & ~first
        ends[ids[going_on]] = parent[going_on]
        broken = lost[_tops(ends)[ids]]
    cached[ids[broken]] = False
    return cached, int(broken.sum())


def _predecessors(tables: Sequence[tuple[int, ...]], wanted: Bools, parent: npt.NDArray[np.int32]) -> Ints:
    """The block before each one [blocks]: as the tables have it for what is `wanted`, else as it was last seen.

    What is wanted is nearly always the beginning of each table: only that is read, unless some of it was not there.
    """
    before = parent.astype(np.int64)
    is_wanted = wanted.tobytes()

    begins: dict[tuple[int, int], tuple[int, ...]] = {}  # by length and last block: equal ones are read once
    for table in tables:
        length = bisect_left(table, True, key=lambda block: not is_wanted[block])
        if length:
            begins.setdefault((length, table[length - 1]), table[:length])
    seen = _note(list(begins.values()), before)
    if (wanted & ~seen).any():
        _note(tables, before)
    return before


def _note(tables: Sequence[tuple[int, ...]], before: Ints) -> Bools:
    """Write what these tables say into `before`; returns which blocks are in them [blocks]."""
    lengths = np.fromiter(map(len, tables), np.int64, len(tables))
    flat = np.fromiter(chain.from_iterable(tables), np.int64, int(lengths.sum()))
    previous = np.concatenate(([UNKNOWN], flat[:-1]))[: len(flat)]
    firsts = (np.cumsum(lengths) - lengths)[lengths > 0]
    previous[firsts] = UNKNOWN
    before[flat] = previous
    seen = np.zeros(len(before), np.bool_)
    seen[flat] = True
    return seen


def _close(inside: Bools, before: Ints) -> None:
    """Take in what comes before anything that is `inside`."""
    edge = np.flatnonzero(inside)
    while len(edge):
        above = before[edge]
        above = above[above != UNKNOWN]
        edge = np.unique(above[~inside[above]])
        inside[edge] = True


def _tops(up: Ints) -> Ints:
    """Where each ends that follows `up` as far as it goes; who points to itself is an end. Cycles end anywhere."""
    for _ in range(len(up).bit_length() + 1):
        nearer, up = up, up[up].astype(np.int64, copy=False)
        if (nearer == up).all():
            break
    return up


def _depths(up: Ints) -> Ints:
    """How many are above each, where `up` is who is (UNKNOWN: nobody). What runs in a circle has its links cut."""
    at = np.arange(len(up))
    tops = np.where(up == UNKNOWN, at, up)
    depths: Ints = (up != UNKNOWN).astype(np.int64)
    for _ in range(len(up).bit_length() + 1):
        if (up[tops] == UNKNOWN).all():
            return depths
        depths = depths + depths[tops]
        tops = tops[tops]
    endless = up[tops] != UNKNOWN
    up[endless] = UNKNOWN
    return _depths(up)


def _runs(ids: Ints, up: Ints, references: Ints, hits: Ints) -> PrefixTree:
    """The tree of these blocks; `up` is the place in `ids` of the one before each."""
    if not len(ids):
        return PrefixTree(0, ids, np.zeros(1, np.int64), ids, ids, ids, ids, ids, ids)
    positions = _depths(up)
    children = np.bincount(up[up != UNKNOWN], minlength=len(ids))
    head = (up == UNKNOWN) | (children[up] != 1) | (references[up] != references)
    heads = np.flatnonzero(head)
    run = np.searchsorted(heads, _tops(np.where(head, np.arange(len(ids)), up)))
    lengths = np.bincount(run, minlength=len(heads))
    parents = np.where(up[heads] == UNKNOWN, UNKNOWN, run[up[heads]])
    depths = _depths(parents)
    saved = np.maximum(references[heads] - 1, 0) * lengths
    place, sizes = _places(parents, depths, saved, hits[heads], ids[heads])
    order = np.argsort(place)
    starts = np.concatenate(([0], np.cumsum(lengths[order])))
    inner = np.lexsort((positions, place[run]))
    return PrefixTree(
        seq=0,
        blocks=ids[inner],
        starts=starts,
        references=references[heads][order],
        hits=np.maximum.reduceat(hits[inner], starts[:-1]),
        positions=positions[heads][order],
        depths=depths[order],
        parents=np.where(parents[order] == UNKNOWN, UNKNOWN, place[parents[order]]),
        sizes=sizes[order],
    )


def _places(parents: Ints, depths: Ints, saved: Ints, hits: Ints, firsts: Ints) -> tuple[Ints, Ints]:
    """Each node's place from the top, and the nodes of its branch: what saves most with all under it comes first."""
    count = len(parents)
    totals, sizes = saved.copy(), np.ones(count, np.int64)
    by_depth = np.argsort(depths, kind="stable")
    bounds = np.searchsorted(depths[by_depth], np.arange(int(depths.max(initial=0)) + 2))
    levels = [by_depth[low:high] for low, high in pairwise(bounds)]
    for level in reversed(levels[1:]):
        np.add.at(totals, parents[level], totals[level])
        np.add.at(sizes, parents[level], sizes[level])
    order = np.lexsort((firsts, -hits, -totals, parents, depths))
    earlier = np.cumsum(sizes[order]) - sizes[order]
    siblings = parents[order]
    begins = np.concatenate(([True], siblings[1:] != siblings[:-1]))[:count]
    earlier -= earlier[np.maximum.accumulate(np.where(begins, np.arange(count), 0))]
    place = np.empty(count, np.int64)
    place[order] = earlier
    for level in levels[1:]:
        place[level] += place[parents[level]] + 1
    return place, sizes
