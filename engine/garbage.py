"""When Python looks for garbage: rarely, in a process that makes thousands of objects a step and hardly any cycle."""

from __future__ import annotations

import ctypes
import gc

# Objects made before a look at the youngest. The default, 700, has one look every other step at 1,000 requests, and a
# look at everything that lives, which takes some 10 ms, every few hundred.
YOUNG, MIDDLE, OLD = 10_000, 50, 100


def look_rarely() -> None:
    """Call it when what lives long has been made: collections need not look at that any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


def give_back() -> None:
    """Call it when much that lived long has gone: what is garbage is found now, and free memory is given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc: what is free between others' pieces too
    if trim is not None:
        trim(0)
