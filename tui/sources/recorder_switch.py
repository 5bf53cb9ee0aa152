"""Recording servers from the screen: on and off, and what is told of it. All of them go into one file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tui import figures
from tui.operator import Tell
from tui.recording import RecordingError
from tui.sources.recorder import SourceRecorder
from tui.sources.source import Source


class SourcesSwitch:
    """At most one recording at a time. `finished` says of each what became of it."""

    def __init__(
        self, sources: Sequence[Source], tell: Tell, secrets: Iterable[str] = (), played: bool = False
    ) -> None:
        """`secrets` are left out of the file wherever they turn up. `played`: the sources are a recording's."""
        self.finished: list[str] = []
        self._sources = tuple(sources)
        self._tell = tell
        self._secrets = tuple(secrets)
        self._played = played
        self._recorder: SourceRecorder | None = None

    @property
    def running(self) -> bool:
        return self._recorder is not None

    @property
    def words(self) -> str:
        """What is being recorded, for the last line; empty when nothing is."""
        recorder = self._recorder
        if recorder is None:
            return ""
        return f"recording {recorder.path.name}: {recorder.records:,} items, {figures.size(recorder.bytes)}"

    def check(self) -> bool:
        """End a recording that cannot go on, and say so at once; whether that was so."""
        if self._recorder is None or not self._recorder.error:
            return False
        self.stop()
        return True

    def able(self) -> bool:
        """Whether there is anything to record; tells why not."""
        if self._played:
            self._tell("this is a recording already", True)
        elif not any(source.items for source in self._sources):
            self._tell("there is nothing to record yet", True)
        else:
            return True
        return False

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
            self._recorder = SourceRecorder(Path(name).expanduser(), self._sources, self._secrets)
        except RecordingError as error:
            self._tell(str(error), True)
            return
        self._tell(f"recording to {name}; r ends it", False)

    def stop(self) -> None:
        """End the recording, if there is one, and say what is in it."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.close()
        words = f"recorded {recorder.records:,} items, {figures.size(recorder.bytes)}, to {recorder.path}"
        self.finished.append(recorder.error or words)
        self._tell(recorder.error or words, bool(recorder.error))
