"""What a sweep over loads finds: the knee, and the load with the most goodput. Pure.

The knee is where throughput / latency, the "power" of a queue, is greatest: below it more load costs little latency,
above it little is gained for much. It is where a ray from the origin touches the curve of latency over throughput, so
it depends on no scale and on no choice of axes. For one server with Poisson arrivals it is where one request is in the
system on average (M/M/1: half of the capacity). Source: L. Kleinrock, Power and deterministic rules of thumb for
probabilistic problems in computer communications, ICC 1979.

Goodput as a function of load rises to one peak and falls: more is offered, then less of it meets the limits. So the
best load measured and its neighbours enclose the peak, and halving the wider of the two gaps closes in on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Response:
    """What a load got: completed requests/s, and their mean latency in seconds."""

    load: float
    throughput: float
    latency: float

    @property
    def power(self) -> float:
        return self.throughput / self.latency


@dataclass(frozen=True, slots=True)
class Knee:
    """It lies between `low` and `high`, loads that were measured, and about at `load`.

    None for one of these: power still rose at that end of the sweep, so the knee may lie beyond `load`.
    """

    load: float
    low: float | None
    high: float | None


def find_knee(responses: Sequence[Response]) -> Knee | None:
    """The load of the greatest power, by a parabola through it and its neighbours in logarithms; None without any.

    Loads must differ and all numbers be above 0, or ValueError is raised.
    """
    if not responses:
        return None
    if any(min(one.load, one.throughput, one.latency) <= 0 for one in responses):
        raise ValueError("loads, throughputs and latencies must be above 0")
    ordered = sorted(responses, key=lambda one: one.load)
    best = max(range(len(ordered)), key=lambda index: ordered[index].power)
    middle = ordered[best]
    left = ordered[best - 1] if best > 0 else None
    right = ordered[best + 1] if best + 1 < len(ordered) else None
    if left is None or right is None:
        return Knee(middle.load, None if left is None else left.load, None if right is None else right.load)
    return Knee(_vertex(left, middle, right), left.load, right.load)


def _vertex(left: Response, middle: Response, right: Response) -> float:
    """The top of the parabola through three points of (log load, log power), the middle one of which is highest."""
    before, after = math.log(left.load / middle.load), math.log(right.load / middle.load)
    fall_before, fall_after = math.log(left.power / middle.power), math.log(right.power / middle.power)
    curvature = fall_before / before - fall_after / after
    if curvature <= 0:  # all three as high
        return middle.load
    top = (fall_before * after / before - fall_after * before / after) / (2 * curvature)
    return middle.load * math.exp(min(max(top, before), after))


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests/s within the limits at a load, and where its true value is: 95 % sure, near saturation 75 %."""

    load: float
    value: float
    low: float
    high: float


def next_load(
    measured: Sequence[Goodput], least: float, most: float, precision: float, whole: bool = False
) -> float | None:
    """Where to measure next to find the most goodput, between two loads; None: found to this precision.

    `precision` 0.1: the neighbours of the best load are within 10 % of it. At an end of what was measured the load is
    doubled or halved. `whole`: loads are whole numbers. It depends on what was measured alone, so a search goes on
    from what a file holds.
    """
    if not measured:
        raise ValueError("a search starts from at least one measured load")
    ordered = sorted(measured, key=lambda one: one.load)
    loads = [one.load for one in ordered]
    best = max(range(len(loads)), key=lambda index: ordered[index].value)  # of equal ones the lowest
    load = loads[best]
    wanted = []
    if best == 0:
        wanted.append(max(load / 2, least))
    if best == len(loads) - 1 and ordered[best].value > 0:
        wanted.append(min(load * 2, most))
    gaps = [gap for gap in pairwise(loads) if load in gap and gap[1] / gap[0] > 1 + precision]
    wanted += [math.sqrt(low * high) for low, high in sorted(gaps, key=lambda gap: gap[0] / gap[1])]
    possible = [float(round(one)) for one in wanted] if whole else wanted
    return next((one for one in possible if least <= one <= most and one not in loads), None)


@dataclass(frozen=True, slots=True)
class Peak:
    """The most goodput that was measured, and between which loads the true peak lies as far as one can tell.

    None for one of these: at that end of the sweep goodput cannot be told from the best.
    """

    best: Goodput
    low: float | None
    high: float | None


def find_peak(measured: Sequence[Goodput]) -> Peak | None:
    """The best load; None if no request met the limits anywhere.

    Loads beside it whose intervals reach into that of the best may be as good, so the peak is between the first loads
    on either side that are surely worse.
    """
    ordered = sorted(measured, key=lambda one: one.load)
    best = max(ordered, key=lambda one: one.value, default=None)
    if best is None or best.value == 0:
        return None
    at = ordered.index(best)
    below = [one.load for one in ordered[:at] if one.high < best.low]
    above = [one.load for one in ordered[at + 1 :] if one.high < best.low]
    return Peak(best, below[-1] if below else None, above[0] if above else None)
