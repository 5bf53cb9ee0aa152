"""What a sweep found, for a person at a terminal: a table, plots over the load, and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import plotext
from rich.text import Text

from loadgen.experiments.knee import Knee, Peak
from loadgen.experiments.sweep import Found, Over, Point
from loadgen.plotting import picture
from loadgen.results.tables import Table, text


def sweep_table(found: Found, over: Over, narrow: bool = False) -> Table:
    """A line for each load; fewer columns where it is `narrow`."""
    ttft, e2el = _latencies(over)
    columns = [
        ("sent", "sent"),
        ("turns", "request_throughput"),
        ("tokens", "output_throughput"),
        ("TTFT", f"p50_{ttft}_ms"),
        ("p99", f"p99_{ttft}_ms"),
        ("TPOT", "p50_tpot_ms"),
        ("E2E", f"p50_{e2el}_ms"),
        ("p99", f"p99_{e2el}_ms"),
        ("failed", "failed"),
    ]
    if narrow:
        columns = [column for column in columns if column[0] not in ("tokens", "TPOT")]
    since = "sending" if over is Over.CONCURRENCY else "schedule"
    caption = [
        "sent: turns. turns, tokens: completed per second. "
        f"TTFT, TPOT, E2E: p50 in ms from {since}; p99: of what is before it."
    ]
    if any(point.goodput is not None for point in found.points):
        columns += [("within", "slo_attainment"), ("good", "goodput")]
        caption.append("within: the share of turns within the limits; good: those turns per second.")
    rows = tuple(
        (f"{point.load:g}", *(text(point.document["summary"][name], name) for _, name in columns))
        for point in found.points
    )
    return Table(
        f"Sweep over {over} ({over.unit})", rows, (str(over), *(title for title, _ in columns)), (" ".join(caption),)
    )


def _latencies(over: Over) -> tuple[str, str]:
    """Under a cap on requests in flight the rest waits in the client, for as long as there are any."""
    return ("ttft", "e2el") if over is Over.CONCURRENCY else ("ttft_scheduled", "e2el_scheduled")


def sentences(found: Found, over: Over) -> list[str]:
    """The knee and the most goodput, each with how sure it is."""
    told = [_knee(found.knee, over)]
    if any(point.goodput is not None for point in found.points):
        told.append(_peak(found.peak, over))
    return told


def _knee(knee: Knee | None, over: Over) -> str:
    why = "throughput / latency is greatest there (Kleinrock's power)"
    if knee is None:
        return "Knee: not found, nothing was completed."
    if knee.low is None and knee.high is None:
        return "Knee: not found, it takes at least three loads."
    if knee.high is None:
        return f"Knee: not found up to {knee.load:g} {over.unit}; throughput / latency still rises there."
    if knee.low is None:
        return f"Knee: below {knee.high:g} {over.unit}, the second load; throughput / latency falls from the first on."
    return f"Knee: at about {knee.load:.3g} {over.unit}, between {knee.low:g} and {knee.high:g}; {why}."


def _peak(peak: Peak | None, over: Over) -> str:
    if peak is None:
        return "Most goodput: none, no request met the limits at any load."
    best = peak.best
    value, low, high = map(text, (best.value, best.low, best.high))
    sure = "95 %, near saturation 75 %"
    told = f"Most goodput: {value} turns/s ({sure}: {low} to {high}) at {best.load:g} {over.unit}"
    if peak.low is None and peak.high is None:
        return f"{told}; no other load can be told from it."
    if peak.high is None:
        return f"{told}; the peak is above {peak.low:g}, and may be beyond the highest load."
    if peak.low is None:
        return f"{told}; the peak is below {peak.high:g}, and may be under the lowest load."
    return f"{told}; the peak is between {peak.low:g} and {peak.high:g}."


def draw(found: Found, over: Over, width: int, color: bool) -> Iterator[Text]:
    """Latency, and throughput with goodput, over the load; the knee is a line across both."""
    ttft, e2el = _latencies(over)

    def plot(title: str, *lines: tuple[str, Callable[[Point], float | None]]) -> Iterator[Text]:
        values = [(label, *_values(found.points, value)) for label, value in lines]
        shown = [(label, xs, ys) for label, xs, ys in values if len(xs) > 1]

        def mark() -> None:
            for label, xs, ys in shown:
                plotext.plot(xs, ys, label=label, marker="braille")
                plotext.scatter(xs, ys, marker="dot")
            if found.knee is not None and found.knee.low is not None and found.knee.high is not None:
                plotext.vline(found.knee.load)

        if shown:
            yield picture(title, f"{over} ({over.unit})", width, color, mark)

    def of_summary(name: str) -> Callable[[Point], float | None]:
        return lambda point: point.document["summary"][name]

    yield from plot("E2E (ms)", ("p50", of_summary(f"p50_{e2el}_ms")), ("p99", of_summary(f"p99_{e2el}_ms")))
    yield from plot("TTFT (ms)", ("p50", of_summary(f"p50_{ttft}_ms")), ("p99", of_summary(f"p99_{ttft}_ms")))
    yield from plot(
        "turns/s", ("completed", of_summary("request_throughput")), ("within the limits", of_summary("goodput"))
    )


def _values(points: Sequence[Point], value: Callable[[Point], float | None]) -> tuple[list[float], list[float]]:
    pairs = [(point.load, found) for point in points if (found := value(point)) is not None]
    return [load for load, _ in pairs], [found for _, found in pairs]
