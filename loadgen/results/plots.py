"""Plots of a run for a terminal: latency, throughput and the engine's waste and sharing over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import plotext
from rich.text import Text

from loadgen.outcome import Outcome, RequestRecord
from loadgen.replay import RunResult

HEIGHT = 14
BUCKETS = 80


def token_rates(records: Sequence[RequestRecord], start: float, width: float) -> list[float]:
    """Output tokens/s in buckets of `width` seconds; a request's tokens are spread evenly over its chunks."""
    totals: list[float] = []
    for record in records:
        if record.outcome is not Outcome.COMPLETED or not record.chunks:
            continue
        weight = record.output_tokens / len(record.chunks)
        for moment in record.chunks:
            bucket = max(0, int((moment - start) / width))
            totals += [0.0] * (bucket + 1 - len(totals))
            totals[bucket] += weight
    return [total / width for total in totals]


def _thin(values: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
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


def _picture(title: str, width: int, color: bool) -> Text:
    plotext.title(title)
    plotext.xlabel("seconds since the start")
    plotext.plotsize(width, HEIGHT)
    if not color:
        plotext.theme("clear")
    plotext.ylim(lower=0)
    picture = Text.from_ansi(plotext.build())
    plotext.clear_figure()
    return picture


def draw(result: RunResult, width: int, color: bool) -> Iterator[Text]:
    """The plots that the run has data for."""
    plotext.clear_figure()
    done = [record for record in result.records if record.outcome is Outcome.COMPLETED and record.chunks]
    done.sort(key=lambda record: record.sent or 0.0)
    if not done:
        return
    times = [(record.sent or 0.0) - result.start for record in done]
    from_scheduled = [record.chunks[0] - (record.scheduled or 0.0) for record in done]
    from_sent = [record.chunks[0] - (record.sent or 0.0) for record in done]
    if any(a - b > 0.001 for a, b in zip(from_scheduled, from_sent, strict=True)):
        plotext.scatter(times, from_scheduled, label="from scheduled", marker="x")
    plotext.scatter(times, from_sent, label="from sent", marker="dot")
    yield _picture("TTFT (s) by the time of sending", width, color)
    span = max(record.chunks[-1] for record in done) - result.start
    bucket = max(span / BUCKETS, 0.1)
    rates = token_rates(done, result.start, bucket)
    plotext.plot([(i + 0.5) * bucket for i in range(len(rates))], rates, marker="braille")
    yield _picture("output tokens/s", width, color)
    if not result.moments:
        return
    shares = [(m.time, 100 * m.internal / m.held) for m in result.moments if m.held]
    if shares:
        plotext.plot(*_thin(shares), marker="braille")
        yield _picture("internal waste, % of filled + internal", width, color)
    plotext.plot(*_thin([(m.time, m.saved_blocks) for m in result.moments]), marker="braille")
    yield _picture("blocks saved by sharing", width, color)
