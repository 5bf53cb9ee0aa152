"""A recording, played as if it were an engine: at its own pace or faster, step by step, forward and back.

The player's clock is the recording's: `Feed(player, player.now, wall=player.wall)` tells ages and times as they were.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.protocol import BlockText, EngineInfo, Gap, LiveLoad, Record, RequestText, Snapshot, decode_item
from tui.checks import Contradiction, check_snapshot
from tui.engine_api import Accepted, Missing, NotAnEngine, Refused
from tui.played import ENDS, MAX_LATE, Played
from tui.recording import Reading, RecordingError, lives_on
from tui.recording_index import Index, Mark
from tui.recording_scan import SCAN_AFTER

NOWHERE = -1
TOGETHER = 8  # records that are handed over before the screen has its turn
NO_CHANGE = "a recording cannot be changed"
NO_TEXT = "a recording holds no text"
NO_LOAD = "a recording holds nothing of load generators"
FAULT_NEXT = "the last step before the fault"  # of a crash file: it is written when the engine finds it cannot go on
_CRASH_FILE = re.compile(r"crash-\d{8}-\d{6}-\d+\.jsonl(\.gz)?")  # as the engine's server names them


@dataclass(frozen=True, slots=True)
class Position:
    """The last record that was handed over, and the seconds since the recording began."""

    seq: int
    seconds: float


@dataclass(slots=True)
class _Life:
    """One life of the recorded engine, whose records have numbers of their own: where it begins, and with which.

    `last` is that of its last record, once a later life is known.
    """

    engine: EngineInfo
    start: Mark
    last: int = 0


class Player(Played[Record | Snapshot]):
    """Implements `tui.client.Engine` over a file. Opening reads its first line alone; raises RecordingError.

    `engine` is the recorded one in the life that is shown. `first` is the number of the life's first picture; `last`
    and `duration` (seconds) are known once a thread has read the whole file.
    """

    def __init__(
        self,
        path: Path,
        speed: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        scan_after: float = SCAN_AFTER,
    ) -> None:
        super().__init__(path)
        self._reading = Reading(path, decode_item)
        start = next(self._reading)
        assert isinstance(start, Snapshot)
        try:
            check_snapshot(start)
        except Contradiction as error:
            raise RecordingError(f"{path}: its first snapshot cannot be true: {error}") from None
        self._begin(start.time, speed, clock, sleep)
        self._lives = [_Life(start.engine, Mark(start.seq, 0, 1))]
        self._life = 0  # the one that is shown
        self.index = Index(path, scan_after)
        self._picture: Snapshot | None = start  # to be handed over before any record
        self._told: Snapshot | None = None  # handed over, and no records asked for since
        self._next = None
        self._seq = start.seq  # of what was handed over
        self._target = NOWHERE  # up to here all is handed over at once
        self._owed = 0  # steps that were asked for
        self._rewinds = 0

    @property
    def engine(self) -> EngineInfo:
        return self._lives[self._life].engine

    @property
    def first(self) -> int:
        return self._lives[self._life].start.seq

    @property
    def earlier(self) -> bool:
        """Whether the engine was started again before what is shown."""
        return self._life > 0

    @property
    def position(self) -> Position:
        return Position(self._seq, self.now() - self.began)

    @property
    def last(self) -> int | None:
        return self.index.last.seq if self.index.done and self.index.last else None

    @property
    def duration(self) -> float | None:
        return self.index.last.time - self.began if self.index.done and self.index.last else None

    @property
    def complete(self) -> bool:
        """Whether it ended where it was meant to: nothing is broken or missing there."""
        return self.ended and self.note in (ENDS, FAULT_NEXT)

    @property
    def arrived(self) -> bool:
        """Whether all is handed over that `seek` and `step` asked for, as far as the file has it."""
        return self.ended or (self._next is not None and not self._owed and self._next.seq > self._target)

    def wall(self) -> float:
        """The Unix time of that moment; 0 where the engine did not tell its own."""
        engine = self.engine
        return engine.started_unix + self.now() - engine.started if engine.started_unix else 0.0

    def pause(self) -> None:
        """Stand still, also on the way to where `seek` was to lead."""
        self._stand_still()
        self._target = NOWHERE
        self._pacing.wake()

    def step(self) -> None:
        """Pause, and go one record further."""
        self.pause()
        self._owed += not self.ended
        self._pacing.wake()

    def seek(self, seq: int) -> None:
        """Go to a record: forward all before it comes at once; back, the nearest snapshot and all that follows it.

        Before a life's first one lie the last ones of the life before.
        """
        self._owed = 0
        if seq < self.first and self.earlier:
            before = self._lives[self._life - 1]
            seq = max(before.start.seq, before.last + 1 + seq - self.first)
            self._target = seq
            self._rewind(seq, self._life - 1)
        else:
            self._target = seq
            if seq < self._seq:
                self._rewind(seq, self._life)
        self._pacing.wake()

    def event(self, seq: int, on: bool) -> int | None:
        """The next record after `seq`, or the last before it, with a switch, a preemption, a copy or a gap before it.

        None where none is known: the file is read through once, in the background. The first record of a life that is
        not the first has the end of the one before it, whose number is less than any of this life's.
        """
        if on:
            return self.index.event_after(seq, self._life)
        found = self.index.event_before(seq, self._life)
        return self.first - 1 if found is None and self.earlier else found

    async def snapshot(self) -> Snapshot:
        """The picture that records go on from. Asked for out of turn, the reader does not believe what it was told."""
        while self._picture is None or self._picture is self._told:
            item = self._peek()
            if item is None:
                raise NotAnEngine(f"the recording contradicts itself after record {self._seq:,}")
            self._next = None
            if isinstance(item, Snapshot):
                self._hand_over(item)
            await asyncio.sleep(0)
        self._told = self._picture
        return self._picture

    async def steps(self, first: int) -> AsyncIterator[Record | Gap]:
        """Records from the last picture on, each at its time. The stream ends where a snapshot is to be read."""
        self.index.start()
        self._told = None
        rewinds, handed = self._rewinds, 0
        while rewinds == self._rewinds:
            item = self._peek()
            if item is None or not self._due(item):
                await self._wait(item)
                continue
            self._next = None
            before = self._seq
            self._hand_over(item)
            if isinstance(item, Snapshot):
                yield Gap(before + 1, item.seq)
                return
            self._picture = None
            if item.seq >= first:
                yield item
            handed += 1
            if handed % TOGETHER == 0:
                await asyncio.sleep(0)

    async def change(self, changes: dict[str, Any]) -> Accepted:
        raise Refused(NO_CHANGE)

    async def request_text(self, request: str, first: int) -> RequestText:
        raise Missing(NO_TEXT)

    async def block_text(self, block: int) -> BlockText:
        raise Missing(NO_TEXT)

    async def cancel(self, request: str) -> tuple[str, ...]:
        raise Refused(NO_CHANGE)

    async def loads(self) -> tuple[LiveLoad, ...]:
        raise Missing(NO_LOAD)

    async def failure(self) -> str:
        return ""

    async def unready(self) -> str:
        return ""

    async def close(self) -> None:
        self.index.stop()
        self._reading.close()
        self._pacing.wake()

    def _peek(self) -> Record | Snapshot | None:
        """What comes next; None at the end."""
        while self._next is None and not self.ended:
            gap: Gap | None = None
            try:
                item = next(self._reading)
                if isinstance(item, Gap):
                    gap = item
                    item = next(self._reading)
                assert not isinstance(item, Gap)
                self._next = item
                self._note_life(item)
            except StopIteration:
                lost = f"records {gap.first:,} to {gap.last:,} are missing, and no snapshot follows" if gap else ""
                self._end(lost or self._reading.note)
            except RecordingError as error:
                self._end(str(error))
        return self._next

    def _note_life(self, item: Record | Snapshot) -> None:
        """Remember where the engine's next life begins, when its snapshot has been read."""
        if isinstance(item, Snapshot) and lives_on(self.engine, item.engine) and len(self._lives) == self._life + 1:
            self._lives[-1].last = self._seq
            self._lives.append(_Life(item.engine, Mark(item.seq, self._reading.offset, self._reading.line)))

    def _end(self, note: str) -> None:
        self.ended, self.note = True, note or (FAULT_NEXT if _CRASH_FILE.fullmatch(self.path.name) else ENDS)
        self._owed = 0

    def _due(self, item: Record | Snapshot) -> bool:
        if self._owed or item.seq <= self._target:
            return True
        return self._is_time(item)

    def _hand_over(self, item: Record | Snapshot) -> None:
        """Note that `item` is told now. Its own moment is the new reckoning where it did not come by the clock."""
        late = self._pacing.late(item.time)
        by_clock = self.playing and not self._owed and item.seq > self._target and not math.isinf(self.speed)
        self._owed = max(0, self._owed - 1)
        if isinstance(item, Snapshot):
            self._picture = item
            self._life += lives_on(self.engine, item.engine)
        self._seq, self._time = item.seq, item.time
        if item.seq >= self._target:
            self._target = NOWHERE  # records of the next life have the same numbers
        if not by_clock or late > MAX_LATE:
            self._pacing.reckon(item.time)

    def _rewind(self, seq: int, life: int) -> None:
        """Read again from the nearest snapshot of a life that is not after `seq`."""
        mark = self.index.snapshot_before(seq, life) or self._lives[life].start
        try:
            reading = Reading(self.path, decode_item, mark.offset, mark.line)
            picture = next(reading)
        except RecordingError as error:  # it was there, and is no more
            self._end(str(error))
            return
        assert isinstance(picture, Snapshot)
        self._reading.close()
        self._reading, self._picture, self._next, self._life = reading, picture, None, life
        self._seq, self._time = picture.seq, picture.time
        self.ended, self.note = False, ""
        self._pacing.reckon(picture.time)
        self._rewinds += 1
