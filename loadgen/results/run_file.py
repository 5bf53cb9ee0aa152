"""A run's file: JSON lines, first a header, then one line for each request, at the end what was seen around them.

It is written while the run goes on, so that a run that was killed is a file that ends early, and can be resumed:
then a `resumed` line follows, and what comes after it counts instead of what the same session had.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO, Self

import msgspec

from loadgen.arrivals import parse_arrivals
from loadgen.explain import UNREADABLE, explain
from loadgen.outcome import Outcome, RequestRecord
from loadgen.settings import Settings

FORMAT = "loadgen-run"
VERSION = 1
BY_HAND, ENGINE_ENDED = "Ctrl-C", "the engine's end"  # what ends a run that no stop rule ended
KILLED = "loadgen's own end"  # of a run whose file has none
DECIMALS = 6  # of a time in the file: microseconds, far below what a client can measure


Elapsed = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class ResultError(Exception):
    """A run's file that cannot be written, read or resumed; the message names file, line and field."""


class RunHeader(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="kind"):
    """What was asked for, of whom, with what, and when."""

    format: str = FORMAT
    version: int = VERSION
    id: str = ""  # what its requests' X-Request-Id begin with
    label: str
    settings: Settings
    started_at: str  # ISO 8601, UTC
    sessions: int  # that were to be played
    turns: int
    trace: dict[str, Any]  # format, file, systems' names, recipe: what a reader must know of it
    server: dict[str, Any]  # url, model, max_model_len, version, whose engine it is
    versions: dict[str, str]  # of loadgen, Python and the HTTP client
    machine: dict[str, Any]  # processor, cores, memory, system: of the client


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed", tag_field="kind"):
    """The run went on at `at` seconds of its own time, in which the pause is left out."""

    at: Elapsed
    started_at: str
    versions: dict[str, str]


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, tag="end", tag_field="kind"):
    """What was seen around the requests. `engine` is from the engine's own stream, `server` from its /metrics."""

    at: Elapsed  # seconds of the run
    stopped_by: str | None = None  # None: it came to its end; else `BY_HAND`, `ENGINE_ENDED` or a stop rule
    client: dict[str, Any] = {}
    engine: dict[str, Any] | None = None
    moments: tuple[tuple[float, int, int, int], ...] = ()  # (second, held slots, internal waste, saved blocks)
    server: dict[str, Any] | None = None
    speed_changes: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()


Line = RequestRecord | Resumed | RunEnd

_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(RunHeader).decode
_decode_line = msgspec.json.Decoder(Line).decode
_REQUEST = b'{"kind":"request"'  # as the writer begins it: such lines need no decoding to know what they are


def _header(path: Path, line: bytes) -> RunHeader:
    """Raises `ResultError`."""
    if not line:
        raise ResultError(
            f'{path}: is empty; the first line of a run\'s file is a header {{"format": "{FORMAT}", ...}}'
        )
    try:
        header = _decode_header(line)
    except UNREADABLE as error:
        raise ResultError(f"{path}: line 1 (the first line must be the header): {explain(error)}") from None
    if header.format != FORMAT:
        raise ResultError(f'{path}: line 1: format: must be "{FORMAT}", got "{header.format}"')
    if header.version != VERSION:
        raise ResultError(f"{path}: line 1: version: this loadgen reads version {VERSION}, got {header.version}")
    for name, text, check in (
        ("started_at", header.started_at, datetime.datetime.fromisoformat),
        ("settings.arrivals", header.settings.arrivals, lambda text: parse_arrivals(text, 0)),
    ):
        try:
            check(text)
        except ValueError as error:
            raise ResultError(f"{path}: line 1: {name}: {error}") from None
    return header


def _line(path: Path, number: int, line: bytes) -> Line:
    """Raises `ResultError`."""
    try:
        return _decode_line(line)
    except UNREADABLE as error:
        raise ResultError(f"{path}: line {number}: {explain(error)}") from None


def _opened(path: Path, mode: str) -> BinaryIO:
    """Raises `ResultError`."""
    if mode == "rb" and (path.is_fifo() or path.is_char_device()):  # it would wait for ever, or have no end
        raise ResultError(f"{path}: is no regular file; a run's file is read more than once")
    try:
        return path.open(mode)  # type: ignore[return-value]
    except FileExistsError:
        raise ResultError(f"{path}: exists; a run's file is not overwritten unless told") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null
        doing = "read" if mode == "rb" else "written"
        raise ResultError(f"{path}: cannot be {doing}: {getattr(error, 'strerror', None) or error}") from None


