"""The KV events of one endpoint: the tree now, and any kept moment of it, by keyframes and the messages after them."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field

import msgspec

from servers.kv_events import Heard, Message, from_builtins
from servers.kv_tree import Churn, KvTree
from servers.looks import KEPT
from tui.sources.items import KvLink, KvMessage, KvPhase, KvState
from tui.sources.view import KvView

CHUNK = 64 << 10  # bytes of messages that are compressed together
SPACING = 256 << 10  # bytes of messages from one keyframe to the next at least; or as many as the keyframe itself has
CHURN_EVERY = 1.0  # seconds between two counts of churn
LATE = 2.0  # seconds later than another that a message is no longer of now: past ones come so, all at once
CHURN_COST, STANDING_COST = 300, 200  # bytes, about

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, object]).decode
_decode_all = msgspec.msgpack.Decoder(list[dict[str, object]]).decode


def _pack(value: object) -> bytes:
    """Raises ValueError for numbers that no program sends."""
    try:
        return _encode(value)
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"a number is too large: {error}") from None


@dataclass(slots=True)
class _Chunk:
    """Some messages, by the items that brought them: compressed as one once there are enough of them."""

    seqs: array[int] = field(default_factory=lambda: array("q"))
    open: list[dict[str, object]] = field(default_factory=list)
    raw: int = 0  # bytes of messages
    packed: bytes = b""

    def add(self, seq: int, payload: dict[str, object], size: int) -> None:
        """`size`: the message's bytes, uncompressed."""
        self.seqs.append(seq)
        self.open.append(payload)
        self.raw += size

    def close(self) -> None:
        self.packed, self.open = zlib.compress(_pack(self.open), 1), []

    def messages(self) -> list[dict[str, object]]:
        return _decode_all(zlib.decompress(self.packed)) if self.packed else self.open

    @property
    def size(self) -> int:
        return 8 * len(self.seqs) + (len(self.packed) if self.packed else self.raw)


@dataclass(slots=True)
class _Reel:
    """A tree after item `seq`, compressed (empty: of a tree with nothing in it), and the messages since."""

    seq: int
    heard: int
    state: bytes = b""
    state_raw: int = 0  # bytes of it, uncompressed
    raw: int = 0  # bytes of the messages since
    chunks: list[_Chunk] = field(default_factory=list)

    def restore(self) -> KvTree:
        return KvTree.from_state(_decode(zlib.decompress(self.state))) if self.state else KvTree()

    @property
    def size(self) -> int:
        return len(self.state) + sum(chunk.size for chunk in self.chunks)


@dataclass(slots=True)
class _Cursor:
    """A tree of the past, after item `seq`, that can go on within its reel."""

    reel: _Reel
    seq: int
    tree: KvTree
    heard: int


