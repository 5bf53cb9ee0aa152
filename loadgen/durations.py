"""Durations as people write them: `500ms`, `2s`, `1.5m`, `1h`."""

from __future__ import annotations

import re

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST = 1e9  # seconds: sums of a few stay exact far below a microsecond
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds, from 0 on. Raises ValueError that says what is allowed."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"expected a number with its unit, like 500ms, 2s, 1.5m or 1h, got {text!r}")
    seconds = float(found[1]) * UNITS[found[2]]
    if seconds > LONGEST:
        raise ValueError(f"expected at most {LONGEST:g}s, got {text!r}")
    return seconds


def clock(seconds: float) -> str:
    """A duration for the eye, to the second: `0:05`, `12:34`, `1:02:03`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
