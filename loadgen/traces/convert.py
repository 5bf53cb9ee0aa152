"""Writing a trace in another format: streamed, in order, and replaced whole at the end; what is lost is named."""

from __future__ import annotations

import gzip
import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from loadgen.results.output import whole_file
from loadgen.traces.azure import moved
from loadgen.traces.formats import WRITERS, Clock, Format, TraceFile
from loadgen.traces.model import Header, Session, TraceError
from loadgen.traces.scale import scaled, scaled_header
from loadgen.traces.writing import Losses

SORTED_IN_MEMORY = 1 << 26  # bytes of sessions that are sorted at a time, with what Python needs for each
NEEDED_FOR_EACH = 160  # bytes beside a session's own
EACH = 1000  # sessions between two reports of progress

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[float, Session]).decode


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to become of the sessions. `lossy`: what the format cannot hold is left out, and counted."""

    sort: bool = False
    length_scale: float = 1.0
    sessions: int | None = None
    lossy: bool = False


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written, how often each of the things in `lost` was left out of it, and what else is to be known."""

    sessions: int
    turns: int
    lost: Counter[str]
    remarks: tuple[str, ...]


def convert(
    trace: TraceFile, path: Path, to: Format, changes: Changes, progress: Callable[[int], None] = lambda sessions: None
) -> Converted:
    """Write a trace's sessions to `path` in the format `to`, gzip-compressed if the path ends with .gz.

    The file is there only when all is written. Raises `TraceError` for what the target cannot hold (or, but for
    `lossy`, holds only as another load), and `OutputError` where it cannot be written, before anything is read.
    """
    losses = Losses(to, changes.lossy)
    written = turns = 0
    with ExitStack() as stack:
        file = stack.enter_context(_written(path))
        header, sessions = stack.enter_context(_in_order(trace)) if changes.sort else (trace.header, trace.sessions())
        if changes.length_scale != 1:
            sessions = scaled(sessions, header, changes.length_scale)
            header = scaled_header(header, changes.length_scale)
        try:
            writer = WRITERS[to](header, losses)
            file.write(writer.begin())
            for session in islice(sessions, changes.sessions):
                try:
                    file.writelines(writer.session(session))
                except ValueError as error:
                    raise TraceError(f"{trace.path}: session {session.session}: {error}") from None
                written += 1
                turns += len(session.turns)
                if written % EACH == 0:
                    progress(written)
            file.writelines(writer.finish())
        except ValueError as error:
            raise TraceError(f"{trace.path}: {error}") from None
    return Converted(written, turns, losses.counts, tuple(losses.remarks))


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """The file that takes the place of `path` if all goes well. Raises `OutputError`."""
    with whole_file("OUT", path) as plain:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=plain, mode="wb", filename="", mtime=0) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield plain


@contextmanager
def _in_order(trace: TraceFile) -> Iterator[tuple[Header, Iterator[Session]]]:
    """The sessions by arrival, sorted in parts on the disk: those with the same one stay as they are."""
    with ExitStack() as stack:
        parts = [stack.enter_context(part) for part in _sorted_parts(trace.sessions(in_order=False))]
        merged = heapq.merge(*(_read_part(part) for part in parts), key=_arrival)
        first = next(merged, None)
        header = trace.header if first is None else moved(trace.header, _arrival(first))
        clock = Clock("arrival")
        yield header, (clock.check(session) for session in chain([] if first is None else [first], merged))


def _arrival(session: Session) -> float:
    if session.arrival is None:
        raise TraceError(f"--sort: session {session.session} has no time")
    return session.arrival


def _sorted_parts(sessions: Iterable[Session]) -> Iterator[BufferedIOBase]:
    lines: list[tuple[float, bytes]] = []
    size = 0

    def part() -> BufferedIOBase:
        lines.sort(key=lambda line: line[0])
        file = cast(BufferedIOBase, tempfile.TemporaryFile(prefix="loadgen-sort-"))  # noqa: SIM115 (closed by the stack)
        file.writelines(line for _, line in lines)
        file.seek(0)
        return file

    for session in sessions:
        # A time before that of the file's first record is below 0, which no session in a file has: it stands beside.
        arrival = _arrival(session)
        line = _encode((arrival, msgspec.structs.replace(session, arrival=None))) + b"\n"
        lines.append((arrival, line))
        size += len(line) + NEEDED_FOR_EACH
        if size >= SORTED_IN_MEMORY:
            yield part()
            lines, size = [], 0
    yield part()


def _read_part(file: BufferedIOBase) -> Iterator[Session]:
    for line in file:
        arrival, session = _decode(line)
        yield msgspec.structs.replace(session, arrival=arrival)
