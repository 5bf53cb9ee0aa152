"""One load after the other: what each asks for, what it got, and what all of them say. Pure but for reading files."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from loadgen.experiments.knee import Goodput, Knee, Peak, Response, find_knee, find_peak
from loadgen.experiments.statistics import ERROR_RATE, Mean
from loadgen.metrics.latency import latencies
from loadgen.metrics.slo import overall
from loadgen.metrics.window import Part
from loadgen.results.document import Document, Measured, measure
from loadgen.results.run_file import RunFile
from loadgen.settings import Settings

DIGITS = 4  # of a load, in names too
BATCHES = 5
SLOT = 0.1  # seconds: what a batch's length is a multiple of
_RATES = ("poisson", "gamma", "constant")


class Over(StrEnum):
    """What goes from load to load."""

    RATE = "rate"  # sessions/s
    USERS = "users"
    CONCURRENCY = "concurrency"  # requests in flight
    SPEED = "speed"  # of the trace

    @property
    def whole(self) -> bool:
        return self in (Over.USERS, Over.CONCURRENCY)

    @property
    def unit(self) -> str:
        units = {Over.RATE: "sessions/s", Over.USERS: "users", Over.CONCURRENCY: "requests in flight"}
        return units.get(self, "times the trace's speed")


def rounded(load: float, over: Over) -> float:
    """A load as it is asked for and named."""
    return float(max(1, round(load))) if over.whole else float(f"{load:.{DIGITS}g}")


def named_load(load: float, over: Over) -> float:
    """A load that a person asked for. Raises ValueError if it cannot be one."""
    if over.whole and load != round(load):
        raise ValueError(f"--values: expected whole numbers of {over.unit}, got {load:g}")
    return rounded(load, over)


def spread_loads(first: float, last: float, steps: int, over: Over) -> list[float]:
    """Loads from one to another in even ratios. Raises ValueError unless the first is above 0 and below the last."""
    if not 0 < first < last:
        raise ValueError(f"the first load must be above 0 and below the last one, got {first:g} to {last:g}")
    if steps < 2:
        raise ValueError(f"steps: must be at least 2, got {steps}")
    ratio = (last / first) ** (1 / (steps - 1))
    return sorted({rounded(first * ratio**step, over) for step in range(steps)})


def settings_at(base: Settings, over: Over, load: float) -> Settings:
    """What a load asks for. Raises ValueError if the settings say otherwise when sessions come."""
    kind, _, rest = base.arrivals.partition(":")
    named = [word for word in rest.split(",") if "=" in word]
    match over:
        case Over.RATE:
            if kind not in (*_RATES, "recorded"):
                raise ValueError(f"--over rate: not with arrivals {base.arrivals!r}; it goes with {', '.join(_RATES)}")
            spec = "poisson" if kind == "recorded" else kind
            return msgspec.structs.replace(base, arrivals=f"{spec}:{','.join([f'{load:g}', *named])}")
        case Over.USERS:
            if kind not in ("users", "recorded"):
                raise ValueError(f"--over users: not with arrivals {base.arrivals!r}, which are no closed loop")
            return msgspec.structs.replace(base, arrivals=f"users:{','.join([f'{load:g}', *named])}")
        case Over.CONCURRENCY:
            return msgspec.structs.replace(base, concurrency=int(load))
        case Over.SPEED:
            if kind != "recorded":
                raise ValueError(f"--over speed: not with arrivals {base.arrivals!r}, which have no speed")
            return msgspec.structs.replace(base, speed=load)


def path_of(folder: Path, over: Over, load: float) -> Path:
    """The file of a load's run."""
    return folder / f"{over}-{load:g}.jsonl"


def load_of(path: Path, over: Over) -> float | None:
    """The load that a file's name tells, None if it is of no such run."""
    try:
        load = float(path.stem.removeprefix(f"{over}-"))
    except ValueError:
        return None
    return load if path.name == path_of(path.parent, over, load).name else None


