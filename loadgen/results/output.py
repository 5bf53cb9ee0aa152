"""Files that a command leaves behind: found to be writable before the work, and written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec


class OutputError(Exception):
    """An option names a place that cannot be written; the message names both."""


def check_writable(flag: str, path: Path, reads: Iterable[Path] = (), writes: Iterable[Path] = ()) -> None:
    """Fail before the work, not after it. Raises `OutputError`, also for one of the files that the command reads, or
    writes for other options.
    """
    with _told(flag, path):
        if any(_same(path, other) for other in reads):
            raise OutputError(f"{flag} {path}: is one of the files to read")
        if any(_same(path, other) for other in writes):
            raise OutputError(f"{flag} {path}: is written for another option")
        if path.is_dir():
            raise OutputError(f"{flag} {path}: is a folder; name a file")
        if not path.parent.is_dir():
            raise OutputError(f"{flag} {path}: there is no folder {path.parent}")
        if _in_place(path):
            if not os.access(path, os.W_OK):
                raise OutputError(f"{flag} {path}: no permission to write")
        else:
            partial = _partial(path)
            partial.touch()
            partial.unlink()


@contextlib.contextmanager
def whole_file(flag: str, path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its name at the end: nobody finds half of it. Raises `OutputError`.

    One that takes the place of another may be read and written by whom that could.
    """
    with _told(flag, path):
        if _in_place(path):
            with path.open("wb") as file:
                yield file
            return
        partial = _partial(path)
        try:
            with partial.open("wb") as file:
                yield file
            if path.exists():
                partial.chmod(path.stat().st_mode & 0o777)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def write_json(flag: str, path: Path, document: dict[str, Any]) -> None:
    """A document as indented JSON. Raises `OutputError`."""
    with whole_file(flag, path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone after this. Raises `OutputError` where there is no room for one."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="loadgen-")
    except OSError as error:
        place = error.filename or "temporary files"
        why = f"{place}: cannot be written: {error.strerror or error}; TMPDIR names another place"
        raise OutputError(why) from None
    with folder as path:
        yield Path(path)


@contextlib.contextmanager
def _told(flag: str, path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # its reader has gone, which is for the command to end by
    except OSError as error:
        raise OutputError(f"{flag} {path}: cannot be written: {error.strerror or error}") from None


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file, there or to come; any number of things may go to a pipe."""
    return not _in_place(one) and os.path.realpath(one) == os.path.realpath(other)


def _in_place(path: Path) -> bool:
    """Whether it is a pipe or /dev/stdout; a file is replaced whole."""
    return path.exists() and not path.is_file()


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")