class KvTape:
    """Of one endpoint, heard of first in item `seq`. Items are taken in order."""

    def __init__(self, endpoint: str, seq: int) -> None:
        self.endpoint = endpoint
        self.tree = KvTree()
        self.born = seq
        self._reels = [_Reel(seq - 1, 0)]  # the item itself may bring a message
        self._heard = 0
        self._since: list[tuple[int, float | None]] = [(seq, None)]  # by item: when the first message came
        self._standings: list[tuple[int, KvPhase, str, float | None]] = [(seq, "connecting", "", None)]
        self._churned: list[tuple[int, float, Churn]] = []
        self._counted_from: list[int] = [seq]  # items from which on churn is of its time
        self._least_delay: float | None = None  # from when a message was published, on its own clock, to its coming
        self._cursor: _Cursor | None = None

    @property
    def size(self) -> int:
        """Bytes that the past takes: what the newest picture has does not belong to it."""
        lists = CHURN_COST * max(0, len(self._churned) - KEPT) + STANDING_COST * len(self._standings)
        return sum(reel.size for reel in self._reels) + lists

    @property
    def keyframes(self) -> tuple[int, ...]:
        """The items after which a tree is kept whole."""
        return tuple(reel.seq for reel in self._reels)

    def take(self, seq: int, time: float, item: KvMessage, message: Message) -> None:
        """Fold a message; `time` is the moment on the watcher's clock. Raises ValueError where it cannot be kept."""
        size = len(_pack(item.payload))
        self.tree.take(message)
        self._heard += 1
        if self._since[-1][1] is None:
            self._since.append((seq, time))
        if self._came_of_past(time, message):
            self._counted_from.append(seq)
        if (
            not self._churned
            or self._churned[-1][0] < max(self._since[-1][0], self._counted_from[-1])
            or (time - self._churned[-1][1] >= CHURN_EVERY)
        ):
            self._churned.append((seq, time, self.tree.churn))
        self.stand(seq, "live", "", time)
        reel = self._reels[-1]
        if not reel.chunks or reel.chunks[-1].packed:
            reel.chunks.append(_Chunk())
        reel.chunks[-1].add(seq, item.payload, size)
        reel.raw += size
        if reel.chunks[-1].raw >= CHUNK:
            reel.chunks[-1].close()
        if reel.raw >= max(SPACING, reel.state_raw):
            self._open_reel(seq, _pack(self.tree.to_state()))

    def _came_of_past(self, time: float, message: Message) -> bool:
        """Whether this message shows that those before it came late: what was stored in them was so at other times."""
        if not isinstance(message, Heard):
            return False
        delay, least = time - message.batch.time, self._least_delay
        if least is None or delay < least:
            self._least_delay = delay
        return least is not None and delay < least - LATE

    def stand(self, seq: int, phase: KvPhase, detail: str, time: float | None) -> None:
        """How the subscription stands from item `seq` on, in this phase since `time`; None: not known."""
        _, before, said, since = self._standings[-1]
        if (before, said) != (phase, detail) or since is None:
            kept = phase == before and since is not None
            self._standings.append((seq, phase, detail, since if kept else time))

    def begin_anew(self, seq: int, time: float) -> None:
        """What was there is of a server that is there no more."""
        self.tree, self._heard, self._least_delay = KvTree(), 0, None
        self._since.append((seq, None))
        self.stand(seq, "connecting", "", time)
        self._open_reel(seq, b"")

    def set(self, seq: int, item: KvState) -> None:
        """Go on from a tree as it was when a recording began. Raises ValueError where it cannot be one."""
        tree = KvTree.from_state(item.state)
        state = _pack(tree.to_state())
        self.tree, self._heard = tree, item.heard
        self._since.append((seq, item.since))
        self.stand(seq, "live" if item.heard else "connecting", "", None)
        self._open_reel(seq, state)

    def state(self, source: int, time: float) -> tuple[KvState | KvLink, ...]:
        """What makes a fresh one what this is now, but for its past."""
        _, phase, detail, since = self._standings[-1]
        tree = KvState(source, time, self.endpoint, self._heard, self._since[-1][1], self.tree.to_state())
        link = KvLink(source, time, self.endpoint, phase, detail, since)
        return (tree, link) if self._heard else (link,)

    def view(self) -> KvView:
        """Now."""
        return self._view(
            self.tree, self._heard, len(self._standings), len(self._since), len(self._churned), len(self._counted_from)
        )

    def view_at(self, seq: int) -> KvView:
        """After item `seq`; the tree changes with the next question. Raises LookupError where it is not kept."""
        cursor = self._moment(seq)
        return self._view(
            cursor.tree,
            cursor.heard,
            bisect_right(self._standings, seq, key=lambda standing: standing[0]),
            bisect_right(self._since, seq, key=lambda since: since[0]),
            bisect_right(self._churned, seq, key=lambda churned: churned[0]),
            bisect_right(self._counted_from, seq),
        )

    def drop(self, seq: int) -> None:
        """What is needed for nothing after item `seq`, `seq` included."""
        at = bisect_right(self._reels, seq, key=lambda reel: reel.seq) - 1
        if at > 0:
            del self._reels[:at]
            self._cursor = None
        for kept in (self._standings, self._since):
            at = bisect_right(kept, seq, key=lambda one: one[0]) - 1
            if at > 0:
                del kept[:at]
        at = bisect_right(self._churned, seq, key=lambda one: one[0]) - KEPT
        if at > 0:
            del self._churned[:at]
        del self._counted_from[: max(0, bisect_right(self._counted_from, seq) - 1)]

    def _view(self, tree: KvTree, heard: int, standings: int, sinces: int, churned: int, counts: int) -> KvView:
        _, phase, detail, stood = self._standings[standings - 1]
        begun, since = self._since[sinces - 1]
        begun = max(begun, self._counted_from[counts - 1])
        times = tuple(
            (time, churn) for seq, time, churn in self._churned[max(0, churned - KEPT) : churned] if seq >= begun
        )
        return KvView(self.endpoint, tree, heard, phase, detail, since, stood, times)

    def _moment(self, seq: int) -> _Cursor:
        at = bisect_right(self._reels, seq, key=lambda reel: reel.seq) - 1
        if at < 0:
            raise LookupError(f"the KV events before item {self._reels[0].seq:,} are not kept")
        reel, cursor = self._reels[at], self._cursor
        if cursor is None or cursor.reel is not reel or cursor.seq > seq:
            cursor = _Cursor(reel, reel.seq, reel.restore(), reel.heard)
        self._cursor = None  # what breaks off in the middle is not gone on from
        for chunk in reel.chunks:
            if chunk.seqs[-1] <= cursor.seq:
                continue
            begin, end = bisect_right(chunk.seqs, cursor.seq), bisect_right(chunk.seqs, seq)
            if begin == end:
                break
            for payload in chunk.messages()[begin:end]:
                cursor.tree.take(from_builtins(payload))
                cursor.heard += 1
        cursor.seq = seq
        self._cursor = cursor
        return cursor

    def _open_reel(self, seq: int, state: bytes) -> None:
        chunks = self._reels[-1].chunks
        if chunks and not chunks[-1].packed:
            chunks[-1].close()
        self._reels.append(_Reel(seq, self._heard, zlib.compress(state, 1) if state else b"", len(state)))
