"""Where compiled workers are kept, so that only the first start on a machine compiles them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import cfunc, config, types


def folder() -> Path:
    """$PAGED_TOP_CACHE or ~/.cache/paged-top, and numba's part of it."""
    chosen = os.environ.get("PAGED_TOP_CACHE")
    return (Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "paged-top") / "numba"


def compile_worker(worker: Callable[[int], None]) -> Any:
    """Compile a function of one address to a C function, or load it as compiled before.

    A user's own NUMBA_CACHE_DIR wins over `folder`; where neither can be written, every start compiles anew.
    """
    if not config.CACHE_DIR:
        config.CACHE_DIR = str(folder())
    signature = types.void(types.int64)
    try:
        return cfunc(signature, cache=True, error_model="numpy")(worker)
    except (RuntimeError, OSError):  # numba found no place for its cache
        return cfunc(signature, error_model="numpy")(worker)
