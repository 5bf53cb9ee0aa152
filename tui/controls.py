"""The controls that have a key: what each can be, how that reads, and what changed between two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from engine.protocol import Allocation, Batching, Control, Preempt, ReservedFit, SchedulingPolicy


@dataclass(frozen=True, slots=True)
class Keyed:
    """A control and the key that moves it to the next of its `choices`."""

    key: str
    field: str  # of Control
    name: str
    short: str
    choices: tuple[Any, ...]

    def after(self, value: Any) -> Any:
        """The choice that follows `value`, round and round."""
        return self.choices[(self.choices.index(value) + 1) % len(self.choices)]


KEYED = (
    Keyed("m", "batching", "batching", "batching", get_args(Batching)),
    Keyed("a", "allocation", "allocation", "alloc", get_args(Allocation)),
    Keyed("f", "reserved_fit", "reserved fit", "fit", get_args(ReservedFit)),
    Keyed("c", "prefix_cache", "prefix cache", "cache", (True, False)),
    Keyed("s", "scheduling_policy", "policy", "policy", get_args(SchedulingPolicy)),
    Keyed("w", "preempt", "preempt", "preempt", get_args(Preempt)),
)
BY_FIELD = {keyed.field: keyed for keyed in KEYED}


def word(value: Any) -> str:
    """A control's value as it reads."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value).replace("_", " ")


def changes(before: Control, after: Control) -> list[tuple[str, str]]:
    """What differs between two controls, in words; a fit counts only where both reserve."""
    out = []
    for keyed in KEYED:
        old, new = getattr(before, keyed.field), getattr(after, keyed.field)
        if old == new or (keyed.field == "reserved_fit" and "paged" in (before.allocation, after.allocation)):
            continue
        named = f"{keyed.short} " if keyed.field in ("reserved_fit", "prefix_cache", "preempt") else ""
        out.append((f"{named}{word(old)}", word(new)))
    return out
