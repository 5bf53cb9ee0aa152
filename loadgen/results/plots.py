"""Plots of a run for a terminal: latency, load and the engine's waste and sharing over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import plotext
from rich.text import Text

from loadgen.plotting import picture
from loadgen.results.document import Measured
from loadgen.results.series import TOGETHER

BUCKETS = 80


def thinned(values: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """At most some points a column wide, each the mean of its stretch of time."""
    if not values:
        return [], []
    first, last = values[0][0], values[-1][0]
    width = (last - first) / BUCKETS or 1.0
    buckets: dict[int, list[tuple[float, float]]] = {}
    for point in values:
        buckets.setdefault(int((point[0] - first) / width), []).append(point)
    points = [(sum(t for t, _ in b) / len(b), sum(v for _, v in b) / len(b)) for b in buckets.values()]
    return [t for t, _ in points], [v for _, v in points]


def draw(run: Measured, width: int, color: bool) -> Iterator[Text]:
    """The plots that the run has data for, each `width` columns wide."""

    def plot(title: str, *marks: Callable[[], None]) -> Text:
        return picture(title, "seconds since the start", width, color, lambda: [mark() for mark in marks])

    def line(values: Sequence[tuple[float, float]], label: str | None = None) -> Callable[[], None]:
        return lambda: plotext.plot(*zip(*values, strict=True), label=label, marker="braille")

    def dots(values: Sequence[tuple[float, float]], label: str) -> Callable[[], None]:
        return lambda: plotext.scatter(*zip(*values, strict=True), label=label, marker="dot")

    series = run.series
    if series.measured:
        yield plot(*_ttft(run))
    if any(series.sent):
        sent, completed = series.per_second(series.sent, TOGETHER), series.per_second(series.completed, TOGETHER)
        yield plot("requests/s", line(completed, "completed"), dots(sent, "sent"))
        yield plot("requests in flight", line(series.in_flight))
    if any(series.tokens):
        yield plot("output tokens/s", line(series.per_second(series.tokens)))
    moments = run.end.moments
    shares = [(at, 100 * internal / held) for at, held, internal, _ in moments if held]
    if shares:
        yield plot("internal waste, % of filled + internal", lambda: _plot(shares))
    if moments:
        yield plot("blocks saved by sharing", lambda: _plot([(at, saved) for at, _, _, saved in moments]))


def _plot(values: Sequence[tuple[float, float]]) -> None:
    plotext.plot(*thinned(values), marker="braille")


def _ttft(run: Measured) -> tuple[str, Callable[[], None]]:
    """TTFT of each request, or of a sample, from sent and, where it differs, from scheduled."""
    points, measured = run.series.points, run.series.measured
    of = "" if len(points) == measured else f", {len(points):,} of {measured:,} requests"

    def mark() -> None:
        times = [point.sent for point in points]
        if any(point.from_scheduled - point.ttft > 0.001 for point in points):
            plotext.scatter(times, [point.from_scheduled for point in points], label="from scheduled", marker="x")
        plotext.scatter(times, [point.ttft for point in points], label="from sent", marker="dot")

    return f"TTFT (s) by the time of sending{of}", mark
