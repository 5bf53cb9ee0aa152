"""A recording of an engine: the stream's own lines in a file, a snapshot first, then every record; plain or gzip.

Where records were lost, a `gap` line comes, and then a snapshot again; where the engine was started again, just a
snapshot. A reader holds one line at a time, whatever the file's size; `tui.recorder` writes them.
"""

from __future__ import annotations

import io
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar, cast

import msgspec

from engine.protocol import (
    PROTOCOL_VERSION,
    Control,
    Copy,
    EngineInfo,
    Gap,
    Left,
    Preempted,
    Record,
    Snapshot,
    StreamItem,
    decode_item,
)

SOURCE_TAG = "source"  # of the first line of a recording of servers' metrics: see `tui.sources.items`
CLUSTER_TAG = "cluster"  # and of one of a cluster's states: see `tui.cluster.recording`
MAX_LINE = 1 << 29  # bytes; a snapshot of a million blocks has about 80 million
MAX_BLANK = 1 << 16  # bytes of empty lines in a row: gzip makes a billion of them a small file
MAX_HOLLOW = 1_000  # parts of a gzip file in a row with nothing in them
STDIN = Path("-")
GZIP = 31  # zlib's window bits, with gzip's header
_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CHUNK = 1 << 18  # bytes read at once
UNDECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: brackets in brackets in brackets


class RecordingError(Exception):
    """The file cannot be written, or is not a recording that this program can show; the message says which and why."""


class EngineHead(msgspec.Struct, frozen=True):
    """Of an EngineInfo: what says whether a recording can be read, and whose it is."""

    protocol: int
    started: float = 0.0
    restarts: int = 0


class SnapshotHead(msgspec.Struct, frozen=True, tag="snapshot"):
    """Of a Snapshot: what is cheap to read."""

    seq: int
    time: float
    engine: EngineHead
    control: Control


class RecordHead(msgspec.Struct, frozen=True, tag="step"):
    """Of a Record: where it stands, and what `tui.tape.events` looks at."""

    seq: int
    time: float
    control: Control
    preempted: tuple[Preempted, ...]
    held: tuple[Left, ...] = ()
    left: tuple[Left, ...] = ()
    copies: tuple[Copy, ...] = ()
    cleared: int = 0
    fault: str = ""


class _Tagged(msgspec.Struct):
    """What every line of every recording has."""

    type: str


class _Version(msgspec.Struct):
    """What every protocol's snapshot is believed to have."""

    type: str
    engine: EngineHead


decode_head = msgspec.json.Decoder(RecordHead | Gap | SnapshotHead).decode
_decode_version = msgspec.json.Decoder(_Version).decode
_decode_tagged = msgspec.json.Decoder(_Tagged).decode

Head = RecordHead | Gap | SnapshotHead
L = TypeVar("L")
T = TypeVar("T", bound=StreamItem | Head)


def lives_on(before: EngineInfo | EngineHead, now: EngineInfo | EngineHead) -> bool:
    """Whether the engine `now` is the one from `before`, started again by its server: its records begin anew."""
    return now.restarts > before.restarts and now.started > before.started


