"""What a thread finds in a recording that is read once through: where its snapshots and events are, and its end."""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from engine.protocol import Gap
from tui.recording import Head, Reading, RecordHead, RecordingError, SnapshotHead, lives_on, read_heads
from tui.tape import events

SCAN_AFTER = 1.0  # seconds: the first picture comes first
SCAN_WORK, SCAN_REST = 0.02, 0.04  # seconds by turns, so that the screen does not feel it


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a snapshot lies in the file: bytes (uncompressed) before its line, and the line's number."""

    seq: int
    offset: int
    line: int


@dataclass(slots=True)
class _Life:
    """Of one life of the engine: its snapshots, and the numbers of its records of note."""

    marks: list[Mark] = field(default_factory=list)
    events: array[int] = field(default_factory=lambda: array("q"))


class Index:
    """Records are asked for by number in a life of the engine: 0 is the first, and each restart begins one.

    `last` is the last item seen so far; `done`: all was seen. 8 bytes an event are kept, and nothing of the rest.
    """

    def __init__(self, path: Path, after: float) -> None:
        self._path = path
        self._after = after
        self.last: RecordHead | SnapshotHead | None = None
        self.done = False
        self._lives = [_Life()]
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, once."""
        if self._thread is None and not self._over.is_set():
            self._thread = threading.Thread(target=self._work, name="recording-scan", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def join(self) -> None:
        """Wait for the thread (tests)."""
        if self._thread:
            self._thread.join()

    def event_after(self, seq: int, life: int = 0) -> int | None:
        events = self._known(life).events
        at = bisect_right(events, seq)
        return events[at] if at < len(events) else None

    def event_before(self, seq: int, life: int = 0) -> int | None:
        events = self._known(life).events
        at = bisect_left(events, seq)
        return events[at - 1] if at else None

    def snapshot_before(self, seq: int, life: int = 0) -> Mark | None:
        """The last known one after a life's first that is not after `seq`; None: that first one is nearest."""
        marks = self._known(life).marks
        at = bisect_right(marks, seq, key=lambda mark: mark.seq)
        return marks[at - 1] if at else None

    def _known(self, life: int) -> _Life:
        return self._lives[life] if life < len(self._lives) else _Life()

    def _work(self) -> None:
        if self._over.wait(self._after):
            return
        # What cannot be read ends the index where it ends the playing; the player has the words.
        with suppress(RecordingError):
            self._read()
        self.done = not self._over.is_set()

    def _read(self) -> None:
        heads = read_heads(self._path)
        try:
            self._note(heads)
        finally:
            heads.close()

    def _note(self, heads: Reading[Head]) -> None:
        control = engine = None
        rest_at = time.monotonic() + SCAN_WORK
        for head in heads:
            if time.monotonic() > rest_at:
                if self._over.wait(SCAN_REST):
                    break
                rest_at = time.monotonic() + SCAN_WORK
            if isinstance(head, Gap):
                continue
            life = self._lives[-1]
            if isinstance(head, SnapshotHead):
                if engine is not None and lives_on(engine, head.engine):
                    self._lives.append(_Life())
                elif engine is not None:
                    life.marks.append(Mark(head.seq, heads.offset, heads.line))
                    life.events.append(head.seq)
                engine = head.engine
            else:
                if events(head, control or head.control):
                    life.events.append(head.seq)
            control, self.last = head.control, head