@dataclass(frozen=True, slots=True)
class Point:
    """A load and what it got."""

    load: float
    document: Document
    response: Response | None  # None: nothing was completed
    goodput: Goodput | None  # None: there are no limits


def read_point(load: float, run: RunFile, over: Over) -> Point:
    """Raises `ResultError`."""
    measured = measure(run)
    document = measured.document()
    summary = document["summary"]
    # Under a cap on requests in flight the rest waits in the client, for as long as there are any.
    latency = summary["mean_e2el_ms" if over is Over.CONCURRENCY else "mean_e2el_scheduled_ms"]
    throughput = summary["request_throughput"]
    response = Response(load, throughput, latency / 1000) if throughput and latency else None
    return Point(load, document, response, _goodput(load, measured, summary))


def _goodput(load: float, measured: Measured, summary: dict[str, Any]) -> Goodput | None:
    value, slo = summary["goodput"], measured.figures.slo
    if slo is None or value is None:
        return None
    window = measured.figures.window
    met: Counter[int] = Counter()  # by the slot in which it was sent
    first, last = math.inf, -math.inf
    for record in measured.run.records():
        if record.sent is None or window.part(record) is not Part.MEASURED:
            continue
        slot = int(record.sent / SLOT)
        first, last = min(first, slot), max(last, slot)
        met[slot] += overall(slo.verdicts(record, latencies(record))) is True
    if not value:
        return Goodput(load, 0.0, 0.0, 3 / summary["duration"])  # the rule of three
    return Goodput(load, value, *batch_interval(value, met, int(first), int(last)))


def batch_interval(value: float, counts: Counter[int], first: int, last: int) -> tuple[float, float]:
    """Where a rate lies, 95 % sure, by the means of batches: requests that follow each other wait in the same queue,
    stretches of the run hardly do. Anywhere if it took no time or nothing was counted.

    `counts` are by slot. Near saturation queues outlast a batch, and fewer batches err less: how often five hold what
    is true is told by `python -m benchmarks.goodput_interval`. Source: Law, Simulation Modeling and Analysis, on the
    analysis of steady-state output.
    """
    batches = _batches(counts, first, last)
    if not any(batches):
        return 0.0, math.inf
    mean = Mean.of([batch / statistics.fmean(batches) for batch in batches])
    low, high = mean.interval(ERROR_RATE)
    return max(0.0, low) * value, high * value


def _batches(counts: Counter[int], first: int, last: int) -> list[int]:
    """Sums over stretches of the same number of slots; what is left over at the end is in none."""
    length = (last + 1 - first) // BATCHES
    starts = range(first, first + length * BATCHES, length) if length else ()
    return [sum(counts[slot] for slot in range(start, start + length)) for start in starts]


@dataclass(frozen=True, slots=True)
class Found:
    """What a sweep found. None: it cannot be told."""

    points: tuple[Point, ...]  # by load
    knee: Knee | None
    peak: Peak | None


def find(points: Sequence[Point]) -> Found:
    """The knee and the most goodput of what was measured."""
    ordered = tuple(sorted(points, key=lambda point: point.load))
    return Found(
        ordered,
        find_knee([point.response for point in ordered if point.response is not None]),
        find_peak([point.goodput for point in ordered if point.goodput is not None]),
    )


def sweep_document(found: Found, over: Over, conditions: str) -> Document:
    """For programs."""
    return {
        "over": str(over),
        "unit": over.unit,
        "points": [
            {
                "load": point.load,
                "goodput": None if point.goodput is None else msgspec.to_builtins(point.goodput),
                **point.document,
            }
            for point in found.points
        ],
        "knee": None if found.knee is None else msgspec.to_builtins(found.knee),
        "max_goodput": None if found.peak is None else msgspec.to_builtins(found.peak),
        "conditions": conditions,
    }
