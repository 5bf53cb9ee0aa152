"""Step records made by hand, of requests that go from one engine to another."""

from __future__ import annotations

from typing import Any

from engine.protocol import (
    Arrived,
    Control,
    Durations,
    Joined,
    PoolTotals,
    Queue,
    Record,
    Row,
    SharingLedger,
    Transferred,
    WasteLedger,
)


def record(seq: int, *kinds: str, seconds: float = 0.0, **told: Any) -> Record:
    """A step with a row of each kind, which took so long."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("arrived", "joined", "preempted", "held", "left", "released", "tables", "blocks"), ()
    )
    rows = tuple(Row(f"r{i}", kind, 1, 1, 0, kind == "decode") for i, kind in enumerate(kinds))
    return Record(
        seq=seq,
        control=Control(),
        durations=Durations(0.0, 0.0, seconds, 0.0, 0.0),
        pool=PoolTotals(),
        waste=WasteLedger(),
        sharing=SharingLedger(),
        queue=Queue(),
        **nothing | {"rows": rows, "time": 0.0} | told,
    )


def arrived(*requests: str) -> tuple[Arrived, ...]:
    return tuple(Arrived(request, 40, 8, 0.0) for request in requests)


def joined(request: str, **told: Any) -> Joined:
    return Joined(request, 0, 40, "paged", resumed=False, **told)


def transferred(request: str, side: Any, seconds: float = 0.5, error: str = "") -> Transferred:
    return Transferred(request, f"lease-{request}", side, 3, 300, seconds, error)
