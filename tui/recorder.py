"""Writes a recording while the stream comes. One thread writes, so that the screen never waits for a disk."""

from __future__ import annotations

import os
import threading
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from engine.protocol import Gap, Record, Snapshot, StreamItem, encode
from tui import figures
from tui.recording import GZIP, RecordingError

BATCH_SECONDS = 0.5  # between two writes: what a killed recorder loses at most, with the write itself
CLOSE_SECONDS = 5.0  # for the last write
MAX_WAITING = 5_000  # records that a slow disk may leave in memory
LINES_TOGETHER = 16  # that are compressed as one, and are lost together where the disk gets full

T = TypeVar("T")


class Compressor(Protocol):
    """What zlib's own has no public name for."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self, mode: int = ..., /) -> bytes: ...

    def copy(self) -> Self: ...


class LineWriter(Generic[T]):
    """Writes items to a new file, a line each. `records` and `bytes` are what lies in it, `error` why it ended early.

    Where the disk is full, the file ends with the last lines that fitted whole, and a gzip member is closed after it.
    """

    def __init__(self, path: Path, encode: Callable[[T], bytes], is_record: Callable[[T], bool]) -> None:
        """Make the file; raises RecordingError where it exists already or cannot be made.

        `encode` is called in the writer's thread; `is_record` says which items are counted.
        """
        self.path = path
        self._encode, self._is_record = encode, is_record
        self.records = 0
        self.bytes = 0
        self.error = ""
        try:
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115 (closed by the thread)
        except FileExistsError:
            raise RecordingError(f"{path} exists already, and a recording overwrites nothing") from None
        except OSError as error:
            raise RecordingError(f"{path} cannot be made: {error.strerror}") from None
        self._zip: Compressor | None = zlib.compressobj(6, zlib.DEFLATED, GZIP) if path.suffix == ".gz" else None
        self._waiting: deque[T] = deque()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what waits, and end. Does not wait for a disk that hangs, nor where it has ended already."""
        self._over.set()
        if self.error:
            return
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive() and not self.error:
            self.error = f"{self.path}: the disk did not take the last records within {CLOSE_SECONDS:.0f} s"

    def put(self, item: T) -> None:
        """Write it soon; nothing where it has ended."""
        if self.error or self._over.is_set():
            return
        if len(self._waiting) >= MAX_WAITING:
            self.error = f"{self.path}: the disk is too slow: {MAX_WAITING:,} records wait"
            self._over.set()
            return
        self._waiting.append(item)

    def _work(self) -> None:
        """Until the end: write a batch, rest, and stop at the first failure."""
        try:
            with self._file:
                while not self._over.wait(BATCH_SECONDS):
                    self._write()
                self._write()
                if self._zip:
                    self._send(self._zip.flush(zlib.Z_FINISH))
        except OSError as error:
            kept = f"{self.records:,} records, {figures.size(self.bytes)}" if self.bytes else "nothing"
            self.error = f"{self.path}: {error.strerror}; the recording has ended, {kept} can be played"

    def _write(self) -> None:
        """Write what waits, whole lines, so that a reader finds them even if this program is killed now.

        Raises OSError, and then takes back the lines that were not written whole.
        """
        while self._waiting:
            before, zipped = self.bytes, self._zip.copy() if self._zip else None
            try:
                self._write_some(LINES_TOGETHER if self._zip else 1)
            except OSError:
                self._take_back(before, zipped)
                raise
        self._check_name()

    def _take_back(self, size: int, zipped: Compressor | None) -> None:
        """Let the file end at `size` bytes, with the end of the gzip member that was open there."""
        with suppress(OSError):  # then a part of a line is left, which a reader leaves out
            os.ftruncate(self._file.fileno(), size)
            self._file.seek(size)
            self.bytes = size
            if zipped is not None and size:
                self._send(zipped.flush(zlib.Z_FINISH))

    def _check_name(self) -> None:
        if not os.fstat(self._file.fileno()).st_nlink:
            raise OSError(0, "the file was deleted")

    def _write_some(self, most: int) -> None:
        written = 0
        while self._waiting and most:
            most -= 1
            item = self._waiting.popleft()
            line = self._encode(item) + b"\n"
            self._send(self._zip.compress(line) if self._zip else line)
            written += self._is_record(item)
        if self._zip:
            self._send(self._zip.flush(zlib.Z_SYNC_FLUSH))
        self.records += written

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            sent = self._file.write(rest) or 0  # a file without a buffer may take a part
            self.bytes += sent
            rest = rest[sent:]


class Recorder(LineWriter[StreamItem]):
    """Writes one engine's stream.

    Call `begin` once, then `take` for every record after it, and `gap` where some are missing.
    """

    def __init__(self, path: Path) -> None:
        """Make the file; raises RecordingError where it exists already or cannot be made."""
        super().__init__(path, encode, lambda item: isinstance(item, Record))

    def begin(self, snapshot: Snapshot) -> None:
        """The state that records go on from; once more where the engine was started again."""
        self.put(snapshot)

    def take(self, record: Record) -> None:
        self.put(record)

    def gap(self, first: int, last: int, snapshot: Snapshot) -> None:
        """Records `first` to `last` are missing; `snapshot` is what goes on after them."""
        self.put(Gap(first, last))
        self.put(snapshot)
