"""What a side says of a cluster's pools: separated or not, and how many workers of each role. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.settings import COLOCATED, SEPARATED

ALLOWED = f"{SEPARATED}, {COLOCATED}, or workers as in 1P1D (prefill and decode) or 2R (replicas)"
_SHAPE = re.compile(r"(?:(?P<prefill>\d{1,4})P(?P<decode>\d{1,4})D)?(?:(?P<replicas>\d{1,4})R)?", re.IGNORECASE)
_FLAGS = ("--prefill", "--decode", "--replicas")


@dataclass(frozen=True, slots=True)
class Shape:
    """How many workers of each role a cluster is started with."""

    prefill: int = 0
    decode: int = 0
    replicas: int = 0

    @property
    def workers(self) -> int:
        return self.prefill + self.decode + self.replicas

    def __str__(self) -> str:
        pools = f"{self.prefill}P{self.decode}D" if self.prefill or self.decode else ""
        return pools + (f"{self.replicas}R" if self.replicas else "")

    def arguments(self) -> tuple[str, ...]:
        """For `paged-engine serve`."""
        sizes = zip(_FLAGS, (self.prefill, self.decode, self.replicas), strict=True)
        return tuple(word for flag, size in sizes if size for word in (flag, str(size)))


DEFAULT = Shape(prefill=1, decode=1)


@dataclass(frozen=True, slots=True)
class Pools:
    """`shape` None: as the other side's."""

    mode: str  # `SEPARATED` or `COLOCATED`
    shape: Shape | None = None


def parse_pools(text: str) -> Pools:
    """Raises ValueError that says what is allowed."""
    if text in (SEPARATED, COLOCATED):
        return Pools(text)
    match = _SHAPE.fullmatch(text)
    if match is not None and text:
        shape = Shape(**{role: int(size or 0) for role, size in match.groupdict().items()})
        if shape.workers and bool(shape.prefill) == bool(shape.decode):
            return Pools(SEPARATED if shape.prefill else COLOCATED, shape)
    raise ValueError(f"expected {ALLOWED}, got {text!r}")


def sized(arguments: Sequence[str]) -> bool:
    """Whether an engine's arguments say how many workers there are."""
    return any(word.partition("=")[0] in _FLAGS for word in arguments)


def shapes(a: Pools | None, b: Pools | None) -> tuple[Shape | None, Shape | None]:
    """The workers that each side's cluster is started with; None: that side is none.

    Raises ValueError where the sides would have unequal resources.
    """
    if a is None or b is None:
        return _shape(a), _shape(b)
    first = a.shape or b.shape or DEFAULT
    second = b.shape or a.shape or DEFAULT
    if first.workers != second.workers:
        raise ValueError(
            f"{first} has {_count(first.workers)} and {second} has {_count(second.workers)}: "
            "sides are compared at equal resources"
        )
    return first, second


def _shape(pools: Pools | None) -> Shape | None:
    return None if pools is None else pools.shape or DEFAULT


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
