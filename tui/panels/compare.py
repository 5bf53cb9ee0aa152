"""Before and after the last switch: every figure over equal windows on its two sides, and which side is better."""

from __future__ import annotations

from tui import controls, figures
from tui.history import Comparison
from tui.look import Look
from tui.panels.line import Line, clean, fit, join, spread
from tui.panels.measures import COMPARED, Measure
from tui.view import View

MIN_COMPARED = 1.0  # seconds each side of a switch must have had before figures are compared
ENOUGH = 8  # requests on each side, from which on a quantile is judged
ENOUGH_SECONDS = 5.0  # and of both windows
SAME = 0.05  # a smaller change is none: about what two figures show
HEAD_ROWS = 3


def comparison_of(view: View) -> Comparison | None:
    """The windows on the two sides of the last switch, once both say something."""
    comparison = view.history.comparison(view.now)
    if comparison is None or min(comparison.before.observed, comparison.after.observed) < MIN_COMPARED:
        return None
    return comparison


def changed(comparison: Comparison, look: Look) -> str:
    """What was switched, in words."""
    changes = controls.changes(comparison.first.before, comparison.last.after)
    return clean(", ".join(f"{a} {look.glyphs.arrow} {b}" for a, b in changes) or "switched and back")


def pair(measure: Measure, comparison: Comparison, look: Look) -> str:
    """A figure before and after; the unit is said once where both have it."""
    before, after = measure.show(measure.of(comparison.before)), measure.show(measure.of(comparison.after))
    number, _, unit = before.partition(" ")
    if unit and after.partition(" ")[2] == unit:
        before = number
    return f"{before} {look.glyphs.arrow} {after}"


def ratio(measure: Measure, comparison: Comparison) -> float | None:
    """After over before; None where one was not measured, or before was nothing."""
    before, after = measure.of(comparison.before), measure.of(comparison.after)
    return None if not before or after is None else after / before


def verdict(measure: Measure, comparison: Comparison) -> int:
    """1: better than before, -1: worse, 0: neither, or not measured by enough to say so.

    Quantiles of few requests tell those that got through, not what was served.
    """
    before, after = measure.of(comparison.before), measure.of(comparison.after)
    if measure.requests and min(map(measure.requests, (comparison.before, comparison.after))) < ENOUGH:
        return 0
    if min(comparison.before.observed, comparison.after.observed) < ENOUGH_SECONDS:
        return 0
    if before is None or after is None or abs(after - before) <= SAME * max(abs(before), abs(after)):
        return 0
    return measure.better if after > before else -measure.better


def times(value: float | None, look: Look) -> str:
    """A ratio to two figures, and more where it is large."""
    if value is None:
        return figures.NOT_MEASURED
    if 0 < value < 0.0005:
        return f"<{look.glyphs.hole}0.001"
    digits = 0 if value >= 9.95 or not value else 1 if value >= 0.995 else 2 if value >= 0.0995 else 3
    return f"{look.glyphs.hole}{value:,.{digits}f}"


def table(view: View, comparison: Comparison | None, width: int, rows: int, look: Look) -> list[Line]:
    """What was switched, the seconds of both sides, and a row for each figure: `rows` at most."""
    glyphs = look.glyphs
    if comparison is None:
        waits = "measuring both sides of the last switch" if view.history.switches else "nothing was switched yet"
        return [[(f" {glyphs.switch} ", "switch"), (waits, "dim")]][:rows]
    head: list[Line] = [
        [(f" {glyphs.switch} ", "switch"), (changed(comparison, look), "value")],
        join(
            [
                [(f"   {figures.seconds(comparison.before.observed)} before,", "dim")],
                [(f"{figures.seconds(comparison.after.observed)} since", "dim")],
                [(f"step {comparison.last.seq:,}", "dim")],
            ],
            (" ", "text"),
            width,
        ),
    ]
    if width >= 44:
        head.append(_row([("", "dim")], ("before", "dim"), ("after", "dim"), ("ratio", "dim"), [], width))
    return [*head, *(_compared(measure, comparison, width, look) for measure in COMPARED)][:rows]


def cell(measure: Measure, comparison: Comparison, look: Look) -> Line:
    """A figure before and after in short, marked where it is better or worse."""
    mark, role, _ = _marked(verdict(measure, comparison), look)
    return [(f" {mark} ", role), (f"{measure.name:<15}", "dim"), (pair(measure, comparison, look), role)]


def _marked(better: int, look: Look) -> tuple[str, str, str]:
    """The glyph, the role and the word of a verdict."""
    if not better:
        return " ", "text", ""
    return (look.glyphs.taken, "good", "better") if better > 0 else (look.glyphs.released, "bad", "worse")


def _compared(measure: Measure, comparison: Comparison, width: int, look: Look) -> Line:
    mark, role, word = _marked(verdict(measure, comparison), look)
    before, after = measure.show(measure.of(comparison.before)), measure.show(measure.of(comparison.after))
    by = times(ratio(measure, comparison), look)
    if width < 44:
        line: Line = [(f" {mark} ", role), (pair(measure, comparison, look), role)]
        return spread(line, [(f"{measure.name} ", "dim")], width)
    end: Line = [(f" {mark} ", role)]
    if width >= 56:
        end.append((f"{word:<7}", role))
    if width >= 80 and measure.requests:
        counts = f"{measure.requests(comparison.before):,} and {measure.requests(comparison.after):,} requests"
        end.append((counts, "dim"))
    return _row([(f" {measure.name}", "text")], (before, "value"), (after, role), (by, role), end, width)


def _row(
    name: Line, before: tuple[str, str], after: tuple[str, str], by: tuple[str, str], end: Line, width: int
) -> Line:
    cell = min(14, (width - 24) // 2)
    line = fit(name, 15)
    for text, role in (before, after):
        line.append((text.rjust(cell), role))
    return [*line, (by[0].rjust(7), by[1]), *end]
