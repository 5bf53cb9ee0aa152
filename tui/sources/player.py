"""A recording of servers, played: its items come to its sources at their time, faster, or step by step.

The sources' clock is the recording's. What was played stays in their tapes; before that the file is read again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from tui.forward_player import ForwardPlayer, Span
from tui.recording import RecordingError
from tui.recording_scan import SCAN_AFTER
from tui.sources.items import Item, SourceHead
from tui.sources.recording import Glance, SourceReading, read_glances, read_items
from tui.sources.source import Source
from tui.sources.tape import BUDGET


class SourcePlayer(ForwardPlayer[Item]):
    """Opening reads the heads alone; raises RecordingError.

    `sources` are those recorded, in the order of their heads.
    A look's number is its place among those of its server; the recording is at look n when one server has so many.
    """

    span: SourceSpan

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
        heads = self._open()
        self._begin(heads[0].time, speed, clock, sleep)
        self.span = SourceSpan(path, scan_after)
        named = {head.source: head for head in heads}
        share = budget // len(named)
        self.sources = tuple(Source(head.name, head.url, self.now, number, share) for number, head in named.items())
        self._by_number = {source.number: source for source in self.sources}
        for head in heads:
            self._take(head)

    @property
    def looks(self) -> int:
        """The look that it is at."""
        return max(source.tape.looks_seen for source in self.sources)

    def step(self) -> None:
        """Pause, and go one look further."""
        self.pause()
        self.seek(self.looks + 1)

    def seek(self, look: int, of: Source | None = None) -> None:
        """Go to a look, of one server or of that which has most: forward all before it comes at once; back, the file
        is read again from its beginning."""

        def looks() -> int:
            return self.looks if of is None else of.tape.looks_seen

        if look < looks():
            self._rewind()
        self._want(lambda: looks() >= look)

    def seek_event(self) -> None:
        """Go on at once to what a person would stop at, or to the end."""
        seen = {source: source.items for source in self.sources}
        self._want(lambda: any(source.tape.event_after(items) for source, items in seen.items()))

    def _open(self) -> list[SourceHead]:
        """Gives the heads; what comes next is read as well."""
        self._reading = read_items(self.path)
        heads: list[SourceHead] = []
        self._next = None
        while isinstance(item := self._read(), SourceHead):
            heads.append(item)
        if not heads:
            raise RecordingError(self.note)
        self._next = item
        return heads

    def _take(self, item: Item) -> None:
        source = self._by_number.get(item.source)
        if source is not None:  # else the file was another one when it was opened first
            source.take(item)

    def _forget(self) -> None:
        for source in self.sources:
            source.forget()


class SourceSpan(Span):
    """And how many looks it has."""

    def __init__(self, path: Path, after: float) -> None:
        super().__init__(path, after)
        self.looks = 0  # of the server that has most

    def _read(self) -> None:
        reading = read_glances(self._path)
        try:
            self._note(reading)
        finally:
            reading.close()

    def _note(self, reading: SourceReading[Glance]) -> None:
        looks: Counter[int] = Counter()
        last = -math.inf
        for glance in self._by_turns(reading):
            last = max(last, glance.time)
            looks[glance.source] += glance.is_look
            self.last, self.looks = last, max(self.looks, looks[glance.source])
