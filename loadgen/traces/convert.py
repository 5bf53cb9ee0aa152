"""Writing a trace in another format: streamed, in order, and replaced whole at the end; what is lost is named."""

from __future__ import annotations

import gzip
import heapq
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from typing import IO, cast

import msgspec

from loadgen.traces.formats import WRITERS, Clock, Format, TraceFile
from loadgen.traces.model import Session, TraceError
from loadgen.traces.scale import scaled, scaled_header
from loadgen.traces.writing import Losses

SORTED_IN_MEMORY = 1 << 26  # bytes of sessions that are sorted at a time
EACH = 1000  # sessions between two reports of progress

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Session).decode


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
    `lossy`, holds only as another load), and `OSError` where it cannot be written.
    """
    losses = Losses(to, changes.lossy)
    written = turns = 0
    with ExitStack() as stack:
        sessions = stack.enter_context(_in_order(trace)) if changes.sort else trace.sessions()
        header = trace.header
        if changes.length_scale != 1:
            sessions = scaled(sessions, header, changes.length_scale)
            header = scaled_header(header, changes.length_scale)
        file = stack.enter_context(_replaced(path))
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
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` if all goes well, and is gone if not."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as plain:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=plain, mode="wb", filename="", mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield plain
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _in_order(trace: TraceFile) -> Iterator[Iterator[Session]]:
    """The sessions by arrival, sorted in parts on the disk: those with the same one stay as they are."""
    with ExitStack() as stack:
        parts = [stack.enter_context(part) for part in _sorted_parts(trace.sessions(in_order=False))]
        merged = heapq.merge(*(_read_part(part) for part in parts), key=_arrival)
        clock = Clock("arrival")
        yield (clock.check(session) for session in merged)


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
        line = _encode(session) + b"\n"
        lines.append((_arrival(session), line))
        size += len(line)
        if size >= SORTED_IN_MEMORY:
            yield part()
            lines, size = [], 0
    yield part()


def _read_part(file: BufferedIOBase) -> Iterator[Session]:
    for line in file:
        yield _decode(line)
