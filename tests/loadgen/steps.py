"""Small snapshots and step records for tests."""

from __future__ import annotations

from typing import Any

from engine.protocol import (
    Control,
    Counters,
    Durations,
    EngineInfo,
    PoolTotals,
    Queue,
    Record,
    Row,
    RowKind,
    SharingLedger,
    Snapshot,
    WasteLedger,
)

ENGINE = EngineInfo("m", "float32", "cpu", 16, 10, 64, 128, "0", started_unix=1.0)


def row(kind: RowKind, tokens: int) -> Row:
    return Row("r", kind, tokens, tokens, 0, 1)


def record(seq: int, time: float, seconds: float = 0.0, **changes: Any) -> Record:
    base: dict[str, Any] = {
        "control": Control(),
        "durations": Durations(0.0, 0.0, seconds, 0.0, 0.0),
        "pool": PoolTotals(),
        "waste": WasteLedger(),
        "sharing": SharingLedger(),
        "queue": Queue(),
    }
    # What has no default is something listed; of all others the default is told.
    listed = Record.__struct_fields__[: -len(Record.__struct_defaults__)]
    return Record(**{**dict.fromkeys(listed, ()), **base, "seq": seq, "time": time, **changes})


def snapshot(seq: int, time: float, **changes: Any) -> Snapshot:
    base: dict[str, Any] = {
        "engine": ENGINE,
        "control": Control(),
        "requests": (),
        "blocks": (),
        "pool": PoolTotals(free=10),
        "waste": WasteLedger(),
        "sharing": SharingLedger(),
        "queue": Queue(),
        "counters": Counters(),
    }
    return Snapshot(seq=seq, time=time, **{**base, **changes})