def _alone(path: Path, file: BinaryIO) -> BinaryIO:
    """The file, for this process alone as long as it is open: two would write over each other. Raises `ResultError`."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ResultError(f"{path}: another loadgen writes into it; wait for its end, or name another file") from None
    except OSError:
        pass  # a file system without locks
    return file


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run's file. Its header and end are held, its requests are read anew at each pass: that needs no memory.

    `ends` are of the run's parts, each but the last followed by a `resumed` line; a part that was killed has none.
    `torn`: the last line was cut while it was written, and is left out.
    """

    path: Path
    header: RunHeader
    resumed: tuple[Resumed, ...] = ()
    ends: tuple[RunEnd, ...] = ()
    torn: bool = False
    ended: bool = False  # the last part has an end
    _latest: Mapping[int, int] = field(default_factory=dict)  # by session the last part that has it, if not the first

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read all but the requests. Raises `ResultError` naming file, line and field."""
        resumed: list[Resumed] = []
        ends: list[RunEnd] = []
        torn = ended = False
        latest: dict[int, int] = {}
        with _opened(path, "rb") as file:
            header = _header(path, file.readline())
            for number, line in enumerate(file, start=2):
                if line.startswith(_REQUEST) and line.endswith(b"\n") and not resumed:
                    continue
                try:
                    item = _line(path, number, line)
                except ResultError:
                    torn = not line.endswith(b"\n")  # only the last line can be without
                    if not torn:
                        raise
                    break
                match item:
                    case RequestRecord():
                        if resumed:
                            latest[item.index] = len(resumed)
                    case Resumed():
                        resumed.append(item)
                        ended = False
                    case RunEnd():
                        ends.append(item)
                        ended = True
        return cls(path, header, tuple(resumed), tuple(ends), torn, ended, latest)

    @property
    def end(self) -> RunEnd | None:
        """What was seen around the requests; None: it was killed."""
        return self.ends[-1] if self.ended else None

    def records(self) -> Iterator[RequestRecord]:
        """Every request's line, the superseded ones left out. Raises `ResultError` naming file, line and field."""
        part = 0
        with _opened(self.path, "rb") as file:
            file.readline()
            for number, line in enumerate(file, start=2):
                try:
                    item = _line(self.path, number, line)
                except ResultError:
                    if not line.endswith(b"\n"):
                        return
                    raise
                if isinstance(item, Resumed):
                    part += 1
                elif isinstance(item, RequestRecord) and self._latest.get(item.index, part) == part:
                    yield item

    @property
    def complete(self) -> bool:
        """Whether nothing is left to play: every turn is over, and the file has its end."""
        if self.end is None:
            return False
        over = self.final_turns()
        return len(over) == self.header.sessions and sum(over.values()) == self.header.turns

    def final_turns(self) -> dict[int, int]:
        """By a session's index, how many of its turns are over, completed or failed: it is done if those are all.

        A session with a turn that was interrupted or not reached is left out. What is not done is played again whole,
        since a turn's prompt holds the answers before it.
        """
        turns: dict[int, int] = {}
        open_sessions: set[int] = set()
        for record in self.records():
            if record.outcome in (Outcome.INTERRUPTED, Outcome.NOT_REACHED):
                open_sessions.add(record.index)
            else:
                turns[record.index] = turns.get(record.index, 0) + 1
        return {index: count for index, count in turns.items() if index not in open_sessions}


def _rounded(record: RequestRecord) -> RequestRecord:
    def at(moment: float | None) -> float | None:
        return None if moment is None else round(moment, DECIMALS)

    return msgspec.structs.replace(
        record,
        scheduled=at(record.scheduled),
        sent=at(record.sent),
        chunks=tuple(round(moment, DECIMALS) for moment in record.chunks),
        ended=at(record.ended),
    )


class RunWriter:
    """Writes a run's file, each line at once: what has been measured outlives a killed loadgen."""

    def __init__(self, path: Path, header: RunHeader, *, overwrite: bool = False) -> None:
        """Begin a file. Raises `ResultError` if it exists (unless `overwrite`) or cannot be written."""
        self.path, self.run_id = path, header.id
        self._file = _alone(path, _opened(path, "wb" if overwrite else "xb"))
        try:
            self._write(header)
        except ResultError:  # without a header it would be no run's file, and in the way of the next
            self.close()
            if path.is_file():  # and no device
                path.unlink()
            raise

    @classmethod
    def resume(cls, path: Path, resumed: Resumed) -> Self:
        """Go on with a file: a line that was cut is taken off. Raises `ResultError`."""
        writer = cls.__new__(cls)
        writer.path = path
        writer._file = _alone(path, _opened(path, "r+b"))
        run = RunFile.read(path)
        writer.run_id = run.header.id
        writer._after_last_line(run.torn)
        writer._write(resumed)
        return writer

    def _after_last_line(self, torn: bool) -> None:
        last = b""
        for line in self._file:
            last = line
        size = self._file.tell()
        if torn:
            self._file.seek(size - len(last))
            self._file.truncate()
        elif not last.endswith(b"\n"):
            self._file.write(b"\n")

    def append(self, record: RequestRecord) -> None:
        """Write one request. Raises `ResultError` if it cannot be."""
        self._write(_rounded(record))

    def finish(self, end: RunEnd) -> None:
        """Write what was seen around the requests, the last line, and close. Raises `ResultError`."""
        self._write(end)
        self.close()

    def _write(self, line: RunHeader | Line) -> None:
        try:
            self._file.write(_encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise ResultError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Stop writing, whether or not it came to its end."""
        with contextlib.suppress(OSError):  # of a line that could not be written, which was told then
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
