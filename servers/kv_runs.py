"""The blocks of a tree as runs without a branch, so that a screen has a line for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from servers.kv_events import BlockHash
from servers.kv_nodes import Above, Node, Space, short


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks that follow each other without a branch, from `first` on: one line of the tree.

    `depth` is how many runs are above it, `before` how many tokens of those that are here. `below` are the blocks that
    go on from it, `below_tokens` their tokens, `children` the runs that do so at once.

    `above` is what comes before it: nothing, it is the start of a prompt; another run's block; or one that is not here,
    because it was never seen (stored before the watching began, or not kept) or was removed. From a removed one no
    request can go on, but in layers that look back a window only.

    `parent`: the block before its first, where it was told of one, also if that is not here.

    `medium`: all that have its blocks, as "CPU+GPU"; None where it is not told.
    """

    first: BlockHash
    last: BlockHash
    blocks: int
    tokens: int
    depth: int
    before: int
    below: int
    below_tokens: int
    children: int
    above: Above
    lora: str | None = None
    medium: str | None = None
    group: int = 0  # of layers that share block tables; 0 also where it is not told
    rank: int = 0  # data-parallel; 0 also where it is not told
    stored: float = 0.0  # Unix time of its last block
    parent: BlockHash | None = None

    @property
    def known(self) -> bool:
        """Whether what comes before it is here."""
        return self.above in ("start", "block")

    @property
    def total(self) -> int:
        """Blocks in and below it: what the prefix costs."""
        return self.blocks + self.below


class Line:
    """A run before anybody asks for it."""

    __slots__ = (
        *("above", "before", "blocks", "children", "depth", "first", "last", "space", "tokens"),
        *("below", "below_tokens"),
    )

    def __init__(self, first: Node, space: tuple[int, int], parent: Line | None) -> None:
        self.first, self.space = first, space
        self.above: Above = first.above
        self.depth: int = parent.depth + 1 if parent else 0
        self.before: int = parent.before + parent.tokens if parent else 0
        self.below = self.below_tokens = 0
        self.children: list[Line] = []
        node, blocks, tokens = first, 1, first.size
        while True:
            child = node.child
            if child is None or child.older is not None or child.media != node.media or child.lora != node.lora:
                break
            node, blocks, tokens = child, blocks + 1, tokens + child.size
        self.last: Node = node
        self.blocks: int = blocks
        self.tokens: int = tokens

    @property
    def total(self) -> int:
        return self.blocks + self.below

    def run(self) -> Run:
        named = [medium for medium in self.first.media if medium is not None]
        return Run(
            first=self.first.hash,
            last=self.last.hash,
            blocks=self.blocks,
            tokens=self.tokens,
            depth=self.depth,
            before=self.before,
            below=self.below,
            below_tokens=self.below_tokens,
            children=len(self.children),
            above=self.above,
            lora=self.first.lora,
            medium="+".join(named) or None,
            rank=self.space[0],
            group=self.space[1],
            stored=self.last.time,
            parent=self.first.parent.hash if self.first.parent is not None else None,
        )


def lines_of(spaces: Mapping[tuple[int, int], Space]) -> list[Line]:
    """Depth first, the largest subtree first. Costs one walk over all blocks."""
    roots: list[Line] = []
    parents_first: list[tuple[Line, Line | None]] = []
    for key, space in spaces.items():
        waiting: list[tuple[Node, Line | None]] = [
            (node, None)
            for node in space.nodes.values()
            if node.media and (node.parent is None or not node.parent.media)
        ]
        while waiting:
            node, parent = waiting.pop()
            line = Line(node, key, parent)
            parents_first.append((line, parent))
            (parent.children if parent else roots).append(line)
            child = line.last.child
            while child is not None:
                waiting.append((child, line))
                child = child.older
    for line, parent in reversed(parents_first):
        line.children.sort(key=_largest_first)
        if parent is not None:
            parent.below += line.total
            parent.below_tokens += line.tokens + line.below_tokens
    out: list[Line] = []
    stack = sorted(roots, key=_largest_first, reverse=True)
    while stack:
        line = stack.pop()
        out.append(line)
        stack.extend(reversed(line.children))
    return out


def _largest_first(line: Line) -> tuple[int, tuple[int, int], int]:
    return -line.total, line.space, short(line.first.hash)
