"""Limits that a request must keep to, to count as served well.

`ttft` and `e2e` count from when a request was due, so that one that comes late counts as such: what loadgen calls
`ttft_scheduled` and `e2el_scheduled`.
"""

from __future__ import annotations

import re

import msgspec

EXAMPLE = "ttft=500ms,itl=50ms"
_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|)")


class Slo(msgspec.Struct, frozen=True):
    """Seconds; None: no limit. `itl` is of every gap between two tokens of an answer."""

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None

    def met(self, ttft: float, longest_gap: float, e2e: float) -> bool:
        pairs = ((self.ttft, ttft), (self.itl, longest_gap), (self.e2e, e2e))
        return all(limit is None or value <= limit for limit, value in pairs)


def parse_slo(text: str) -> Slo:
    """Read limits as `EXAMPLE` has them; a number alone is seconds. Raises ValueError saying what is allowed."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        match = _TIME.fullmatch(value)
        if name not in Slo.__struct_fields__ or name in limits or match is None or not float(match[1]):
            allowed = ", ".join(Slo.__struct_fields__)
            raise ValueError(f"must be limits such as {EXAMPLE}, one for each of {allowed} at most, got {text!r}")
        limits[name] = float(match[1]) * _UNITS[match[2]]
    return Slo(**limits)
