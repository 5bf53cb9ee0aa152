"""The bounded past of a cluster: its states, compressed, the oldest dropped first, and what happened in them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from engine.cluster.protocol import ClusterState, decode_cluster
from tui.chunk import Chunk

BUDGET = 64 << 20  # bytes kept in all
CHUNK = 256 << 10  # bytes of states that are compressed together


class ClusterTape:
    """States are counted from 1, as they came. `budget` is in bytes."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._chunks: list[Chunk] = []
        self._times = array("d")  # of the states kept
        self._events: list[tuple[int, str]] = []  # numbers and words
        self._unpacked: tuple[Chunk, list[bytes]] | None = None  # the last one that was read
        self.last = 0

    @property
    def first(self) -> int:
        """The oldest one kept; 0 of an empty tape."""
        return self._chunks[0].first if self._chunks else 0

    @property
    def size(self) -> int:
        """What is kept, in bytes."""
        return sum(chunk.size for chunk in self._chunks)

    def keep(self, data: bytes, time: float, words: str) -> None:
        """A state as it came; `words`: what happened in it, empty: nothing of note."""
        self.last += 1
        if not self._chunks or self._chunks[-1].packed:
            self._chunks.append(Chunk(self.last))
        chunk = self._chunks[-1]
        chunk.add(data)
        self._times.append(time if not self._times else max(time, self._times[-1]))
        if words:
            self._events.append((self.last, words))
        if chunk.size >= CHUNK:
            chunk.close()
            self._drop()

    def state(self, seq: int) -> ClusterState:
        """One of those kept."""
        chunk = self._chunks[bisect_right(self._chunks, seq, key=lambda chunk: chunk.first) - 1]
        if self._unpacked is None or self._unpacked[0] is not chunk or not chunk.packed:
            self._unpacked = chunk, chunk.data()
        return decode_cluster(self._unpacked[1][seq - chunk.first])

    def time(self, seq: int) -> float:
        return self._times[seq - self.first]

    def nearest(self, seq: int) -> int:
        return min(max(seq, self.first), self.last)

    def earlier(self, seq: int, seconds: float) -> int | None:
        """The newest one that is so many seconds older, else the oldest; None: it is itself the oldest."""
        at = bisect_right(self._times, self.time(seq) - seconds)
        found = self.first + max(0, at - 1)
        return found if found < seq else None

    def event_after(self, seq: int) -> tuple[int, str] | None:
        at = bisect_right(self._events, seq, key=lambda event: event[0])
        return self._events[at] if at < len(self._events) else None

    def event_before(self, seq: int) -> tuple[int, str] | None:
        at = bisect_left(self._events, seq, key=lambda event: event[0])
        return self._events[at - 1] if at else None

    def _drop(self) -> None:
        """The oldest, while there is too much; the newest stay."""
        first = self.first
        while len(self._chunks) > 1 and self.size > self._budget:
            del self._chunks[0]
        if self.first != first:
            del self._times[: self.first - first]
            self._events = self._events[bisect_left(self._events, self.first, key=lambda event: event[0]) :]
            self._unpacked = None
