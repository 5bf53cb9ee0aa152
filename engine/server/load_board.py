"""What load generators have told of their runs: kept for a moment, and forgotten when they fall silent."""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.protocol import LiveLoad, LiveLoads, LoadRun

MAX_LOADS = 16
SILENCE = 10.0  # seconds without a word, after which a load is gone


class BoardFull(Exception):
    """As many loads are told of as are kept."""


class LoadBoard:
    """The last word of each load, by its id. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, tuple[float, LoadRun]] = {}

    def put(self, load: str, run: LoadRun) -> None:
        """Take a load's word. Raises `BoardFull` for one more than are kept."""
        self._forget()
        if load not in self._told and len(self._told) >= MAX_LOADS:
            raise BoardFull
        self._told[load] = self._clock(), run

    def drop(self, load: str) -> bool:
        """Forget a load; whether it was there."""
        self._forget()
        return self._told.pop(load, None) is not None

    def live(self) -> LiveLoads:
        """All that are there now."""
        self._forget()
        now = self._clock()
        return LiveLoads(tuple(LiveLoad(load, round(now - at, 3), run) for load, (at, run) in self._told.items()))

    def _forget(self) -> None:
        oldest = self._clock() - SILENCE
        self._told = {load: (at, run) for load, (at, run) in self._told.items() if at >= oldest}
