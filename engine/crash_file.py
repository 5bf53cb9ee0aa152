"""Crash files: a recording of the steps before a fault, which `paged-top play` shows. Whole or not at all, and few."""

from __future__ import annotations

import contextlib
import os
import re
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from engine.loading.cache import cache_folder

KEPT = 10
LEFTOVER_SECONDS = 3600.0  # after which a part of a file is nobody's any more
_NAME = re.compile(r"crash-\d{8}-\d{6}-\d+\.jsonl\.gz")
_GZIP = 31  # zlib's window bits, with gzip's header


def crash_folder(wanted: str | None) -> Path:
    """`wanted`, or `crashes` in the cache folder. Raises ModelError if that is in no user's home."""
    return Path(wanted).expanduser() if wanted else cache_folder() / "crashes"


def write_crash_file(folder: Path, lines: Sequence[bytes]) -> Path:
    """Write a recording for its owner alone, forget all but the newest ten, and return its path. Raises OSError.

    The name has the time (UTC) and this process's id.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder.resolve() / f"crash-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}.jsonl.gz"
    part = path.with_name(f".{path.name}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            packed = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
            for line in lines:
                file.write(packed.compress(line + b"\n"))
            file.write(packed.flush())
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    with contextlib.suppress(OSError):  # the file is there: what follows is care
        _forget_old(path.parent)
        _sync(path.parent)
    return path


def _forget_old(folder: Path) -> None:
    """By their names, which begin with the time."""
    for path in sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))[:-KEPT]:
        path.unlink(missing_ok=True)
    for part in folder.glob(".crash-*.part"):
        if time.time() - part.stat().st_mtime > LEFTOVER_SECONDS:
            part.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make the new name last through a loss of power."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
