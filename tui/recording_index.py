"""What a thread finds in a recording that is read once through: where its snapshots and events are, and its end."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from engine.protocol import Gap
from tui.recording import Head, Reading, RecordHead, SnapshotHead, lives_on, read_heads
from tui.recording_scan import RecordingScan
from tui.tape import events


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


class Index(RecordingScan):
    """Records are asked for by number in a life of the engine: 0 is the first, and each restart begins one.

    `last` is the last item seen so far. 8 bytes an event are kept, and nothing of the rest.
    """

    def __init__(self, path: Path, after: float) -> None:
        super().__init__(path, after)
        self.last: RecordHead | SnapshotHead | None = None
        self._lives = [_Life()]

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

    def _read(self) -> None:
        heads = read_heads(self._path)
        try:
            self._note(heads)
        finally:
            heads.close()

    def _note(self, heads: Reading[Head]) -> None:
        control = engine = None
        for head in self._by_turns(heads):
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
