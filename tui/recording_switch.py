"""A switch for recording: on and off, and what is told of it, whatever is recorded."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

from tui import figures
from tui.operator import Tell
from tui.recorder import LineWriter
from tui.recording import RecordingError

WriterT = TypeVar("WriterT", bound=LineWriter[Any])


class RecordingSwitch(ABC, Generic[WriterT]):
    """At most one recording at a time. `finished` says of each what became of it."""

    def __init__(self, tell: Tell, items: str, of: str = "") -> None:
        """`items`: what those are called that are counted. `of`: whose they are, where that is to be said."""
        self.finished: list[str] = []
        self._tell = tell
        self._items = items
        self._of = of
        self._recorder: WriterT | None = None

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
        return f"recording {whose}{recorder.path.name}: {self._counted(recorder)}"

    def check(self) -> bool:
        """End a recording that cannot go on, and say so at once; whether that was so."""
        if self._recorder is None or not self._recorder.error:
            return False
        self.stop()
        return True

    @abstractmethod
    def able(self) -> bool:
        """Whether there is anything to record; tells why not."""

    def suggestion(self) -> str:
        """A file name that is not taken, in the current folder."""
        return f"paged-top-{time.strftime('%Y%m%d-%H%M%S')}.jsonl.gz"

    def start(self, name: str) -> None:
        """Record into a new file from the state as it is now."""
        if not self.able() or self.running:
            return
        if not name:
            self._tell("not recorded: no file was named", True)
            return
        try:
            self._recorder = self._begin(Path(name).expanduser())
        except RecordingError as error:
            self._tell(str(error), True)
            return
        self._tell(self._begun(name), False)

    def stop(self, why: str = "") -> None:
        """End the recording, if there is one, and say what is in it; `why`: where nobody asked for that."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        self._let_go()
        recorder.close()
        whose = f" of {self._of}" if self._of else ""
        words = f"recorded {self._counted(recorder, whose)}, to {recorder.path}"
        self.finished.append(recorder.error or words)
        self._tell(f"{why}{recorder.error or words}", bool(recorder.error))

    @abstractmethod
    def _begin(self, path: Path) -> WriterT:
        """What writes there from now on; only called when it is `able`. Raises RecordingError."""

    def _begun(self, name: str) -> str:
        """What is told when it has begun."""
        return f"recording to {name}; r ends it"

    def _let_go(self) -> None:
        """Hear no more of what was recorded."""

    def _counted(self, recorder: WriterT, whose: str = "") -> str:
        return f"{recorder.records:,} {self._items}{whose}, {figures.size(recorder.bytes)}"
