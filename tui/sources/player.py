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

from tui.played import ENDS, MAX_LATE, Played
from tui.recording import RecordingError
from tui.recording_scan import SCAN_AFTER, RecordingScan
from tui.sources.items import Item, SourceHead
from tui.sources.recording import Glance, SourceReading, read_glances, read_items
from tui.sources.source import Source
from tui.sources.tape import BUDGET
from tui.view import Playing

TURN = 0.02  # seconds of work before the screen has its turn


class SourcePlayer(Played[Item]):
    """Run it in a task, and close it in any case. Opening reads the heads alone; raises RecordingError.

    `sources` are those recorded, in the order of their heads.
    A look's number is its place among those of its server; the recording is at look n when one server has so many.
    """

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
        self._reading = read_items(path)
        heads = self._read_heads()
        self._begin(heads[0].time, speed, clock, sleep)
        self.span = Span(path, scan_after)
        self._wanted: Callable[[], bool] | None = None  # until this holds, all is handed over at once
        named = {head.source: head for head in heads}
        share = budget // len(named)
        self.sources = tuple(Source(head.name, head.url, self.now, number, share) for number, head in named.items())
        self._by_number = {source.number: source for source in self.sources}
        for head in heads:
            self._by_number[head.source].take(head)

    @property
    def looks(self) -> int:
        """The look that it is at."""
        return max(source.tape.looks_seen for source in self.sources)

    @property
    def duration(self) -> float | None:
        """Seconds, once a thread has read the whole file."""
        return self.span.last - self.began if self.span.done else None

    @property
    def complete(self) -> bool:
        """Whether it ended where it was meant to: nothing is broken there."""
        return self.ended and self.note == ENDS

    @property
    def arrived(self) -> bool:
        """Whether all is handed over that was asked for, as far as the file has it."""
        return self.ended or self._wanted is None

    @property
    def status(self) -> Playing:
        """How far it has been played."""
        told = self.now() - self.began
        return Playing(told, self.duration, self.speed, self.playing, self.ended, self.waits, self.note)

    def pause(self) -> None:
        """Stand still, also on the way to what was asked for."""
        self._stand_still()
        self._wanted = None
        self._pacing.wake()

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

    async def run(self) -> None:
        """Hand over each item at its time, until cancelled."""
        self.span.start()
        turn = time.monotonic()
        while True:
            item = self._peek()
            if item is None or not self._due(item):
                await self._wait(item)
                turn = time.monotonic()
                continue
            self._hand_over(item)
            if time.monotonic() - turn > TURN:
                await asyncio.sleep(0)
                turn = time.monotonic()

    async def close(self) -> None:
        self.span.stop()
        self._reading.close()
        self._pacing.wake()

    def _read_heads(self) -> list[SourceHead]:
        """Those that the file begins with; what comes next is read as well."""
        heads: list[SourceHead] = []
        self._next = None
        while isinstance(item := self._read(), SourceHead):
            heads.append(item)
        if not heads:
            raise RecordingError(self.note)
        self._next = item
        return heads

    def _read(self) -> Item | None:
        """The next item of the file; None at its end, which `note` then explains."""
        try:
            return next(self._reading)
        except StopIteration:
            self.ended, self.note = True, self._reading.note or ENDS
        except RecordingError as error:
            self.ended, self.note = True, str(error)
        return None

    def _peek(self) -> Item | None:
        if self._next is None and not self.ended:
            self._next = self._read()
            if self.ended:
                self._wanted = None
        return self._next

    def _want(self, wanted: Callable[[], bool]) -> None:
        self._wanted = None if wanted() else wanted
        self._pacing.wake()

    def _due(self, item: Item) -> bool:
        return self._wanted is not None or self._is_time(item)

    def _hand_over(self, item: Item) -> None:
        """Tell the item now. Its own moment is the new reckoning where it did not come by the clock."""
        by_clock = self.playing and self._wanted is None and not math.isinf(self.speed)
        late = self._pacing.late(item.time)
        self._next = None
        self._time = max(self._time, item.time)
        if not by_clock or late > MAX_LATE:
            self._pacing.reckon(self._time)
        self._by_number[item.source].take(item)
        if self._wanted is not None and self._wanted():
            self._wanted = None

    def _rewind(self) -> None:
        """Begin the file again: what was played is forgotten."""
        self._reading.close()
        self.ended, self.note = False, ""
        try:
            self._reading = read_items(self.path)
            heads = self._read_heads()
        except RecordingError as error:  # it was there, and is no more
            self.ended, self.note = True, str(error)
            return
        self._time = self.began
        self._pacing.reckon(self.began)
        for source in self.sources:
            source.forget()
        for head in heads:
            if head.source in self._by_number:
                self._by_number[head.source].take(head)


class Span(RecordingScan):
    """What a thread finds in a recording that is read once through: its last moment, and how many looks it has."""

    def __init__(self, path: Path, after: float) -> None:
        super().__init__(path, after)
        self.last = 0.0  # the latest moment, on the recording's clock
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
