"""Numbers as a person reads them: thousands apart, bytes in binary units, shares in per cent."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def in_bytes(count: float) -> str:
    """Bytes in the largest binary unit of which there is at least one."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count /= 1024
        power += 1
    text = f"{count:,.0f}" if count == int(count) else f"{count:,.2f}"
    return f"{text} {_UNITS[power]}"


def in_number(value: float) -> str:
    """A mean with one decimal, and none where that is 0."""
    value = round(value, 1)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def in_percent(share: float) -> str:
    if share >= 0.00995 or share == 0:
        return f"{100 * share:.1f} %"
    return f"{100 * share:.2f} %" if share >= 0.00005 else "< 0.01 %"
