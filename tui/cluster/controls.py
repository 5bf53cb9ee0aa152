"""What can be switched of a cluster: how each field reads, which key changes it, and what it can be."""

from __future__ import annotations

from typing import Any, get_args

from engine.cluster.protocol import MOST_LOCAL_PREFILL, MOST_WORKERS, ClusterControl, Role, Routing
from tui.cluster.view import SIZES
from tui.commands import Ask

FIELDS = ClusterControl.__struct_fields__
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
_NAMES = {
    "separate": "prefill and decode",
    "local_prefill": "local prefill",
    **{size: f"{role} workers" for role, size in SIZES.items()},
}


def named(field: str) -> str:
    """What a person calls a field of ClusterControl."""
    return _NAMES.get(field, field)


def reads(field: str, value: Any) -> str:
    """Its value, in words."""
    if field == "separate":
        return "separate" if value else "colocated"
    if field == "local_prefill":
        return f"{value:,} tokens"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("_", " ")


def after(routing: Routing) -> Routing:
    """The next one, round and round."""
    return ROUTINGS[(ROUTINGS.index(routing) + 1) % len(ROUTINGS)]


def ask(field: str, control: ClusterControl) -> Ask:
    """Ask for a number, beginning with what it is."""
    return Ask(field, f"{_asked(field)} (0 to {most(field):,})", f"{getattr(control, field):,}")


def read(field: str, text: str) -> int:
    """The number that a person wrote. Raises ValueError: it names what is allowed."""
    digits = text.strip().replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 12 and int(digits) <= most(field)):
        raise ValueError(f"{_asked(field)}: must be a whole number from 0 to {most(field):,}, got {text[:40]!r}")
    return int(digits)


def most(field: str) -> int:
    return MOST_LOCAL_PREFILL if field == "local_prefill" else MOST_WORKERS


def scaled(role: Role, by: int, control: ClusterControl) -> dict[str, int]:
    """A pool of so many more workers, or fewer. Raises ValueError where there cannot be so many."""
    field = SIZES[role]
    size = getattr(control, field) + by
    if not 0 <= size <= MOST_WORKERS:
        raise ValueError(f"{_asked(field)}: must be a whole number from 0 to {MOST_WORKERS:,}, got {size}")
    return {field: size}


def _asked(field: str) -> str:
    role = next((role for role, size in SIZES.items() if size == field), None)
    return "prompt tokens prefilled where they decode" if role is None else f"{role} workers"
