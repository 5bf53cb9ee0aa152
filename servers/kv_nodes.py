"""Blocks of one hash space, linked to the block before them, with constant work for each that is told of. Pure.

A node without a medium is not resident: it stands for a block that others go on from, until it is stored (again).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

from servers.kv_events import BlockHash, BlockRemoved, BlockStored, hash_from_builtin, hash_to_builtin

Medium = str | None
Above = Literal["start", "block", "unseen", "removed"]

REMEMBERED = 50_000  # hashes of blocks that went, to know them when they are computed again
COUNTED = ("stored", "evicted", "again", "unknown_parents", "unknown_removals")
OPENING = 32  # token ids that are kept of a block
_TOKEN = array("I").itemsize  # bytes


class Node:
    """`media`: where it is, sorted. `placed`: whether it was told what comes before it, `parent` or nothing.

    Children are a list linked through `older` and `newer`, so that one is taken out at once. All are resident.
    """

    __slots__ = (
        "child",
        "gone",
        "hash",
        "lora",
        "media",
        "newer",
        "older",
        "parent",
        "placed",
        "size",
        "time",
    )

    def __init__(self, block_hash: BlockHash) -> None:
        self.hash = block_hash
        self.media: tuple[Medium, ...] = ()
        self.parent: Node | None = None
        self.placed = False
        self.child: Node | None = None  # the newest
        self.older: Node | None = None
        self.newer: Node | None = None
        self.gone = False
        self.size = 0  # tokens
        self.lora: str | None = None
        self.time = 0.0

    @property
    def above(self) -> Above:
        if self.parent is None:
            return "start" if self.placed else "unseen"
        if self.parent.media:
            return "block"
        return "removed" if self.parent.gone else "unseen"


class Space:
    """The blocks of one rank and group. The counters are raised only: the tree adds them to its churn."""

    def __init__(self) -> None:
        self.nodes: dict[BlockHash, Node] = {}
        self.copies: dict[tuple[BlockHash, Medium], int] = {}  # beyond the first
        self.openings: dict[BlockHash, bytes] = {}  # packed token ids of resident blocks, where they are kept
        self.removed: OrderedDict[int, None] = OrderedDict()  # oldest first
        self.by_medium: dict[Medium, int] = {}
        self.resident = 0
        self.tokens = 0
        self.stored = self.evicted = self.again = self.unknown_parents = self.unknown_removals = 0

    def store(self, event: BlockStored, time: float, room: int) -> int:
        """Returns how many blocks had no room: no more than `room` are added."""
        before = event.parent
        known_parent = before is not None or event.block_size > 0
        if before is not None and not self._is_resident(before):
            self.unknown_parents += 1
        alone = (event.medium,)
        for index, block_hash in enumerate(event.hashes):
            node = self.nodes.get(block_hash)
            if node is None or not node.media:
                if not room:
                    return len(event.hashes) - index
                room -= 1
                node = self._arrive(block_hash, node)
            if not node.placed and known_parent:
                self._place(node, before)
            self._measure(node, event.block_size)
            node.lora = event.lora if event.lora is not None else node.lora
            node.time = time
            self._add_medium(node, alone)
            before, known_parent = block_hash, True
        return 0

    def keep_openings(self, event: BlockStored, most: int) -> None:
        """The first token ids of the event's blocks that are resident; of more than `most` in all, half are forgotten.

        None where they do not match the blocks.
        """
        size = event.block_size
        if not size or len(event.token_ids) != size * len(event.hashes):
            return
        try:
            packed = array("I", event.token_ids).tobytes()
        except OverflowError:
            return
        nodes, openings = self.nodes, self.openings
        step, width = _TOKEN * size, _TOKEN * min(size, OPENING)
        for first, block_hash in zip(range(0, len(packed), step), event.hashes[:most], strict=False):
            node = nodes.get(block_hash)
            if node is not None and node.media:
                openings[block_hash] = packed[first : first + width]
        if len(self.openings) > most:
            # The oldest go first, but after all of them those that a run begins with: they are its name.
            for block_hash in sorted(self.openings, key=self._begins_run)[: len(self.openings) - most // 2]:
                del self.openings[block_hash]

    def opening(self, first: BlockHash, last: BlockHash, most: int) -> tuple[int, ...]:
        """The first token ids of blocks that follow each other without a branch, as far as they are kept."""
        tokens = array("I")
        node = self.nodes.get(first)
        while node is not None and len(tokens) < most and (packed := self.openings.get(node.hash)) is not None:
            tokens.frombytes(packed)
            child = node.child
            if node.hash == last or node.size > OPENING or child is None or child.older is not None:
                break
            node = child
        return tuple(tokens[:most])

    def _begins_run(self, block_hash: BlockHash) -> bool:
        node = self.nodes[block_hash]
        alone = node.older is None and node.newer is None
        return node.parent is None or not node.parent.media or not alone

    def remove(self, event: BlockRemoved) -> None:
        for block_hash in event.hashes:
            node = self.nodes.get(block_hash)
            medium = event.medium
            if node is not None and medium not in node.media and len(node.media) == 1:
                # Some publishers name the medium in one kind of event only.
                medium = node.media[0] if None in (medium, node.media[0]) else medium
            if node is None or medium not in node.media:
                self.unknown_removals += 1
            elif (block_hash, medium) in self.copies:
                self._drop_copy(block_hash, medium)
            else:
                self._take_medium(node, medium)

    def clear(self) -> None:
        self.nodes.clear()
        self.copies.clear()
        self.openings.clear()
        self.removed.clear()
        self.by_medium.clear()
        self.resident = self.tokens = 0

    def copy(self) -> Space:
        other = Space()
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if isinstance(value, dict) else value)
        twins = other.nodes = {block_hash: _twin(node) for block_hash, node in self.nodes.items()}
        for node in twins.values():
            for link in ("parent", "child", "older", "newer"):
                linked = getattr(node, link)
                if linked is not None:
                    setattr(node, link, twins[linked.hash])
        return other

    def to_state(self) -> dict[str, object]:
        """Fit for JSON, parents before children. Media and adapters, of which there are few, are told once."""
        order = self._parents_first()
        place = {node.hash: index for index, node in enumerate(order)}
        media = list(dict.fromkeys(node.media for node in order))
        parents = [None if node.parent is None else place[node.parent.hash] for node in order]
        loras = list(dict.fromkeys(node.lora for node in order))
        return {
            "media": media,
            "loras": loras,
            "hash": [hash_to_builtin(node.hash) for node in order],
            "parent": parents,
            "placed": [node.placed for node in order],
            "medium": [media.index(node.media) for node in order],
            "lora": [loras.index(node.lora) for node in order],
            "size": [node.size for node in order],
            "time": [node.time for node in order],
            "gone": [index for index, node in enumerate(order) if node.gone],
            "copies": [[place[block_hash], medium, count] for (block_hash, medium), count in self.copies.items()],
            "removed": [hash_to_builtin(key) for key in self.removed],
            **{name: getattr(self, name) for name in COUNTED},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Space:
        """Raises KeyError, IndexError, TypeError or ValueError for what `to_state` does not make."""
        space = cls()
        media = [tuple(map(_name, one)) for one in state["media"]]
        loras = [_name(one) for one in state["loras"]]
        order: list[Node] = []
        columns = (state[name] for name in ("hash", "parent", "placed", "medium", "lora", "size", "time"))
        for came, parent, placed, medium, lora, size, time in zip(*columns, strict=True):
            if parent is not None and not 0 <= parent < len(order):
                raise ValueError(f"block {len(order)} is before its parent {parent}")
            node = Node(hash_from_builtin(came))
            space.nodes[node.hash] = node
            order.append(node)
            node.media, node.lora, node.size, node.time = (
                media[medium], loras[lora], counted(size), moment(time),
            )  # fmt: skip
            node.placed = bool(placed)
            if parent is not None:
                _link(node, order[parent])
            for one in node.media:
                space.by_medium[one] = space.by_medium.get(one, 0) + 1
            if node.media:
                space.resident += 1
                space.tokens += size
        if len(space.nodes) < len(order):
            raise ValueError("a block is there twice")
        for index in state["gone"]:
            order[index].gone = True
        for index, medium, count in state["copies"]:
            space.copies[order[index].hash, _name(medium)] = counted(count)
        for key in state["removed"]:
            space.removed[short(hash_from_builtin(key))] = None
        for name in COUNTED:
            setattr(space, name, counted(state[name]))
        return space

    def _parents_first(self) -> list[Node]:
        out: list[Node] = []
        waiting = [node for node in self.nodes.values() if node.parent is None]
        while waiting:
            node = waiting.pop()
            out.append(node)
            child = node.child
            while child is not None:
                waiting.append(child)
                child = child.older
        return out

    def _is_resident(self, block_hash: BlockHash) -> bool:
        node = self.nodes.get(block_hash)
        return node is not None and bool(node.media)

    def _arrive(self, block_hash: BlockHash, node: Node | None) -> Node:
        if node is None:
            node = self.nodes[block_hash] = Node(block_hash)
        node.gone = False
        self.resident += 1
        key = short(block_hash)
        if key in self.removed:
            del self.removed[key]
            self.again += 1
        return node

    def _place(self, node: Node, before: BlockHash | None) -> None:
        if before is None:
            node.placed = True
            return
        parent = self.nodes.get(before)
        if parent is None:
            parent = self.nodes[before] = Node(before)
            parent.gone = short(before) in self.removed
        if (node.child is not None and _comes_after(parent, node)) or parent is node:
            # Hashes of the contents alone, as SGLang once had, can name a block that comes before itself.
            self._drop_if_unused(parent)
            return
        _link(node, parent)

    def _measure(self, node: Node, size: int) -> None:
        if not node.size and size:
            node.size = size
            self.tokens += size

    def _add_medium(self, node: Node, alone: tuple[Medium]) -> None:
        (medium,) = alone
        if medium in node.media:
            key = (node.hash, medium)
            self.copies[key] = self.copies.get(key, 0) + 1
            return
        self.stored += 1
        self.by_medium[medium] = self.by_medium.get(medium, 0) + 1
        node.media = alone if not node.media else _sorted((*node.media, *alone))

    def _drop_copy(self, block_hash: BlockHash, medium: Medium) -> None:
        left = self.copies[block_hash, medium] - 1
        if left:
            self.copies[block_hash, medium] = left
        else:
            del self.copies[block_hash, medium]

    def _take_medium(self, node: Node, medium: Medium) -> None:
        self.evicted += 1
        self.by_medium[medium] -= 1
        if not self.by_medium[medium]:
            del self.by_medium[medium]
        node.media = tuple(one for one in node.media if one != medium)
        if node.media:
            return
        self.resident -= 1
        self.tokens -= node.size
        key = short(node.hash)
        self.removed[key] = None
        self.removed.move_to_end(key)
        if len(self.removed) > REMEMBERED:
            self.removed.popitem(last=False)
        self._unlink(node)
        self.openings.pop(node.hash, None)
        node.gone, node.size, node.lora = True, 0, None
        self._drop_if_unused(node)

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        node.placed, node.parent = False, None
        if parent is None:
            return
        if node.newer is None:
            parent.child = node.older
        else:
            node.newer.older = node.older
        if node.older is not None:
            node.older.newer = node.newer
        node.older = node.newer = None
        self._drop_if_unused(parent)

    def _drop_if_unused(self, node: Node) -> None:
        if not node.media and node.child is None and self.nodes.get(node.hash) is node:
            del self.nodes[node.hash]


def short(block_hash: BlockHash) -> int:
    """Eight bytes of a hash, to remember it by and to order equals."""
    return block_hash if isinstance(block_hash, int) else int.from_bytes(block_hash[:8], "big")


def counted(came: Any) -> int:
    """A count in a state. Raises ValueError."""
    if not isinstance(came, int) or not 0 <= came < 1 << 63:
        raise ValueError(f"a count is wanted, {came!r} came")
    return came


def moment(came: Any) -> float:
    """A time in a state. Raises ValueError."""
    if not isinstance(came, int | float):
        raise ValueError(f"a time is wanted, {came!r} came")
    return float(came)


def _name(came: Any) -> str | None:
    if came is not None and not isinstance(came, str):
        raise ValueError(f"a name is wanted, {came!r} came")
    return came


def _sorted(media: tuple[Medium, ...]) -> tuple[Medium, ...]:
    return tuple(sorted(media, key=lambda medium: medium or ""))


def _link(node: Node, parent: Node) -> None:
    node.placed, node.parent = True, parent
    node.older = parent.child
    if node.older is not None:
        node.older.newer = node
    parent.child = node


def _twin(node: Node) -> Node:
    twin = Node.__new__(Node)
    for name in Node.__slots__:
        setattr(twin, name, getattr(node, name))
    return twin


def _comes_after(node: Node | None, first: Node) -> bool:
    """Whether `first` is above `node`. Asked only of blocks that are stored after others that go on from them."""
    while node is not None:
        if node is first:
            return True
        node = node.parent
    return False
