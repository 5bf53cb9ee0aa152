"""The watcher's clock. Servers go on while this machine sleeps, so that time counts: else their rates after it would be
of too few seconds."""

from __future__ import annotations

import sys
import time


def now() -> float:
    """Seconds that never go back, those that this machine slept included."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC)  # unlike time.monotonic there
    return time.monotonic()
