"""How many things happened when, in constant memory whatever the time: steps that double as it goes on."""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.inspection.columns import Floats

SHORTEST = 2.0**-10  # seconds
STEPS = 512


class Series(msgspec.Struct, frozen=True):
    """Counts in steps of `seconds` from the trace's start to its last moment."""

    seconds: float
    counts: tuple[int, ...]


class RateOverTime:
    """Takes moments in any order."""

    def __init__(self) -> None:
        self._seconds = SHORTEST
        self._counts = np.zeros(STEPS, dtype=np.int64)
        self._last = -1  # the last step with anything

    def add(self, moments: Floats) -> None:
        """Seconds from 0 on."""
        if not len(moments):
            return
        latest = float(moments.max())
        while latest >= self._seconds * STEPS:
            self._counts = np.concatenate((self._counts.reshape(-1, 2).sum(axis=1), np.zeros(STEPS // 2, np.int64)))
            self._seconds *= 2
            self._last //= 2
        self._counts += np.bincount((moments / self._seconds).astype(np.int64), minlength=STEPS)
        self._last = max(self._last, int(latest / self._seconds))

    def series(self) -> Series | None:
        """None without any moment."""
        if self._last < 0:
            return None
        return Series(self._seconds, tuple(self._counts[: self._last + 1].tolist()))
