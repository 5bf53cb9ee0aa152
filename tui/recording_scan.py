"""A thread that reads a recording once through, by turns with rests, and notes what is found."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tui.recording import RecordingError

SCAN_AFTER = 1.0  # seconds: the first picture comes first
SCAN_WORK, SCAN_REST = 0.02, 0.04  # seconds by turns, so that the screen does not feel it

T = TypeVar("T")


class RecordingScan(ABC):
    """`done`: all was read."""

    def __init__(self, path: Path, after: float) -> None:
        """It begins `after` seconds from its start on."""
        self._path = path
        self._after = after
        self.done = False
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

    @abstractmethod
    def _read(self) -> None:
        """Open the file, note what is in it, `_by_turns`, and close it. Raises RecordingError."""

    def _by_turns(self, items: Iterable[T]) -> Iterator[T]:
        """The items, with rests in between; none any more once this is stopped."""
        rest_at = time.monotonic() + SCAN_WORK
        for item in items:
            if time.monotonic() > rest_at:
                if self._over.wait(SCAN_REST):
                    return
                rest_at = time.monotonic() + SCAN_WORK
            yield item

    def _work(self) -> None:
        if self._over.wait(self._after):
            return
        # What cannot be read ends it where it ends the playing; the player has the words.
        with suppress(RecordingError):
            self._read()
        self.done = not self._over.is_set()
