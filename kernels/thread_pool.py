"""Run a compiled worker on the threads that torch already has.

torch's OpenMP pool spins between its own regions, so a second pool would fight it for the same cores. Workers
therefore run as a region of that very pool, through `GOMP_parallel` of the libgomp that torch loaded
(the interface GCC compiles `#pragma omp parallel` to). Without libgomp the calling thread does all the work.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch


@cache
def _libgomp() -> ctypes.CDLL | None:
    """The libgomp that torch loaded, None where it has none."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line}
        # More than one libgomp can be loaded; torch's is the one beside it, or the only one.
        own = [path for path in paths if "/torch" in path] or list(paths)
        if len(own) != 1:
            return None
        return ctypes.CDLL(own[0])
    except OSError:
        return None


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
