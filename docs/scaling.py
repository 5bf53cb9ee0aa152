"""Draws the curve of docs/scaling.md from what `paged-engine simulate --json` told: `python -m docs.scaling FILE`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).parent / "scaling.svg"
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 24, 36, 48
MILLION = 1_000_000
DAY = 86_400


class Point(NamedTuple):
    engines: int
    offered: float  # sessions a day
    good: float  # of these, by the share of requests that kept to the limits
    ttft_p90: float


def points(told: str, recorded_seconds: float, sessions: int) -> list[Point]:
    """Of a trace of so many sessions in so many seconds, at speed 1."""
    found = []
    for one in json.loads(told)["predictions"]:
        control = one["pools"]["control"]
        offered = sessions / recorded_seconds * one["settings"]["crowd"] * one["settings"]["speed"] * DAY
        engines = control["prefill"] + control["decode"] + control["replicas"]
        good = offered * one["goodput"]["share"]
        found.append(Point(engines, offered, good, one["queue"]["time_to_first_token"]["p90"]))
    return found


def picture(curve: list[Point]) -> str:
    """Sessions a day against engines, both logarithmic, with TTFT p90 at each point."""
    most, least = (
        math.ceil(math.log10(max(p.offered for p in curve))),
        math.floor(math.log10(min(p.good for p in curve))),
    )
    widest = math.ceil(math.log10(max(p.engines for p in curve)))

    def x(engines: float) -> float:
        return LEFT + math.log10(engines) / widest * (WIDTH - LEFT - RIGHT)

    def y(sessions: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(sessions) - least) / (most - least) * (HEIGHT - TOP - BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20">sessions a day within the limits, and TTFT p90, against engines</text>',
    ]
    for power in range(widest + 1):
        at = x(10**power)
        lines.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        lines.append(f'<text x="{at:.1f}" y="{HEIGHT - 28}" text-anchor="middle">{10**power:,}</text>')
    for power in range(least, most + 1):
        at = y(10**power)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    lines.append(f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">engines</text>')
    if 10**least <= MILLION <= 10**most:
        at = y(MILLION)
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#c33" stroke-dasharray="6 4"/>'
        )
        lines.append(f'<text x="{WIDTH - RIGHT}" y="{at - 5:.1f}" text-anchor="end" fill="#c33">a million a day</text>')
    for color, dash, of in (("#999", "3 3", [p.offered for p in curve]), ("#27c", "0", [p.good for p in curve])):
        path = " ".join(f"{x(p.engines):.1f},{y(value):.1f}" for p, value in zip(curve, of, strict=True))
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
    for point in curve:
        at_x, at_y = x(point.engines), y(point.good)
        lines.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="3" fill="#27c"/>')
        lines.append(f'<text x="{at_x:.1f}" y="{at_y + 18:.1f}" text-anchor="middle">{point.ttft_p90:.2f} s</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    from engine.trace_lengths import read_trace

    trace = read_trace(Path(__file__).parents[1] / "traces" / "chat500.jsonl")
    sessions = sum(traced.after is None for traced in trace)
    told = Path(sys.argv[1]).read_text()
    curve = points(told, trace[-1].arrival - trace[0].arrival, sessions)
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else PICTURE
    target.write_text(picture(curve))
    print(target)


if __name__ == "__main__":
    main()
