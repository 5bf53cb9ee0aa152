"""Recording from the screen: on and off, and what is told of it."""

from __future__ import annotations

import time
from pathlib import Path

from engine.protocol import EngineInfo, Record, Snapshot
from tui import figures
from tui.operator import Tell
from tui.recorder import Recorder
from tui.recording import RecordingError, lives_on
from tui.session import Session


class RecorderSwitch:
    """At most one recording at a time. `finished` says of each what became of it."""

    def __init__(self, session: Session, tell: Tell, of: str = "") -> None:
        """`of`: the engine's name, where it is one of several servers."""
        self._of = of
        self.finished: list[str] = []
        self._session = session
        self._tell = tell
        self._recorder: Recorder | None = None
        self._seq = 0  # of the last record that was written
        self._engine: EngineInfo | None = None  # which engine is recorded, in which of its lives

    @property
    def running(self) -> bool:
        return self._recorder is not None

    @property
    def words(self) -> str:
        """What is being recorded, for the last line; empty when nothing is."""
        recorder = self._recorder
        if recorder is None:
            return ""
        whose = f"{self._of} into " if self._of else ""
        return f"recording {whose}{recorder.path.name}: {recorder.records:,} records, {figures.size(recorder.bytes)}"

    def check(self) -> bool:
        """End a recording that cannot go on, and say so at once; whether that was so."""
        if self._recorder is None or not self._recorder.error:
            return False
        self.stop()
        return True

    def able(self) -> bool:
        """Whether there is a stream to record; tells why not."""
        feed = self._session.feed
        if self._session.player is not None:
            self._tell("this is a recording already", True)
        elif feed is None or feed.fold is None:
            self._tell("there is nothing to record yet", True)
        else:
            return True
        return False

    def suggestion(self) -> str:
        """A file name that is not taken, in the current folder."""
        return f"paged-top-{time.strftime('%Y%m%d-%H%M%S')}.jsonl.gz"

    def start(self, name: str) -> None:
        """Record into a new file from the state as it is now."""
        feed = self._session.feed
        if not self.able() or feed is None or feed.fold is None or self.running:
            return
        if not name:
            self._tell("not recorded: no file was named", True)
            return
        try:
            self._recorder = Recorder(Path(name).expanduser())
        except RecordingError as error:
            self._tell(str(error), True)
            return
        self._recorder.begin(feed.fold.to_snapshot())
        self._seq, self._engine = feed.fold.seq, feed.fold.engine
        feed.listener = self._hear
        if self._of:
            self._tell(f"recording the steps of {self._of} alone to {name}; r ends it, and leaving does", False)
        else:
            self._tell(f"recording to {name}; r ends it", False)

    def stop(self, why: str = "") -> None:
        """End the recording, if there is one, and say what is in it; `why`: where nobody asked for that."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        if self._session.feed is not None:
            self._session.feed.listener = None
        recorder.close()
        whose = f" of {self._of}" if self._of else ""
        words = f"recorded {recorder.records:,} records{whose}, {figures.size(recorder.bytes)}, to {recorder.path}"
        self.finished.append(recorder.error or words)
        self._tell(f"{why}{recorder.error or words}", bool(recorder.error))

    def _hear(self, item: Record | Snapshot) -> None:
        """What the feed takes: each record, or a snapshot where some were missing or the engine is in another life."""
        recorder = self._recorder
        if recorder is None or self.check():
            return
        if isinstance(item, Record):
            recorder.take(item)
        elif self._engine is not None and lives_on(self._engine, item.engine):
            recorder.begin(item)
            self._engine = item.engine
        elif item.engine != self._engine or item.seq < self._seq:
            self.stop()
            self._tell("recording ended: the engine is another one now", True)
        elif item.seq > self._seq:
            recorder.gap(self._seq + 1, item.seq, item)
        self._seq = item.seq
