"""A recording of servers that tell no steps: a head for each of them, how each stood, then what was heard, a line each.

`tui.sources.recorder` writes them, and nobody's text is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from tui.recording import SOURCE_TAG, UNDECODED, Lines, RecordingError
from tui.sources.items import FORMAT, Item, SourceHead, decode_item

MOST_SERVERS = 1_024  # as `tui.sources.targets` names at most


class Glance(msgspec.Struct, frozen=True):
    """Of an item: what is cheap to read, and says how long a recording is and how many looks it has."""

    type: str
    source: int
    time: float = 0.0
    format: int = FORMAT

    @property
    def is_look(self) -> bool:
        return self.type in ("scrape", "failed")


L = TypeVar("L", bound=Item | Glance)
_decode_glance = msgspec.json.Decoder(Glance).decode


class SourceReading(Lines[L]):
    """Its items in order: the heads first, and nothing of a server that none of these names."""

    def __init__(self, path: Path, decode: Callable[[bytes], L]) -> None:
        """Open it. Raises RecordingError."""
        super().__init__(path, decode)
        self._servers: set[int] = set()
        self._naming = True  # only heads have come

    def _in_order(self) -> Iterator[L]:
        for item in self._decoded():
            self._first = False
            yield item
        if self._first:
            raise self._empty()

    def _check(self, item: L) -> None:
        """Servers are named before anything is told of them, and of this format."""
        is_head = isinstance(item, SourceHead) or (isinstance(item, Glance) and item.type == SOURCE_TAG)
        if isinstance(item, SourceHead | Glance):
            self._check_format(item.format)
        elif self._first:
            raise RecordingError(f"{self.path}: line {self.line} names no server, and a recording begins with one")
        self._naming = self._naming and is_head
        if self._naming:
            self._servers.add(item.source)
            if len(self._servers) > MOST_SERVERS:
                raise RecordingError(f"{self.path}: line {self.line} names one server more than {MOST_SERVERS:,}")
        elif item.source not in self._servers:
            raise RecordingError(f"{self.path}: line {self.line} tells of server {item.source}, which was not named")

    def _check_format(self, found: int) -> None:
        if found != FORMAT:
            age = "a newer" if found > FORMAT else "an older"
            raise RecordingError(
                f"{self.path}: recorded by {age} version: format {found}, this paged-top knows {FORMAT}"
            )

    def _wrong(self, text: bytes, error: Exception) -> RecordingError:
        if self._first:
            try:
                found = _decode_first(text)
                if found.type == "snapshot":
                    return RecordingError(
                        f"{self.path} is a recording of an engine's steps, and not of servers' metrics"
                    )
                if found.type == SOURCE_TAG:
                    self._check_format(found.format)
            except RecordingError as other:
                return other
            except UNDECODED:
                pass
        return super()._wrong(text, error)


class _First(msgspec.Struct):
    type: str
    format: int = FORMAT


_decode_first = msgspec.json.Decoder(_First).decode


def read_items(path: Path) -> SourceReading[Item]:
    """Every item of a recording. Raises RecordingError, also while it is read."""
    return SourceReading[Item](path, decode_item)


def read_glances(path: Path) -> SourceReading[Glance]:
    """The same items, of each only what is cheap to read."""
    return SourceReading[Glance](path, _decode_glance)
