"""Where compiled workers are kept, so that only the first start on a machine compiles them.

numba asks only whether the file of the decorated function has changed, and tells entries of its index apart before
their code is written: so each state of the sources has a folder of its own, and one process at a time looks into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from numba import cfunc, config, types

_CHOSEN_FOR_NUMBA = config.CACHE_DIR  # NUMBA_CACHE_DIR


def folder() -> Path:
    """NUMBA_CACHE_DIR, or numba's part of $PAGED_TOP_CACHE or ~/.cache/paged-top; in it, that of these sources."""
    chosen = os.environ.get("PAGED_TOP_CACHE")
    ours = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "paged-top"
    return (Path(_CHOSEN_FOR_NUMBA) if _CHOSEN_FOR_NUMBA else ours / "numba") / _sources(Path(__file__).parent)


def compile_worker(worker: Callable[[int], None]) -> Any:
    """Compile a function of one address to a C function, or load it as compiled before.

    Where nothing can be kept, or what was kept cannot be read, every start compiles anew.
    """
    config.CACHE_DIR = str(folder())
    signature = types.void(types.int64)
    try:
        with _alone(folder()):
            return cfunc(signature, cache=True, error_model="numpy")(worker)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError):  # the first: numba found no place for its cache
        return cfunc(signature, error_model="numpy")(worker)


@cache
def _sources(folder: Path) -> str:
    """The state of all files that compiled workers are made of."""
    files = sorted(folder.glob("cpu*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold off other processes: two that add to one index at once would swap each other's code. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