class Lines(ABC, Generic[L]):
    """A recording's lines in order, one at a time, each decoded: plain or gzip, as far as the file goes.

    `line` and `offset` (bytes, uncompressed) are those of the last one; `note` says at the end how the file is broken,
    if it is. Iterating raises RecordingError.
    """

    def __init__(self, path: Path, decode: Callable[[bytes], L], offset: int = 0, line: int = 1) -> None:
        """Open it at a line. Raises RecordingError."""
        self.path = path
        self.note = ""
        self.line = line - 1
        self.offset = offset
        self._next_offset = offset
        self._decode = decode
        self._first = True  # nothing was read yet
        self._unzipped: _Unzipped | None = None
        try:
            self._lines = self._open(offset)
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
        self._items = self._in_order()

    def __iter__(self) -> Iterator[L]:
        return self

    def __next__(self) -> L:
        return next(self._items)

    def close(self) -> None:
        self._lines.close()

    @abstractmethod
    def _in_order(self) -> Iterator[L]:
        """What the lines say, without what cannot be gone on from."""

    def _check(self, item: L) -> None:
        """Raise RecordingError where an item cannot stand at this line."""

    def _wrong(self, text: bytes, error: Exception) -> RecordingError:
        """Why a line does not decode."""
        if self._first:
            return RecordingError(f"{self.path} is not a recording: line {self.line} is {_shown(text[:40])} ({error})")
        return RecordingError(f"{self.path}: line {self.line} does not decode ({error})")

    def _empty(self) -> RecordingError:
        """Why there is nothing in it."""
        return RecordingError(f"{self.path} is empty" if not self.note else f"{self.path} is {self.note}")

    def _open(self, offset: int) -> io.BufferedReader:
        file = cast(
            io.BufferedReader,
            open(0, "rb", _CHUNK, closefd=False) if self.path == STDIN else open(self.path, "rb", _CHUNK),  # noqa: SIM115
        )
        if file.peek(2)[:2] == _MAGIC:
            self._unzipped = _Unzipped(file)
            file = io.BufferedReader(self._unzipped, _CHUNK)
            while offset > 0 and (skipped := len(file.read(min(offset, _CHUNK)))):
                offset -= skipped
        elif offset:
            file.seek(offset)
        return file

    def _decoded(self) -> Iterator[L]:
        """Every line's item, as it stands there."""
        if self._first:
            self._check_start(self._lines.peek(_CHUNK))
        blank = 0
        while not self.note and (line := self._read_line()):
            self.offset, self._next_offset = self._next_offset, self._next_offset + len(line)
            self.line += 1
            if self.line == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if line.isspace():
                blank += len(line)
                if blank > MAX_BLANK:
                    raise RecordingError(f"{self.path}: {MAX_BLANK:,} bytes of empty lines up to line {self.line}")
                continue
            blank = 0
            item = self._item(line)
            del line  # a snapshot's may be large, and the reader may stay here for long
            if item is not None:
                self._check(item)
                yield item
                del item
        if self._unzipped and self._unzipped.broken and not self.note:
            self.note = f"{self._unzipped.broken} at line {self.line + 1}"

    def _item(self, line: bytes) -> L | None:
        """A line's item; None where the file breaks off in it, which `note` then says."""
        try:
            return self._decode(line)
        except UNDECODED as error:
            if line.endswith(b"\n") or _whole(line):
                raise self._wrong(line.strip(), error) from None
        broken = self._unzipped.broken if self._unzipped else ""
        self.note = f"{broken or 'truncated'} at line {self.line}"
        return None

    def _read_line(self) -> bytes:
        """The next line with its end; empty at the end of the file."""
        try:
            line = self._lines.readline(MAX_LINE)
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be read after line {self.line}: {error.strerror}") from None
        if len(line) == MAX_LINE:
            raise RecordingError(f"{self.path}: line {self.line + 1} is longer than {MAX_LINE:,} bytes")
        return line

    def _check_start(self, start: bytes) -> None:
        """A film or a program is told at once, not after its first line of a gigabyte."""
        found = start.removeprefix(_BYTE_ORDER_MARK).lstrip()[:40]
        if found and not found.startswith(b"{"):
            raise RecordingError(f"{self.path} is not a recording: it begins with {_shown(found)}")


