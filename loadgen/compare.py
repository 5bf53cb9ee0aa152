"""The same sessions twice, as systems were before paging and after; and the ratio of every figure."""

from __future__ import annotations

from typing import Any

SIDES = (("static", "reserved"), ("continuous", "paged"))


def ratios(a: Any, b: Any) -> Any:
    """b / a for every number that both have, in the same shape; None where a is 0 or one side has no number."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {name: ratios(a[name], b[name]) for name in a if name in b and _compares(a[name], b[name])}
    if a is None or b is None or a == 0:
        return None
    return b / a


def _compares(a: Any, b: Any) -> bool:
    if isinstance(a, dict) or isinstance(b, dict):
        return isinstance(a, dict) and isinstance(b, dict) and bool(a.keys() & b.keys())
    return all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in (a, b))
