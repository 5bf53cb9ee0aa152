"""Opening a trace of any format: what it is, by its content or by name, and its sessions in the one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from loadgen.explain import UNREADABLE, explain
from loadgen.traces.aiperf import AIPerfReader, AIPerfWriter
from loadgen.traces.azure import AzureReader, AzureWriter
from loadgen.traces.bailian import BailianReader, BailianWriter
from loadgen.traces.burstgpt import BurstGPTReader, BurstGPTWriter
from loadgen.traces.chat import ChatReader, ChatWriter
from loadgen.traces.model import Header, Session, TraceError
from loadgen.traces.mooncake import MooncakeReader, MooncakeWriter
from loadgen.traces.openai_batch import OpenAIBatchReader, OpenAIBatchWriter
from loadgen.traces.reading import PLACES, Format, Reader, ReadOptions, TimeUnit
from loadgen.traces.sharegpt import ShareGPTReader, ShareGPTWriter
from loadgen.traces.source import Record, Source
from loadgen.traces.vllm_custom import VllmReader, VllmWriter
from loadgen.traces.writing import Writer

__all__ = ["READERS", "WRITERS", "BadLines", "Format", "TimeUnit", "TraceFile", "detect", "open_trace"]

READERS: dict[Format, type[Reader]] = {
    reader.format: reader
    for reader in (
        ChatReader,
        MooncakeReader,
        BailianReader,
        BurstGPTReader,
        AzureReader,
        ShareGPTReader,
        VllmReader,
        OpenAIBatchReader,
        AIPerfReader,
    )
}
WRITERS: dict[Format, type[Writer]] = {
    writer.format: writer
    for writer in (
        ChatWriter,
        MooncakeWriter,
        BailianWriter,
        BurstGPTWriter,
        AzureWriter,
        ShareGPTWriter,
        VllmWriter,
        OpenAIBatchWriter,
        AIPerfWriter,
    )
}
LATEST = 1e9  # seconds after the first arrival
SHOWN = 5  # bad lines whose text is kept
PROBED = 20  # lines that are looked at to tell the format

# The fields that only lines of the format have all of, the most particular first.
_MARKS: tuple[tuple[Format, tuple[str, ...]], ...] = (
    (Format.CHAT, ("format", "version")),
    (Format.CHAT, ("arrival", "turns")),
    (Format.OPENAI_BATCH, ("custom_id", "body")),
    (Format.BAILIAN, ("chat_id", "input_length")),
    (Format.MOONCAKE, ("timestamp", "input_length")),
    (Format.SHAREGPT, ("conversations",)),
    (Format.AIPERF, ("turns",)),
    (Format.AIPERF, ("text",)),
    (Format.VLLM, ("prompt",)),
)
_COLUMNS = ((Format.AZURE, "ContextTokens"), (Format.BURSTGPT, "Request tokens"))


class BadLines:
    """Lines that were left out by `--skip-bad`: how many, and what is wrong with the first few."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, text: str) -> None:
        self.count += 1
        if self.count <= SHOWN:
            self.first.append(text)


