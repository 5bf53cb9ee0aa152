"""A recording of a cluster, played: its states come at their time, faster, or step by step.

What was played stays in the tape; before that the file is read again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tui.cluster.recording import ClusterReading, Told
from tui.cluster.states import ClusterStates
from tui.cluster.tape import BUDGET
from tui.played import ENDS, MAX_LATE, Played
from tui.recording import RecordingError
from tui.recording_scan import SCAN_AFTER, RecordingScan
from tui.view import Playing

TURN = 0.02  # seconds of work before the screen has its turn


class ClusterPlayer(Played[Told]):
    """Run it in a task, and close it in any case. `states` are what was played. Opening raises RecordingError."""

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
        self._reading = ClusterReading(path)
        first = self._read()
        if first is None:
            raise RecordingError(self.note)
        self._next = first
        self._begin(first.time, speed, clock, sleep)
        self.span = Span(path, scan_after)
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

    def seek(self, seq: int) -> None:
        """Go to a state: forward all before it comes at once; back, the file is read again from its beginning."""
        if seq < self.states.heard:
            self._rewind()
        self._want(lambda: self.states.heard >= seq)

    def seek_event(self) -> None:
        """Go on at once to what a person would stop at, or to the end."""
        seen = self.states.heard
        self._want(lambda: self.states.tape.event_after(seen) is not None)

    async def run(self) -> None:
        """Hand over each state at its time, until cancelled."""
        self.span.start()
        turn = time.monotonic()
        while True:
            told = self._peek()
            if told is None or not (self._wanted is not None or self._is_time(told)):
                await self._wait(told)
                turn = time.monotonic()
                continue
            self._hand_over(told)
            if time.monotonic() - turn > TURN:
                await asyncio.sleep(0)
                turn = time.monotonic()

    async def close(self) -> None:
        self.span.stop()
        self._reading.close()
        self._pacing.wake()

    def _read(self) -> Told | None:
        """The next state of the file; None at its end, which `note` then explains."""
        try:
            return next(self._reading)
        except StopIteration:
            self.ended, self.note = True, self._reading.note or ENDS
        except RecordingError as error:
            self.ended, self.note = True, str(error)
        return None

    def _peek(self) -> Told | None:
        if self._next is None and not self.ended:
            self._next = self._read()
            if self.ended:
                self._wanted = None
        return self._next

    def _want(self, wanted: Callable[[], bool]) -> None:
        self._wanted = None if wanted() else wanted
        self._pacing.wake()

    def _hand_over(self, told: Told) -> None:
        """Tell the state now. Its own moment is the new reckoning where it did not come by the clock."""
        by_clock = self.playing and self._wanted is None and not math.isinf(self.speed)
        late = self._pacing.late(told.time)
        self._next = None
        self._time = max(self._time, told.time)
        if not by_clock or late > MAX_LATE:
            self._pacing.reckon(self._time)
        self.states.take(told.state, told.data)
        if self._wanted is not None and self._wanted():
            self._wanted = None

    def _rewind(self) -> None:
        """Begin the file again: what was played is forgotten."""
        self._reading.close()
        self.ended, self.note, self._next = False, "", None
        try:
            self._reading = ClusterReading(self.path)
        except RecordingError as error:  # it was there, and is no more
            self.ended, self.note = True, str(error)
            return
        self._time = self.began
        self._pacing.reckon(self.began)
        self.states.forget()


class Span(RecordingScan):
    """What a thread finds in a recording that is read once through: its last moment."""

    def __init__(self, path: Path, after: float) -> None:
        super().__init__(path, after)
        self.last = 0.0  # on the recording's clock

    def _read(self) -> None:
        reading = ClusterReading(self._path)
        try:
            for told in self._by_turns(reading):
                self.last = max(self.last, told.time)
        finally:
            reading.close()
