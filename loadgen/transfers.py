"""KV that engines gave each other during a run, from their step records. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.protocol import HAS_ENDED, Record
from loadgen.metrics.histogram import Histogram

PERCENTILES = (50, 99)


@dataclass(slots=True)
class _Side:
    """Transfers that came to their end on one side of them, and how long each took there, in milliseconds."""

    requests: int = 0
    blocks: int = 0
    nbytes: int = 0
    errors: int = 0
    milliseconds: Histogram = field(default_factory=Histogram)

    def merge(self, other: _Side) -> None:
        self.requests += other.requests
        self.blocks += other.blocks
        self.nbytes += other.nbytes
        self.errors += other.errors
        self.milliseconds.merge(other.milliseconds)


@dataclass(slots=True)
class Transfers:
    """By the engine that gave (`sent`: its blocks were held from the offer until they were acknowledged) and by the one
    that took them (`received`: from the moment it had blocks for them until they were filled).

    What failed is counted apart, and is in no other figure.
    """

    sent: _Side = field(default_factory=_Side)
    received: _Side = field(default_factory=_Side)

    def add(self, record: Record) -> None:
        """Take what ended in a step."""
        for one in record.transferred:
            side = self.sent if one.side == "sent" else self.received
            if one.error:
                side.errors += one.error != HAS_ENDED
                continue
            side.requests += 1
            side.blocks += one.blocks
            side.nbytes += one.nbytes
            side.milliseconds.add(one.seconds * 1000)

    def merge(self, other: Transfers) -> None:
        """Take all that another one holds."""
        self.sent.merge(other.sent)
        self.received.merge(other.received)

    def figures(self) -> dict[str, float | int | None]:
        """None: there was none. `sent_expired`: leases that nobody acknowledged in time."""
        told: dict[str, float | int | None] = {}
        for name, side in (("sent", self.sent), ("received", self.received)):
            p50, p99 = side.milliseconds.percentiles(PERCENTILES)
            told |= {
                f"{name}_requests": side.requests,
                f"{name}_blocks": side.blocks,
                f"{name}_bytes": side.nbytes,
                f"p50_{name}_ms": p50,
                f"p99_{name}_ms": p99,
                f"max_{name}_ms": side.milliseconds.maximum,
            }
        return told | {"received_failed": self.received.errors, "sent_expired": self.sent.errors}


def merged_transfers(parts: Iterable[Transfers]) -> Transfers:
    """All of them as one."""
    whole = Transfers()
    for part in parts:
        whole.merge(part)
    return whole
