"""Recording the steps of one engine from the screen."""

from __future__ import annotations

from pathlib import Path

from engine.protocol import EngineInfo, Record, Snapshot
from tui.operator import Tell
from tui.recorder import Recorder
from tui.recording import lives_on
from tui.recording_switch import RecordingSwitch
from tui.session import Session


class RecorderSwitch(RecordingSwitch[Recorder]):
    """Records the stream that the session's feed takes."""

    def __init__(self, session: Session, tell: Tell, of: str = "") -> None:
        """`of`: the engine's name, where it is one of several servers."""
        super().__init__(tell, "records", of)
        self._session = session
        self._seq = 0  # of the last record that was written
        self._engine: EngineInfo | None = None  # which engine is recorded, in which of its lives

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

    def _begin(self, path: Path) -> Recorder:
        feed = self._session.feed
        assert feed is not None
        assert feed.fold is not None
        recorder = Recorder(path)
        recorder.begin(feed.fold.to_snapshot())
        self._seq, self._engine = feed.fold.seq, feed.fold.engine
        feed.listener = self._hear
        return recorder

    def _begun(self, name: str) -> str:
        if not self._of:
            return super()._begun(name)
        return f"recording the steps of {self._of} alone to {name}; r ends it, and leaving does"

    def _let_go(self) -> None:
        if self._session.feed is not None:
            self._session.feed.listener = None

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
