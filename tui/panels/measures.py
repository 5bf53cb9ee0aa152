"""What is measured over time: each figure read from a window, how it is written, and which way is better.

A chart is some of them to one scale. None stands for what was not measured in a window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from tui import figures
from tui.history import Window, quantile

MIN_OBSERVED = 0.25  # seconds that a rate is over at least
MANY = 256  # values from which on selecting is quicker than sorting
STACK = ("schedule", "prepare", "transfer", "forward", "sample", "publish")  # a step's parts, as they follow each other
LETTERS = "spxfmu"  # of the parts, for those who see no colours
ROLES = ("hue0", "hue4", "hue2", "hue1", "hue3", "hue5")


@dataclass(frozen=True, slots=True)
class Measure:
    """`of` reads a figure from a window, `show` writes it with its unit, `requests` tells of how many it is.

    `better`: 1 where more is better, -1 where less is, 0 where it is neither.
    """

    name: str
    short: str
    role: str
    of: Callable[[Window], float | None]
    show: Callable[[float | None], str]
    better: int = 0
    requests: Callable[[Window], int] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """The first measure is drawn as bars, the others as points; `most` is a fixed top of the scale.

    `stacked`: drawn large, the parts of a step as shares of it.
    """

    name: str
    measures: tuple[Measure, ...]
    most: float | None = None
    stacked: bool = False


def per_second(value: float | None) -> str:
    return f"{figures.count(value)} tok/s"


def per_minute(value: float | None) -> str:
    if value is None:
        return figures.NOT_MEASURED
    return f"{value:,.1f}/min" if 0 < value < 9.95 else f"{value:,.0f}/min"


def _preempted(window: Window) -> float | None:
    return len(window.preempted) * 60 / window.observed if window.observed >= MIN_OBSERVED else None


def _quantile(values: tuple[float, ...], q: float) -> float | None:
    """As `history.quantile`; a quarter of an hour of a busy engine is tens of thousands of requests."""
    return quantile(values, q) if len(values) < MANY else float(np.quantile(np.array(values), q))


def _quantiles(name: str, values: Callable[[Window], tuple[float, ...]]) -> tuple[Measure, ...]:
    def measure(percent: int) -> Measure:
        return Measure(
            f"{name} p{percent}",
            f"p{percent}",
            "latency",
            lambda window: _quantile(values(window), percent / 100),
            figures.seconds,
            better=-1,
            requests=lambda window: len(values(window)),
        )

    return measure(50), measure(90), measure(99)


INTERNAL = Measure("internal waste", "internal", "waste", lambda window: window.internal_share, figures.percent, -1)
EXTERNAL = Measure("external waste", "external", "bad", lambda window: window.external_share, figures.percent, -1)
OCCUPANCY = Measure("KV held", "of pool", "shared", lambda window: window.occupancy, figures.percent)
OUTPUT = Measure("output", "output", "speed", lambda window: window.per_second(window.output_tokens), per_second, 1)
PREFILL = Measure(
    "prefill", "prefill", "prefill-speed", lambda window: window.per_second(window.prefill_tokens), per_second
)
TTFT = _quantiles("TTFT", lambda window: window.ttft)
TPOT = _quantiles("TPOT", lambda window: window.tpot)
E2E = _quantiles("E2E", lambda window: window.e2e)
QUEUE = Measure("queue", "waiting", "queue", lambda window: window.queue_length, figures.count, -1)
QUEUE_AGE = Measure("queue age", "at most", "queue", lambda window: window.oldest_wait, figures.seconds, -1)
PREEMPTIONS = Measure("preemptions", "a minute", "bad", _preempted, per_minute, -1)
HITS = Measure("hit rate", "of prompt tokens looked up", "shared", lambda window: window.hit_share, figures.percent, 1)
BUDGET = Measure("budget used", "of the token budget", "text", lambda window: window.budget_share, figures.percent)
STEP = Measure("step time", "a step", "text", lambda window: window.step_mean, figures.seconds, -1)

CHARTS = (
    Chart("waste: internal of held, external of pool", (INTERNAL, EXTERNAL)),
    Chart("KV held", (OCCUPANCY,), most=1.0),
    Chart("throughput", (OUTPUT, PREFILL)),
    Chart("TTFT", TTFT),
    Chart("TPOT", TPOT),
    Chart("E2E", E2E),
    Chart("queue", (QUEUE,)),
    Chart("queue age", (QUEUE_AGE,)),
    Chart("preemptions", (PREEMPTIONS,)),
    Chart("hit rate", (HITS,), most=1.0),
    Chart("step time", (STEP,), stacked=True),
)
COMPARED = (
    INTERNAL, EXTERNAL, OCCUPANCY, OUTPUT, PREFILL, TTFT[0], TTFT[2], TPOT[0], TPOT[2], E2E[0], E2E[2],
    QUEUE, QUEUE_AGE, PREEMPTIONS, HITS, BUDGET, STEP,
)  # fmt: skip


def shares(window: Window) -> list[float] | None:
    """The parts of the window's steps, in the order of `STACK`, as shares of their whole time."""
    spent = msgspec.structs.asdict(window.durations)
    whole = sum(spent.values())
    return [spent[part] / whole for part in STACK] if whole else None
