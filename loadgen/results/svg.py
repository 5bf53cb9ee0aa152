"""Charts as inline SVG: axes with units, no script, and colours from the page's style, so that they suit any theme."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 480, 250  # of the drawing, in units of which a letter is 12 high
LEFT, RIGHT, TOP, BOTTOM = 58, 20, 12, 40
TICKS = 5  # about so many on an axis
LEAST = 1e-9  # what is below is drawn as nothing


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined in order. `kind` is the style's name of its colour: a to e."""

    label: str
    points: Sequence[tuple[float, float]]
    kind: str = "a"


@dataclass(frozen=True, slots=True)
class Dots:
    """Points each by itself."""

    label: str
    points: Sequence[tuple[float, float]]
    kind: str = "a"


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn. `note` says what it was drawn from, and how much of it; `x_ticks` names places on the x axis."""

    title: str
    x_label: str
    y_label: str
    marks: tuple[Line | Dots, ...]
    note: str
    x_ticks: Sequence[tuple[float, str]] = field(default_factory=tuple)

    @property
    def empty(self) -> bool:
        return not any(mark.points for mark in self.marks)


def nice_ticks(highest: float) -> list[float]:
    """About `TICKS` round numbers from 0 on, the last at or above `highest`."""
    if not highest > LEAST:
        return [0.0, 1.0]
    rough = highest / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [step * count for count in range(math.ceil(highest / step - 1e-9) + 1)]


def tick_text(value: float) -> str:
    """A number short enough for an axis."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{value:.6g}"


def draw(chart: Chart) -> str:
    """The chart as a `<figure>`. Its title and note are text of the page; an empty chart is no text at all."""
    if chart.empty:
        return ""
    places = [point for mark in chart.marks for point in mark.points]
    y_ticks = nice_ticks(max(y for _, y in places))
    x_ticks, right = list(chart.x_ticks), max(x for x, _ in places)
    if not x_ticks:
        x_ticks = [(tick, tick_text(tick)) for tick in nice_ticks(right) if tick <= right or right <= LEAST]
    scale = _Scale(x_ticks[0][0], max(right, x_ticks[-1][0]), y_ticks[-1])
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        *_axes(chart, scale, x_ticks, y_ticks),
        *(_mark(mark, scale) for mark in chart.marks if mark.points),
        "</svg>",
    ]
    legend = "".join(
        f'<span class="key {mark.kind}{" dots" if isinstance(mark, Dots) else ""}">{escape(mark.label)}</span>'
        for mark in chart.marks
        if mark.points
    )
    return (
        f"<figure><figcaption><b>{escape(chart.title)}</b><span>{legend}</span></figcaption>"
        f"{''.join(parts)}<small>{escape(chart.note)}</small></figure>"
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """From the data's units to the drawing's."""

    least_x: float
    most_x: float
    most_y: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.least_x) / (self.most_x - self.least_x) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.most_y * (HEIGHT - TOP - BOTTOM)


def _axes(chart: Chart, scale: _Scale, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[float]) -> Iterable[str]:
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in y_ticks:
        y = f"{scale.y(tick):.1f}"
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 6}" y="{y}" dy=".35em" text-anchor="end">{tick_text(tick)}</text>'
    for tick, name in x_ticks:
        x = f"{scale.x(tick):.1f}"
        yield f'<line class="axis" x1="{x}" x2="{x}" y1="{floor}" y2="{floor + 4}"/>'
        yield f'<text x="{x}" y="{floor + 16}" text-anchor="middle">{escape(name)}</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>'
    middle = (LEFT + right) / 2
    yield f'<text class="unit" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(chart.x_label)}</text>'
    across = (TOP + floor) / 2
    turned = f'transform="rotate(-90 12 {across})" text-anchor="middle"'
    yield f'<text class="unit" x="12" y="{across}" {turned}>{escape(chart.y_label)}</text>'


def _mark(mark: Line | Dots, scale: _Scale) -> str:
    places = [(scale.x(x), scale.y(y)) for x, y in mark.points]
    if isinstance(mark, Line):
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        return f'<polyline class="{mark.kind}" points="{joined}"/>'
    # Strokes without length and with round ends are dots, and one path of them is far smaller than as many circles.
    return f'<path class="{mark.kind} dots" d="{"".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)}"/>'