class TraceFile:
    """A trace that is read anew by each call of `sessions`, of which there is one at a time.

    `bad` and `left_out` are those of the latest reading: lines that were skipped, and what no session could hold.
    `bytes_read` of `size` is how far it is.
    """

    def __init__(self, source: Source, format: Format, options: ReadOptions, skip_bad: bool) -> None:
        """Raises `TraceError` if it has no session, or if its first one is bad."""
        self.path = source.path
        self.format = format
        self.bad = BadLines()
        self.left_out: Counter[str] = Counter()
        self._source = source
        self._options = options
        self._skip_bad = skip_bad
        self._array = READERS[format].may_be_array and source.starts_with(b"[")
        try:
            self._reader = READERS[format](options)
        except ValueError as error:
            raise TraceError(f"{self.path}: {error}") from None
        if not any(True for _ in islice(self.sessions(), 1)):
            raise TraceError(f"{self.path}: {self._why_none()}")

    @property
    def header(self) -> Header:
        return self._reader.header

    @property
    def size(self) -> int:
        return self._source.size

    @property
    def bytes_read(self) -> int:
        return self._source.bytes_read

    def _why_none(self) -> str:
        if not self._source.size:
            return "is empty"
        text = "has a header but no session" if self._reader.head else "has no session"
        if self.bad.count:
            text += f"; {self.bad.count} bad lines were skipped, the first is {self.bad.first[0]}"
        for what, count in self.left_out.items():
            text += f"; left out: {count} {what}"
        return text

    def sessions(self, in_order: bool = True) -> Iterator[Session]:
        """The sessions, from the first one on, whose arrival is 0 (None, of all, in a trace without times).

        Raises `TraceError` that names the line and the field, also for a time before the one above it unless
        `in_order` is False: then times are as the file has them. With `skip_bad` such lines are counted.
        """
        self.bad = BadLines()
        reader = self._reader = READERS[self.format](self._options)
        self.left_out = reader.left_out
        clock = Clock(reader.time_field) if in_order else None
        for line, record in self._records(reader):
            session = self._take(reader, clock, line, record)
            if session is not None:
                yield session
        session = self._take(reader, clock, 0, None)
        if session is not None:
            yield session

    def _records(self, reader: Reader) -> Iterator[Record]:
        records = self._source.elements() if self._array else self._source.lines()
        if reader.head:
            for line, record in islice(records, 1):
                try:
                    reader.begin(record)
                except UNREADABLE as error:
                    text = f"line {line} (the first line must be {reader.head}): {explain(error)}"
                    raise TraceError(f"{self.path}: {text}") from None
        yield from records

    def _take(self, reader: Reader, clock: Clock | None, line: int, record: bytes | None) -> Session | None:
        try:
            session = reader.finish() if record is None else reader.read(line, record)
            if session is None:
                return None
            line = reader.line
            return clock.check(session) if clock else session
        except UNREADABLE as error:
            text = f"line {line}: {explain(error)}"
            if not self._skip_bad:
                raise TraceError(f"{self.path}: {text}") from None
            self.bad.add(text)
            return None


class Clock:
    """Checks that times go on, and counts them from the first arrival."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._first: Session | None = None
        self._latest = 0.0

    def check(self, session: Session) -> Session:
        """The session in its place. Raises `ValueError` if it is before the one above, or only one has a time."""
        arrival, field = session.arrival, self._field
        if self._first is None:
            self._first = session
            self._latest = arrival or 0.0
        start = self._first.arrival
        if (arrival is None) != (start is None):
            there = "missing; the sessions above have one" if arrival is None else "the sessions above have none"
            raise ValueError(f"{field}: {there}, and either all have a time or none")
        if arrival is None or start is None:
            return session
        if arrival < self._latest:
            raise ValueError(
                f"{field}: {_short(arrival - start)} s after the first one is before the session above it "
                f"({_short(self._latest - start)} s); loadgen convert --sort puts them in order"
            )
        if arrival - start > LATEST:
            raise ValueError(f"{field}: more than {LATEST:g} s after the first one; is the unit another?")
        self._latest = arrival
        return shifted(session, start)


def _short(seconds: float) -> float:
    return round(seconds, PLACES)


def shifted(session: Session, start: float) -> Session:
    """The session with its times counted from `start`, seconds."""
    if not start or session.arrival is None:
        return session
    turns = session.turns
    if any(turn.at is not UNSET for turn in turns):
        turns = tuple(
            turn if turn.at is UNSET else msgspec.structs.replace(turn, at=_short(turn.at - start)) for turn in turns
        )
    return msgspec.structs.replace(session, arrival=_short(session.arrival - start), turns=turns)


def detect(source: Source) -> Format:
    """The format of a file by its first lines. Raises `TraceError` if it is none that is known."""
    if source.starts_with(b"["):
        return Format.SHAREGPT
    empty = True
    for _, line in islice(source.lines(), PROBED):
        empty = False
        found = _format_of(line)
        if found:
            return found
    if empty:
        raise TraceError(f"{source.path}: is empty")
    names = ", ".join(Format)
    raise TraceError(f"{source.path}: line 1: is of no format that loadgen reads; they are {names} (--format)")


def _format_of(line: bytes) -> Format | None:
    if not line.lstrip().startswith(b"{"):
        cells = line.split(b",")
        return next((format for format, column in _COLUMNS if column.encode() in cells), None)
    try:
        fields: dict[str, Any] = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return None
    return next((format for format, marks in _MARKS if all(mark in fields for mark in marks)), None)


def open_trace(
    path: Path,
    format: Format | None = None,
    *,
    skip_bad: bool = False,
    block_size: int | None = None,
    time_unit: TimeUnit | None = None,
) -> TraceFile:
    """Open a trace. Without `format` it is told by the content.

    `block_size` is the tokens that a hash id names, `time_unit` that of the file's times, where they are not as the
    format has them. Raises `TraceError` if the file cannot be read, is of no known format, or has no session.
    """
    source = Source(path)
    return TraceFile(source, format or detect(source), ReadOptions(block_size, time_unit), skip_bad)
