"""A recording that is played forward alone, at its pace or at once; to go back, its file is read again.

So are those of servers and of clusters. That of an engine's steps has an index: see `tui.player`.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from tui.played import ENDS, MAX_LATE, ItemT, Played
from tui.recording import Lines, RecordingError
from tui.recording_scan import RecordingScan
from tui.view import Playing

TURN = 0.02  # seconds of work before the screen has its turn


class Span(RecordingScan):
    """What a thread finds in a recording that is read once through: its last moment, on the recording's clock."""

    def __init__(self, path: Path, after: float) -> None:
        super().__init__(path, after)
        self.last = 0.0


class ForwardPlayer(Played[ItemT], ABC):
    """Run it in a task, and close it in any case. Whoever is one sets `span` and `_reading` besides."""

    span: Span
    _reading: Lines[ItemT]

    def __init__(self, path: Path) -> None:
        """Raises RecordingError where it cannot be read back and forth."""
        super().__init__(path)
        self._wanted: Callable[[], bool] | None = None  # until this holds, all is handed over at once

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

    @abstractmethod
    def seek(self, number: int, /) -> None:
        """Go to an item of that number, as a person counts them."""

    async def run(self) -> None:
        """Hand over each item at its time, until cancelled."""
        self.span.start()
        turn = time.monotonic()
        while True:
            item = self._peek()
            if item is None or not (self._wanted is not None or self._is_time(item)):
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

    @abstractmethod
    def _open(self) -> Sequence[ItemT]:
        """Read the file from its beginning; what comes before all that has its time there. Raises RecordingError."""

    @abstractmethod
    def _take(self, item: ItemT) -> None:
        """Tell an item to whoever shows it."""

    @abstractmethod
    def _forget(self) -> None:
        """Nothing was told."""

    def _read(self) -> ItemT | None:
        """The next item of the file; None at its end, which `note` then explains."""
        try:
            return next(self._reading)
        except StopIteration:
            self.ended, self.note = True, self._reading.note or ENDS
        except RecordingError as error:
            self.ended, self.note = True, str(error)
        return None

    def _peek(self) -> ItemT | None:
        if self._next is None and not self.ended:
            self._next = self._read()
            if self.ended:
                self._wanted = None
        return self._next

    def _want(self, wanted: Callable[[], bool]) -> None:
        """Go on at once until that holds."""
        self._wanted = None if wanted() else wanted
        self._pacing.wake()

    def _hand_over(self, item: ItemT) -> None:
        """Tell the item now. Its own moment is the new reckoning where it did not come by the clock."""
        by_clock = self.playing and self._wanted is None and not math.isinf(self.speed)
        late = self._pacing.late(item.time)
        self._next = None
        self._time = max(self._time, item.time)
        if not by_clock or late > MAX_LATE:
            self._pacing.reckon(self._time)
        self._take(item)
        if self._wanted is not None and self._wanted():
            self._wanted = None

    def _rewind(self) -> None:
        """Begin the file again: what was played is forgotten."""
        self._reading.close()
        self.ended, self.note, self._next = False, "", None
        try:
            beginning = self._open()
        except RecordingError as error:  # it was there, and is no more
            self.ended, self.note = True, str(error)
            return
        self._time = self.began
        self._pacing.reckon(self.began)
        self._forget()
        for item in beginning:
            self._take(item)
