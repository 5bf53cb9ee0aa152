"""Recording servers from the screen: all of them go into one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tui.operator import Tell
from tui.recording_switch import RecordingSwitch
from tui.sources.recorder import SourceRecorder
from tui.sources.source import Source


class SourcesSwitch(RecordingSwitch[SourceRecorder]):
    """Records what is heard of all sources."""

    def __init__(
        self, sources: Sequence[Source], tell: Tell, secrets: Iterable[str] = (), played: bool = False
    ) -> None:
        """`secrets` are left out of the file wherever they turn up. `played`: the sources are a recording's."""
        super().__init__(tell, "items")
        self._sources = tuple(sources)
        self._secrets = tuple(secrets)
        self._played = played

    def able(self) -> bool:
        """Whether there is anything to record; tells why not."""
        if self._played:
            self._tell("this is a recording already", True)
        elif not any(source.items for source in self._sources):
            self._tell("there is nothing to record yet", True)
        else:
            return True
        return False

    def _begin(self, path: Path) -> SourceRecorder:
        return SourceRecorder(path, self._sources, self._secrets)
