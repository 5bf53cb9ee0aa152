"""A file that is played: whether time goes on, how fast, and what time it is there; whatever is recorded in it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tui.pacing import Pacing
from tui.recording import STDIN, RecordingError

MAX_LATE = 2.0  # seconds behind its time from which on an item's own moment is the new reckoning
TICK = 1e-6  # seconds: so close is now
ENDS = "the recording ends here"


class Timed(Protocol):
    """What has its moment, on the recording's clock."""

    @property
    def time(self) -> float: ...


ItemT = TypeVar("ItemT", bound=Timed)


class Played(Generic[ItemT]):
    """`playing`: time goes on. `ended`: the last picture stays; `note` says why, in words.

    `began`: when the recording begins, on its clock. Whoever is one sets it, `_time`, `_next` and `_pacing`.
    """

    began: float
    _time: float  # of what was handed over
    _next: ItemT | None  # read, and not yet handed over
    _pacing: Pacing

    def __init__(self, path: Path) -> None:
        """Raises RecordingError where it cannot be read back and forth."""
        if path == STDIN or (path.exists() and not path.is_file()):
            raise RecordingError(f"{path} is not a file: a recording is read from a file, back and forth")
        self.path = path
        self.ended = False
        self.note = ""

    def _begin(
        self, time: float, speed: float, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        """The recording begins at `time`, and so does its clock. Raises ValueError for a speed that there is not."""
        self.began = self._time = time
        self._pacing = Pacing(time, speed, clock, sleep)

    @property
    def playing(self) -> bool:
        return self._pacing.playing

    @property
    def speed(self) -> float:
        return self._pacing.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._pacing.set_speed(speed, self.now())

    @property
    def waits(self) -> float:
        """Seconds, at this speed, until the next item comes; 0 where none will."""
        if not self.playing or self.ended or self._next is None or math.isinf(self.speed):
            return 0.0
        return self._pacing.until(self._next.time, self.now())

    def now(self) -> float:
        """The recording's time: it stands still while paused and at the end, and never runs ahead of what is known."""
        latest = self._time if self.ended or self._next is None else max(self._time, self._next.time)
        return self._pacing.now(self._time, latest)

    def resume(self) -> None:
        if not self.playing:
            self._pacing.reckon(self.now())
            self._pacing.playing = True
            self._pacing.wake()

    def _stand_still(self) -> None:
        self._pacing.reckon(self.now())
        self._pacing.playing = False

    def _is_time(self, item: ItemT) -> bool:
        """Whether an item has come by the clock."""
        return self.playing and (math.isinf(self.speed) or self.now() >= item.time - TICK)

    async def _wait(self, item: ItemT | None) -> None:
        """Until `item` may be due, or something was asked for."""
        seconds = None if item is None or not self.playing else self._pacing.until(item.time, self.now())
        await self._pacing.wait(seconds)
