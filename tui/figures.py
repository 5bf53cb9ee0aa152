"""How figures read on the screen: units named, thousands separated, and a dash for what was not measured."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor

NOT_MEASURED = "—"


def count(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{round(value):,}"


def brief(value: float, rounding: Callable[[float], int] = round) -> str:
    """A number from 0 on in at most five characters, where there is no room for more."""
    for unit in ("", "k", "M", "G", "T"):
        if unit and value < 9.95:
            return f"{rounding(value * 10) / 10:.1f}{unit}"
        if rounding(value) < 1000:
            return f"{rounding(value)}{unit}"
        value /= 1000
    return f"{value * 1e15:.0e}"


def percent(share: float | None) -> str:
    """`share` of 1 as percent: one decimal below ten, where it matters, and where all but a little is not all."""
    if share is None:
        return NOT_MEASURED
    value = share * 100
    if 99.5 <= value < 100:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.1f} %" if abs(value) < 9.95 else f"{value:,.0f} %"


def ratio(part: float, whole: float) -> float | None:
    """part / whole, or None where there is nothing to be a part of."""
    return part / whole if whole else None


def size(value: int) -> str:
    """Bytes in binary units."""
    if value < 1024:
        return f"{value} B"
    amount = float(value)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1024 or unit == "TiB":
            break
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:,.0f} {unit}"


def seconds(value: float | None) -> str:
    """A duration with the unit that suits it."""
    if value is None:
        return NOT_MEASURED
    if value < 0.00995:
        return f"{value * 1000:.1f} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 119.5:
        return f"{value:.0f} s"
    return clock(value)


def clock(value: float) -> str:
    """Minutes and seconds, hours before them when there are any."""
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def at_most(value: float) -> str:
    """A duration that something is at most: rounded up, where it has to be rounded."""
    return seconds(_rounded(value, ceil))


def more_than(value: float) -> str:
    """A duration that something is longer than: rounded down."""
    return seconds(_rounded(value, floor))


def _rounded(value: float, rounding: Callable[[float], int]) -> float:
    """To what `seconds` can show of such a duration."""
    unit = 0.0001 if value < 0.00995 else 0.001 if value < 0.9995 else 0.1 if value < 9.95 else 1.0
    return rounding(round(value / unit, 6)) * unit


def plural(value: int, noun: str) -> str:
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"
