"""Where compiled workers are kept, so that only the first start on a machine compiles them.

numba asks only whether the file of the decorated function has changed, and tells entries of its index apart before
their code is written: so each state of the sources has a folder of its own, and one process at a time looks into it.

What lies there is run: numba's index is a pickle, its code machine code. So the folder is made for its owner alone, and
nothing is kept in, or taken from, one that another user owns or could change.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import hashlib
import logging
import os
import pickle
import pwd
import stat
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from numba import cfunc, config, types

_CHOSEN_FOR_NUMBA = config.CACHE_DIR  # NUMBA_CACHE_DIR
_ROOT = 0
_log = logging.getLogger(__name__)


def folder() -> Path:
    """NUMBA_CACHE_DIR, or numba's part of $PAGED_TOP_CACHE or ~/.cache/paged-top; in it, that of these sources."""
    chosen = os.environ.get("PAGED_TOP_CACHE")
    ours = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "paged-top"
    return (Path(_CHOSEN_FOR_NUMBA) if _CHOSEN_FOR_NUMBA else ours / "numba") / _sources(Path(__file__).parent)


def compile_worker(worker: Callable[[int], None]) -> Any:
    """Compile a function of one address to a C function, or load it as compiled before.

    Where nothing can be kept, or what was kept cannot be read or trusted, every start compiles anew.
    """
    place = folder()
    config.CACHE_DIR = str(place)
    signature = types.void(types.int64)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if can_be_trusted(place):
            with _alone(place):
                return cfunc(signature, cache=True, error_model="numpy")(worker)
        return cfunc(signature, error_model="numpy")(worker)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError):  # the first: numba found no place for its cache
        return cfunc(signature, error_model="numpy")(worker)


@cache
def can_be_trusted(folder: Path) -> bool:
    """Whether only this user (and root) can have put there what lies there; warns if not. Raises OSError."""
    resolved = folder.resolve(strict=True)
    for place in (resolved, *resolved.parents):
        found = place.stat()
        # Of a folder like /tmp others can add to, but not take away, what lies in it.
        is_shared = place != resolved and bool(found.st_mode & stat.S_ISVTX)
        others = stat.S_IWOTH | (0 if _is_private(found.st_gid) else stat.S_IWGRP)
        if found.st_uid not in (_ROOT, os.geteuid()) or (found.st_mode & others and not is_shared):
            _log.warning("%s can be changed by other users: compiling anew what is kept in %s", place, folder)
            return False
    return True


def _is_private(group: int) -> bool:
    """Whether a group is this user alone, as many systems make one for each."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and not set(found.gr_mem) - {user.pw_name}


@cache
def _sources(folder: Path) -> str:
    """The state of all files that compiled workers are made of."""
    files = sorted(folder.glob("cpu*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold off other processes: two that add to one index at once would swap each other's code. Raises OSError."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