class Reading(Lines[T]):
    """An engine's recording: a snapshot, its records without a hole, then perhaps a gap.

    After a gap a snapshot follows, but for a gap at the very end. Where the engine was started again a snapshot comes
    without a gap before it, and records are counted anew.
    """

    def __init__(self, path: Path, decode: Callable[[bytes], T], offset: int = 0, line: int = 1) -> None:
        """Open it at a snapshot's line, the first one's as a rule. Raises RecordingError."""
        super().__init__(path, decode, offset, line)
        self._seq = 0  # of the last item
        self._engine: EngineInfo | EngineHead | None = None  # in the life that is read
        self._missing_to: int | None = None  # the last record seen since some were missing

    def _in_order(self) -> Iterator[T]:
        """What the lines say, without what cannot be gone on from."""
        for item in self._decoded():
            if isinstance(item, Gap):
                continue  # the next snapshot's number says exactly what is missing
            if isinstance(item, Record | RecordHead):
                if self._missing_to is None and item.seq == self._seq + 1:
                    self._seq = item.seq
                    yield item
                elif item.seq > self._seq:
                    self._missing_to = max(item.seq, self._missing_to or 0)
                continue
            again = self._engine is not None and lives_on(self._engine, item.engine)
            if not self._first and not again and (self._other(item.engine) or item.seq < self._seq):
                raise RecordingError(f"{self.path}: another recording begins at line {self.line}")
            missing, news = item.seq - self._seq, self._first or again or item.seq > self._seq
            if missing and not self._first and not again:
                yield cast(T, Gap(self._seq + 1, item.seq))
            self._first, self._missing_to = False, None
            self._seq, self._engine = item.seq, item.engine
            if news:
                yield item
                del item
        if self._first:
            raise self._empty()
        if self._missing_to is not None:
            yield cast(T, Gap(self._seq + 1, self._missing_to))

    def _other(self, engine: EngineInfo | EngineHead) -> bool:
        return self._engine is None or engine.started != self._engine.started

    def _check(self, item: T) -> None:
        """A recording begins with a snapshot, of this protocol."""
        if isinstance(item, Snapshot | SnapshotHead):
            self._check_version(item.engine.protocol)
        elif self._first:
            what = "gap" if isinstance(item, Gap) else "step record"
            raise RecordingError(f"{self.path}: line {self.line} is a {what}; a recording begins with a snapshot")

    def _check_version(self, found: int) -> None:
        if found != PROTOCOL_VERSION:
            age = "a newer" if found > PROTOCOL_VERSION else "an older"
            raise RecordingError(
                f"{self.path}: recorded by {age} version: protocol {found}, this paged-top knows {PROTOCOL_VERSION}"
            )

    def _wrong(self, text: bytes, error: Exception) -> RecordingError:
        try:
            self._check_version(_decode_version(text).engine.protocol)
        except RecordingError as found:
            return found
        except UNDECODED:
            pass
        if self._first and _tag(text) == SOURCE_TAG:
            return RecordingError(f"{self.path} is a recording of servers' metrics, and not of an engine's steps")
        return super()._wrong(text, error)


def read_recording(path: Path) -> Reading[StreamItem]:
    """Every item of a recording (`-`: of standard input). Raises RecordingError, also while it is read."""
    return Reading[StreamItem](path, decode_item)


def read_heads(path: Path) -> Reading[Head]:
    """The same items, of each only what is cheap to read."""
    return Reading[Head](path, decode_head)


def is_of_sources(path: Path) -> bool:
    """Whether a recording is of servers' metrics, by its first line; else it may be an engine's, or none at all."""
    return _first_tag(path) == SOURCE_TAG


def is_of_cluster(path: Path) -> bool:
    """Whether a recording is of a cluster's states, by its first line."""
    return _first_tag(path) == CLUSTER_TAG


def _first_tag(path: Path) -> str:
    """Of the first line; empty where it has none that can be read."""
    try:
        lines = _FirstLine(path, bytes)
    except RecordingError:
        return ""
    try:
        return _tag(next(lines, b""))
    except RecordingError:
        return ""
    finally:
        lines.close()


class _FirstLine(Lines[bytes]):
    """The first line with something in it, as it stands there."""

    def _in_order(self) -> Iterator[bytes]:
        return self._decoded()


def _tag(line: bytes) -> str:
    try:
        return _decode_tagged(line).type
    except UNDECODED:
        return ""


class _Unzipped(io.RawIOBase):
    """A gzip file's content, as far as it goes: one that was cut is read to the cut. `broken` says so at the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zip = zlib.decompressobj(GZIP)
        self._fresh = True  # nothing of this member was read
        self._hollow = 0  # members up to this one that had nothing in them
        self._rest = b""
        self.broken = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill some of `buffer`; 0 at the end."""
        while not self.broken:
            if self._zip.eof:
                self._hollow += 1
                if self._hollow > MAX_HOLLOW:
                    self.broken = f"damaged ({MAX_HOLLOW:,} empty parts)"
                    return 0
                self._rest, self._zip, self._fresh = (
                    self._zip.unused_data.lstrip(b"\0"),
                    zlib.decompressobj(GZIP),
                    True,
                )
            data = self._rest or self._file.read(_CHUNK)
            if not data:
                self.broken = "" if self._fresh else "truncated"
                return 0
            self._fresh = False
            try:
                found = self._zip.decompress(data, len(buffer))
            except zlib.error as error:
                self.broken = f"damaged ({error})"
                return 0
            self._rest = self._zip.unconsumed_tail
            if found:
                self._hollow = 0
                buffer[: len(found)] = found
                return len(found)
        return 0

    def close(self) -> None:
        self._file.close()
        super().close()


def _whole(text: bytes) -> bool:
    """Whether it is JSON to its end."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except UNDECODED:
        return False
    return True


def _shown(data: bytes) -> str:
    """Bytes from outside, safe to print."""
    return ascii(data.decode("utf-8", "replace"))
