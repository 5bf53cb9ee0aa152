"""Which row of the batch's picture each request has. It keeps it while it runs; the lowest free one goes next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Literal

from engine.protocol import Left, Record

End = Literal["", "left", "aborted", "finished", "preempted", "swapped"]


class Lanes:
    """`by_request` has the lane of every request in the batch. Moved by each record in two halves, around its rows."""

    __slots__ = ("_free", "by_request")

    def __init__(self, by_request: Mapping[str, int] | None = None) -> None:
        self.by_request: dict[str, int] = dict(by_request or {})
        self._free: list[int] = []  # a heap of all below the longest there has been
        self._find_free()

    def begin(self, running: Iterable[str]) -> None:
        """Go on with these, each where it was if it was there."""
        names = list(running)
        alive = set(names)
        self.by_request = {name: lane for name, lane in self.by_request.items() if name in alive}
        self._find_free()
        for name in names:
            self._enter(name)

    def open(self, record: Record) -> None:
        """Those who left before the step was planned go, and those who joined it come."""
        for name, _ in gone_before(record):
            self._leave(name)
        for joined in record.joined:
            self._enter(joined.request)

    def close(self, record: Record) -> None:
        """Those who left with the step go."""
        for left in record.left:
            self._leave(left.request)

    def _enter(self, name: str) -> None:
        if name not in self.by_request:
            self.by_request[name] = heappop(self._free) if self._free else len(self.by_request)

    def _leave(self, name: str) -> None:
        lane = self.by_request.pop(name, None)
        if lane is not None:
            heappush(self._free, lane)

    def _find_free(self) -> None:
        taken = set(self.by_request.values())
        self._free = [lane for lane in range(max(taken, default=-1) + 1) if lane not in taken]
        heapify(self._free)


def gone_before(record: Record) -> Iterator[tuple[str, End]]:
    """Who left the batch before the step was planned, and how: they have no row in it."""
    for preempted in record.preempted:
        yield preempted.request, "swapped" if preempted.by == "swap" else "preempted"
    if record.left:
        in_batch = {row.request for row in record.rows}
        for left in record.left:
            if left.request not in in_batch:
                yield left.request, ending(left)
    for released in record.released:
        yield released, "left"


def ending(left: Left) -> End:
    """How the end of a request is shown."""
    return "left" if left.reason in ("stop", "length") else "aborted"
