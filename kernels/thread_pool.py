"""Run a compiled worker on the threads that torch already has.

torch's OpenMP pool spins between its own regions, so a second pool would fight it for the same cores. Workers
therefore run as a region of that very pool, through `GOMP_parallel` of the libgomp that torch loaded
(the interface GCC compiles `#pragma omp parallel` to). Without libgomp the calling thread does all the work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import torch


@cache
def _libgomp() -> ctypes.CDLL | None:
    """The libgomp that torch loaded, None where it has none."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line}
        own = _own_of_torch(paths, Path(str(torch.__file__)).resolve().parent)
        return None if own is None else ctypes.CDLL(own)
    except OSError:
        return None


def _own_of_torch(paths: Collection[str], folder: Path) -> str | None:
    """Of the loaded libraries the one in torch's `folder`, or in what wheels put beside it, or the only one."""
    own = [path for path in paths if {folder, folder.with_suffix(".libs")} & set(Path(path).parents)] or list(paths)
    return own[0] if len(own) == 1 else None


@cache
def _gomp_parallel() -> Any | None:
    """torch's own GOMP_parallel(function, data, threads, flags), or None where torch has no libgomp."""
    try:
        function = _libgomp().GOMP_parallel  # type: ignore[union-attr]
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


def threads() -> int:
    """How many threads a worker will run on."""
    return torch.get_num_threads() if _gomp_parallel() is not None else 1


def run(worker: Any, call: ctypes.Structure) -> None:
    """Run a worker (a numba cfunc of one address) on `call`, on every thread of the pool."""
    count = threads()
    if count == 1:
        worker.ctypes(ctypes.addressof(call))
    else:
        parallel = _gomp_parallel()
        assert parallel is not None
        parallel(worker.address, ctypes.addressof(call), count, 0)
