"""A trace's file as records: lines, or the elements of one JSON array, in constant memory; plain or gzip."""

from __future__ import annotations

import gzip
import io
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadgen.traces.model import TraceError

LONGEST_RECORD = 1 << 26  # bytes; what is longer is no trace, and memory stays bounded
CHUNK = 1 << 18

Record = tuple[int, bytes]  # the number of its first line, and its bytes

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_TEXT_OR_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]|"', re.DOTALL)  # a lone `"`: text that goes on
_BLANK = b" \t\r\n"
_BLANKS = re.compile(rb"[ \t\r\n]*+")


class Source:
    """One regular file, opened anew by each reading of it. `bytes_read` of `size` is how far the latest one is."""

    def __init__(self, path: Path) -> None:
        """Raises `TraceError` if it is no regular file that can be read."""
        self.path = path
        self._raw: io.FileIO | None = None
        try:
            status = path.stat()
            if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
                raise TraceError(f"{path}: is no regular file; a trace is read more than once")
            with path.open("rb") as file:
                self._gzip = file.read(2) == _GZIP
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
        except ValueError as error:  # a name with a null byte
            raise TraceError(f"{str(path)!r}: cannot be read: {error}") from None
        self.size = status.st_size

    @property
    def bytes_read(self) -> int:
        """Bytes of the file, as it lies on the disk, that the latest reading has taken."""
        if self._raw is None:
            return 0
        return self.size if self._raw.closed else self._raw.tell()

    @contextmanager
    def _open(self) -> Iterator[io.BufferedIOBase]:
        try:
            with io.FileIO(self.path) as raw:
                self._raw = raw
                if self._gzip:
                    yield gzip.GzipFile(fileobj=raw)
                else:
                    yield io.BufferedReader(raw, CHUNK)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise TraceError(f"{self.path}: cannot be read: {reason}") from None

    def lines(self) -> Iterator[Record]:
        """Each line without its end. Empty lines are left out at the end of the file only. Raises `TraceError`."""
        empty: list[int] = []
        with self._open() as file:
            number = 0
            while line := file.readline(LONGEST_RECORD + 1):
                number += 1
                if len(line) > LONGEST_RECORD:
                    raise TraceError(f"{self.path}: line {number}: is longer than {LONGEST_RECORD:,} bytes")
                line = line.rstrip(b"\r\n")
                if number == 1:
                    line = line.removeprefix(_BOM)
                if not line.strip(_BLANK):
                    empty.append(number)
                    if len(empty) > 1000:
                        raise TraceError(f"{self.path}: line {empty[0]}: more than 1,000 empty lines follow")
                    continue
                for before in empty:
                    yield before, b""
                empty.clear()
                yield number, line

    def starts_with(self, mark: bytes) -> bool:
        """Whether this is its first character that is not blank, within the first lines."""
        with self._open() as file:
            head = file.read(1 << 16).removeprefix(_BOM)
        return head.lstrip(_BLANK).startswith(mark)

    def elements(self) -> Iterator[Record]:
        """The elements of the file's one JSON array, which must be objects or arrays. Raises `TraceError`."""
        with self._open() as file:
            yield from _Elements(self.path, file).split()


class _Elements:
    """Cuts a JSON array at the brackets of its elements, so that each is decoded by itself."""

    def __init__(self, path: Path, file: io.BufferedIOBase) -> None:
        self._path = path
        self._file = file
        self._buffer = b""
        self._at = 0  # what lies before it is done with
        self._line = 1  # of that place

    def _error(self, what: str) -> TraceError:
        return TraceError(f"{self._path}: line {self._line}: not JSON: {what}")

    def _pass(self, to: int) -> None:
        self._line += self._buffer.count(b"\n", self._at, to)
        self._at = to

    def _more(self) -> bool:
        left = self._buffer[self._at :]
        chunk = self._file.read(max(CHUNK, len(left)))  # doubled, so that a long element is searched few times
        self._buffer, self._at = left + chunk, 0
        return bool(chunk)

    def _mark(self) -> bytes:
        """Pass what is blank; the byte there, which is not passed yet. Empty at the end of the file."""
        while True:
            blank = _BLANKS.match(self._buffer, self._at)
            self._pass(blank.end() if blank else self._at)
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._more():
                return b""

    def split(self) -> Iterator[Record]:
        self._more()
        self._buffer = self._buffer.removeprefix(_BOM)
        if self._mark() != b"[":
            raise self._error("expected an array, which begins with [")
        self._pass(self._at + 1)
        more = self._mark() != b"]"
        while more:
            if self._mark() not in (b"{", b"["):
                raise self._error("expected an object as an element of the array")
            size = self._element_size()
            record = self._line, self._buffer[self._at : self._at + size]
            self._pass(self._at + size)
            yield record
            mark = self._mark()
            if mark not in (b",", b"]"):
                raise self._error("expected , or ] after an element of the array")
            more = mark == b","
            if more:
                self._pass(self._at + 1)
        self._pass(self._at + 1)
        if self._mark():
            raise self._error("more follows after the array")

    def _element_size(self) -> int:
        depth, size = 0, 0
        while True:
            for match in _TEXT_OR_BRACKET.finditer(self._buffer, self._at + size):
                found = match[0]
                if found == b'"':
                    size = match.start() - self._at  # a text that is not whole yet: look at it again with more
                    break
                size = match.end() - self._at
                if found in (b"{", b"["):
                    depth += 1
                elif found in (b"}", b"]"):
                    depth -= 1
                    if depth == 0:
                        return size
            if len(self._buffer) - self._at > LONGEST_RECORD:
                raise self._error(f"an element is longer than {LONGEST_RECORD:,} bytes")
            if not self._more():
                raise self._error("the file ends within an element")
