"""Records what is heard of servers, one or a fleet, into one file, from how they stand when it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from tui.recorder import LineWriter
from tui.sources.items import Failed, Item, KvMessage, SourceHead, encode_item
from tui.sources.redaction import Redaction
from tui.sources.source import Source


def _line(item: Item, redaction: Redaction) -> bytes:
    """What is written of an item; of one that cannot be read, that it could not."""
    try:
        return encode_item(redaction.of(item))
    except (ValueError, OverflowError, RecursionError) as error:
        if isinstance(item, KvMessage):
            return encode_item(redaction.of(msgspec.structs.replace(item, payload={"kind": "unreadable"})))
        return encode_item(redaction.of(Failed(item.source, item.time, "failing", f"cannot be read: {error}")))


class SourceRecorder(LineWriter[Item]):
    """Listens to its sources from the beginning until `close`. `records` are what was heard, without heads.

    `secrets`: keys and the like, which are left out wherever they turn up.
    """

    def __init__(
        self,
        path: Path,
        sources: Sequence[Source],
        secrets: Iterable[str] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make the file; raises RecordingError where it exists already or cannot be made."""
        redaction = Redaction(secrets)  # used by the writer's thread alone
        super().__init__(path, lambda item: _line(item, redaction), lambda item: not isinstance(item, SourceHead))
        self._sources = tuple(sources)
        states = [source.state(wall()) for source in self._sources]
        for state in states:
            self.put(state[0])
        for state in states:
            for item in state[1:]:
                self.put(item)
        for source in self._sources:
            source.listener = self.put

    def close(self) -> None:
        for source in self._sources:
            if source.listener == self.put:
                source.listener = None
        super().close()
