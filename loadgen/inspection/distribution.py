"""How the values of one kind are spread."""

from __future__ import annotations

import msgspec

from loadgen.metrics.histogram import Histogram

PERCENTILES = (10, 25, 50, 75, 90, 95, 99)


class Distribution(msgspec.Struct, frozen=True):
    """Of `count` values, at least one. Percentiles are to 0.05 %, the rest exact; `bars` are (value, how many)."""

    count: int
    total: float
    mean: float
    std: float
    min: float
    max: float
    percentiles: dict[str, float]  # "p50"
    bars: tuple[tuple[float, int], ...]  # ascending, each value to 0.05 %

    def statistic(self, name: str) -> float:
        """One by its name: mean, std, min, max, or a percentile such as p50. Raises `KeyError`."""
        return {"mean": self.mean, "std": self.std, "min": self.min, "max": self.max, **self.percentiles}[name]

    @property
    def variation(self) -> float | None:
        """The coefficient of variation: standard deviation / mean; None where the mean is 0."""
        return self.std / self.mean if self.mean else None


def distribution(values: Histogram) -> Distribution | None:
    """None without any value."""
    if not values.count:
        return None
    assert values.mean is not None
    assert values.deviation is not None
    assert values.minimum is not None
    assert values.maximum is not None
    found = zip(PERCENTILES, values.percentiles(PERCENTILES), strict=True)
    return Distribution(
        values.count,
        values.total,
        values.mean,
        values.deviation,
        values.minimum,
        values.maximum,
        {f"p{percent}": value for percent, value in found if value is not None},
        tuple(values.buckets()),
    )
