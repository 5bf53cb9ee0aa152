"""The charts of a run's page: what each draws, in which unit, and how much data is behind it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.summary import Figures
from loadgen.results.document import Measured
from loadgen.results.series import TOGETHER
from loadgen.results.svg import Chart, Dots, Line
from loadgen.results.tables import TITLES

SECONDS = "seconds since the start"
NINES = (0, 50, 90, 99, 99.9, 99.99, 99.999)  # percentiles with a tick
BETWEEN = 24  # points of a line for each nine
MOMENTS = 400  # points of a line over time at most


def over_time(run: Measured) -> Iterator[Chart]:
    """Latency and load by the second."""
    series = run.series
    drawn, measured = len(series.points), series.measured
    of = f"{measured:,} requests" if drawn == measured else f"{drawn:,} of {measured:,} requests, drawn at random"
    late = any(point.from_scheduled - point.ttft > 0.001 for point in series.points)
    slowest = [(at, value) for at, value in zip(_middles(run), series.slowest, strict=True) if value]
    yield Chart(
        "Time to first token, by the time of sending",
        SECONDS,
        "TTFT (s)",
        (
            *([Dots("from scheduled", [(one.sent, one.from_scheduled) for one in series.points], "b")] if late else []),
            Dots("from sent", [(one.sent, one.ttft) for one in series.points], "a"),
            *([Line("slowest", slowest, "c")] if drawn < measured else []),
        ),
        of,
    )
    together = f"{TOGETHER * series.width:.3g} s"
    sent, completed, failed = sum(series.sent), sum(series.completed), sum(series.failed)
    yield Chart(
        "Requests",
        SECONDS,
        "requests/s",
        (
            Line("sent", series.per_second(series.sent, TOGETHER), "b"),
            Line("completed", series.per_second(series.completed, TOGETHER), "a"),
            *([Line("failed", series.per_second(series.failed, TOGETHER), "c")] if failed else []),
        ),
        f"{sent:,} sent, {completed:,} completed, {failed:,} failed; rates over {together} each",
    )
    yield Chart(
        "Requests in flight",
        SECONDS,
        "requests",
        (Line("sent and not yet over", series.in_flight, "a"),),
        f"{sent:,} requests, counted every {series.width:.3g} s",
    )
    yield Chart(
        "Output tokens",
        SECONDS,
        "tokens/s",
        (Line("of completed requests", series.per_second(series.tokens), "a"),) if any(series.tokens) else (),
        f"{sum(series.tokens):,.0f} tokens; rates over {series.width:.3g} s each",
    )


def percentiles(figures: Figures) -> Iterator[Chart]:
    """How slow the slowest are: every latency from its least to its greatest."""
    of = figures.distributions.of
    for title, names in (
        ("Time to first token", ("ttft", "ttft_scheduled")),
        ("End to end", ("e2el", "e2el_scheduled")),
        ("Time per output token, and between chunks", ("tpot", "itl")),
        ("Send lag", ("send_lag",)),
    ):
        present = [name for name in names if of[name].count]
        unit, scale = _unit(max((of[name].maximum or 0.0 for name in present), default=0.0))
        lines = [Line(TITLES[name], _curve(of[name], scale), kind) for name, kind in zip(present, "ab", strict=False)]
        end = max((_end(of[name]) for name in present), default=0.0)
        ticks = [(_nines(percent), f"{percent:g}") for percent in NINES if _nines(percent) <= end]
        yield Chart(
            title,
            "percentile",
            unit,
            (*lines, *_limits(figures, present, lines, end, scale)),
            "; ".join(_behind(name, of[name]) for name in present),
            ticks,
        )


def engine(run: Measured) -> Iterator[Chart]:
    """Memory of the engine by the second."""
    moments = run.end.moments
    thin = moments[:: math.ceil(len(moments) / MOMENTS)] if moments else ()
    note = f"{len(thin):,} of {len(moments):,} moments" if len(thin) < len(moments) else f"{len(moments):,} moments"
    shares = [(at, 100 * internal / held) for at, held, internal, _ in thin if held]
    yield Chart("Internal waste", SECONDS, "% of filled + internal", (Line("internal waste", shares, "a"),), note)
    held = [(at, float(held)) for at, held, _, _ in thin]
    yield Chart("Slots held", SECONDS, "slots of one token", (Line("held", held, "a"),), note)
    saved = [(at, float(blocks)) for at, _, _, blocks in thin]
    yield Chart("Blocks saved by sharing", SECONDS, "blocks", (Line("saved", saved, "a"),), note)


def _middles(run: Measured) -> list[float]:
    series = run.series
    return [(at + 0.5) * series.width for at in range(len(series.sent))]


def _unit(milliseconds: float) -> tuple[str, float]:
    return ("s", 0.001) if milliseconds >= 10_000 else ("ms", 1.0)


def _nines(percent: float) -> float:
    """The place of a percentile on an axis that gives each further nine the same room."""
    return -math.log10(1 - percent / 100)


def _end(histogram: Histogram) -> float:
    """Where the slowest of all has its place."""
    return max(1.0, math.log10(histogram.count + histogram.infinite))


def _curve(histogram: Histogram, scale: float) -> list[tuple[float, float]]:
    """It ends where the failures begin."""
    end = _end(histogram)
    points = math.ceil(BETWEEN * end)
    places = [end * step / points for step in range(points + 1)]
    values = histogram.percentiles([100 * (1 - 10**-place) for place in places])
    return [(place, max(0.0, value * scale)) for place, value in zip(places, values, strict=True) if value is not None]


def _limits(figures: Figures, names: Sequence[str], lines: Sequence[Line], end: float, scale: float) -> Iterator[Line]:
    """Those of the SLO that are not far above all that was measured."""
    top = max((value for line in lines for _, value in line.points), default=0.0)
    for name, limit in figures.slo.limits if figures.slo else ():
        if name in names and limit * scale <= 2 * top:
            yield Line(f"limit of {TITLES[name]}", [(0.0, limit * scale), (end, limit * scale)], "limit")


def _behind(name: str, histogram: Histogram) -> str:
    of = "gaps" if name == "itl" else "requests"
    failures = f", and {histogram.infinite:,} failed: the line ends there" if histogram.infinite else ""
    return f"{TITLES[name]}: {histogram.count:,} {of}{failures}"
