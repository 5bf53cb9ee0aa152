"""Plots of traces for a terminal; several traces are lines of one plot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from string import ascii_lowercase
from typing import NamedTuple

import plotext
from rich.text import Text

from loadgen.inspection.distribution import Distribution
from loadgen.inspection.inspecting import Inspection
from loadgen.inspection.statistics import Statistics
from loadgen.plotting import HEIGHT, picture

PER_OCTAVE = 4  # points of a distribution from each power of two to the next
WHOLE_NUMBERS = 8  # from here on each of these steps holds one, and an empty step tells something
POINTS = 160  # of a rate over time
SPANS = ((7200.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))

Points = Sequence[tuple[float, float]]
Part = Callable[[Statistics], Points]


def spread(values: Distribution | None) -> Points:
    """The percentage of values by size, in equal steps of a logarithmic scale; those of 0 are left out."""
    if values is None:
        return ()
    counts: Counter[int] = Counter()
    for value, count in values.bars:
        if value > 0:
            counts[math.floor(math.log2(value) * PER_OCTAVE)] += count
    if not counts:
        return ()
    steps = range(min(counts), max(counts) + 1)
    told = [step for step in steps if counts[step] or 2 ** (step / PER_OCTAVE) >= WHOLE_NUMBERS]
    return [(2 ** ((step + 0.5) / PER_OCTAVE), 100 * counts[step] / values.count) for step in told]


def rate(statistics: Statistics) -> Points:
    """Requests/s over time; the last step, which is not over, is left out."""
    series = statistics.rate
    if series is None:
        return ()
    together = -(-len(series.counts) // POINTS)
    width = series.seconds * together
    counts = [sum(series.counts[at : at + together]) for at in range(0, len(series.counts), together)]
    return [((number + 0.5) * width, count / width) for number, count in enumerate(counts[:-1])]


def dispersion(statistics: Statistics) -> Points:
    """Of arrivals by the length of the window."""
    windows = statistics.arrivals.windows if statistics.arrivals else ()
    return [(window.seconds, window.dispersion) for window in windows]


def caches(statistics: Statistics) -> Points:
    """The percentage of blocks that are found by the cache's tokens."""
    size = statistics.sharing.block_size or 1
    return [(point.blocks * size, 100 * point.found) for point in statistics.sharing.caches]


class Plot(NamedTuple):
    """What is drawn of each trace; `label` is that of the axis across, None for time."""

    title: str
    label: str | None
    part: Part


PLOTS = (
    Plot("requests/s", None, rate),
    Plot("dispersion of arrivals (1: as random as Poisson)", "window in seconds", dispersion),
    Plot("% of prompts by length", "input tokens", lambda statistics: spread(statistics.lengths.inputs)),
    Plot("% of answers by length", "output tokens", lambda statistics: spread(statistics.lengths.outputs)),
    Plot("% of think times", "seconds", lambda statistics: spread(statistics.sessions.thinks)),
    Plot("% of sessions by turns", "turns", lambda statistics: spread(statistics.sessions.turns)),
    Plot("% of blocks that a cache finds", "tokens that it holds", caches),
)


def draw(inspections: Sequence[Inspection], names: Sequence[str], width: int, color: bool) -> Iterator[Text]:
    """The plots that any trace has data for, each `width` columns wide."""
    for plot in PLOTS:
        lines = [(name, plot.part(inspection.statistics)) for inspection, name in zip(inspections, names, strict=True)]
        lines = [(name, points) for name, points in lines if len(points) > 1]
        if lines:
            yield _picture(plot, lines, width, color)


def _picture(plot: Plot, lines: Sequence[tuple[str, Points]], width: int, color: bool) -> Text:
    label, unit = plot.label or "", 1.0
    lowest = min(points[0][0] for _, points in lines)
    highest = max(points[-1][0] for _, points in lines)
    top = max(up for _, points in lines for _, up in points)
    if plot.label is None:
        unit, label = next((unit, name) for least, unit, name in SPANS if highest >= least)
        ticks = linear_ticks(highest / unit, width // 10)
    else:
        ticks = logarithmic_ticks(lowest, highest, width // 10)
    several = len(lines) > 1

    def mark() -> None:
        if plot.label is not None:
            plotext.xscale("log")
        for (name, points), letter in zip(lines, ascii_lowercase, strict=False):
            across, up = zip(*points, strict=True)
            marker = letter if several and not color else "braille"
            plotext.plot([value / unit for value in across], up, marker=marker, label=name if several else None)
        plotext.xticks(ticks, [_tick(value) for value in ticks])
        levels = linear_ticks(top, HEIGHT // 2)
        plotext.yticks(levels, [_tick(value) for value in levels])

    return picture(plot.title, label, width, color, mark, top)


def linear_ticks(highest: float, most: int) -> list[float]:
    """Round numbers from 0 on, at most so many."""
    if highest <= 0:
        return [0.0]
    decade = 10.0 ** math.floor(math.log10(highest / most))
    step = next(step for factor in (1, 2, 5, 10, 20) if highest / (step := decade * factor) < most)
    return [number * step for number in range(math.floor(highest / step) + 1)]


def logarithmic_ticks(lowest: float, highest: float, most: int) -> list[float]:
    """Round numbers above 0, at most so many; none where none is between."""
    decades = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    for digits, every in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 4)):
        ticks = [digit * 10.0**decade for decade in decades if decade % every == 0 for digit in digits]
        ticks = [tick for tick in ticks if lowest <= tick <= highest]
        if len(ticks) <= most:
            return ticks
    return []


def _tick(value: float) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"
