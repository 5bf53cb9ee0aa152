"""A recording of a cluster, played: its states come at their time, faster, or step by step.

What was played stays in the tape; before that the file is read again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tui.cluster.recording import ClusterReading, Told
from tui.cluster.states import ClusterStates
from tui.cluster.tape import BUDGET
from tui.forward_player import ForwardPlayer, Span
from tui.recording import RecordingError
from tui.recording_scan import SCAN_AFTER


class ClusterPlayer(ForwardPlayer[Told]):
    """`states` are what was played. Opening raises RecordingError."""

    def __init__(
        self,
        path: Path,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        scan_after: float = SCAN_AFTER,
        budget: int = BUDGET,
    ) -> None:
        super().__init__(path)
        self.states = ClusterStates(budget)
        self._open()
        first = self._read()
        if first is None:
            raise RecordingError(self.note)
        self._next = first
        self._begin(first.time, speed, clock, sleep)
        self.span = ClusterSpan(path, scan_after)

    def seek(self, seq: int) -> None:
        """Go to a state: forward all before it comes at once; back, the file is read again from its beginning."""
        if seq < self.states.heard:
            self._rewind()
        self._want(lambda: self.states.heard >= seq)

    def seek_event(self) -> None:
        """Go on at once to what a person would stop at, or to the end."""
        seen = self.states.heard
        self._want(lambda: self.states.tape.event_after(seen) is not None)

    def _open(self) -> Sequence[Told]:
        self._reading = ClusterReading(self.path)
        return ()

    def _take(self, item: Told) -> None:
        self.states.take(item.state, item.data)

    def _forget(self) -> None:
        self.states.forget()


class ClusterSpan(Span):
    def _read(self) -> None:
        reading = ClusterReading(self._path)
        try:
            for told in self._by_turns(reading):
                self.last = max(self.last, told.time)
        finally:
            reading.close()
