"""The cache folder: things made once, whole or not at all, by one process at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from engine.loading.errors import ModelError
from engine.log import PREFIX, say


def cache_folder() -> Path:
    """$PAGED_TOP_CACHE, or ~/.cache/paged-top. Raises ModelError if that is in no user's home."""
    path = Path(os.environ.get("PAGED_TOP_CACHE") or "~/.cache/paged-top")
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ModelError(f"the model cache {path}: {error} (PAGED_TOP_CACHE names another folder)") from error


def tell(message: str) -> None:
    """One line of progress on standard error, or in the log of a process that has one."""
    say(message.removeprefix(PREFIX), name="loading")


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `models/NAME` of the cache; if it is missing, `make` fills a temporary one, then renamed.

    A folder with that name is therefore complete. Two processes make it once: the second waits. What a killed
    process left is removed by the next. Raises ModelError if the cache cannot be written.
    """
    models = cache_folder() / "models"
    folder = models / name
    try:
        if folder.is_dir():
            return folder
        models.mkdir(parents=True, exist_ok=True)
        lock = FileLock(models / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            tell(f"paged-engine: waiting for another process that prepares {name}")
            lock.acquire()
        try:
            if not folder.is_dir():
                _make_whole(folder, make)
        finally:
            lock.release()
    except (OSError, SafetensorError) as error:  # the second: weights that the disk has no room for
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f"cannot write the model cache {models}: {reason} (PAGED_TOP_CACHE names another folder)"
        ) from error
    return folder


def _make_whole(folder: Path, make: Callable[[Path], None]) -> None:
    prefix = f"{folder.name}.part-"
    for leftover in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        make(part)
        part.chmod(0o755)  # a shared cache is there to be read: mkdtemp and safetensors write for the owner alone
        for path in part.iterdir():
            path.chmod(0o644)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
