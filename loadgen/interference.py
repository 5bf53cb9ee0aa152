"""What prefills cost the decodes beside them: how long an engine's steps took with and without them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine.protocol import Record
from loadgen.metrics.histogram import Histogram

PERCENTILES = (50, 99)


@dataclass(slots=True)
class Interference:
    """Steps that had at least one decode row, in milliseconds: `alone` without, `mixed` with prefill tokens too."""

    alone: Histogram = field(default_factory=Histogram)
    mixed: Histogram = field(default_factory=Histogram)

    def add(self, record: Record, seconds: float) -> None:
        """Take a step that took so long."""
        kinds = {row.kind for row in record.rows}
        if "decode" in kinds:
            (self.mixed if "prefill" in kinds else self.alone).add(seconds * 1000)

    def merge(self, other: Interference) -> None:
        """Take all that another one holds."""
        self.alone.merge(other.alone)
        self.mixed.merge(other.mixed)

    def figures(self) -> dict[str, float | int | None]:
        """None: there was no such step."""
        told: dict[str, float | int | None] = {}
        for name, histogram in (("alone", self.alone), ("mixed", self.mixed)):
            p50, p99 = histogram.percentiles(PERCENTILES)
            told |= {
                f"decode_steps_{name}": histogram.count,
                f"mean_decode_step_{name}_ms": histogram.mean,
                f"p50_decode_step_{name}_ms": p50,
                f"p99_decode_step_{name}_ms": p99,
                f"max_decode_step_{name}_ms": histogram.maximum,
            }
        return told


def merged_interference(parts: Iterable[Interference]) -> Interference:
    """All of them as one."""
    whole = Interference()
    for part in parts:
        whole.merge(part)
    return whole


def slowdown(figures: Mapping[str, object]) -> float | None:
    """How many times as long a decode's step takes in the mean when a prefill is in it; None: one of both was not."""
    alone, mixed = (figures.get(f"mean_decode_step_{name}_ms") for name in ("alone", "mixed"))
    if not isinstance(alone, float) or not isinstance(mixed, float) or not alone:
        return None
    return mixed / alone
