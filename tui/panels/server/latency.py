"""How long requests took, from histograms: a mean, and what a share of them was at most, by the buckets' bounds.

A quantile is never guessed between two bounds: `≤ 250 ms` says that so many were at most that.
"""

from __future__ import annotations

import math

from tui import figures
from tui.look import Look
from tui.panels.line import Line, cut, fit, length
from tui.panels.server.seen import Seen

TERMS = (
    ("ttft", "to first token", "TTFT"),
    ("itl", "between tokens", "ITL"),
    ("tpot", "per output token", "TPOT"),
    ("e2el", "whole request", "E2E"),
    ("queue", "waiting", "queue"),
    ("prefill", "prefill", "prefill"),
    ("decode", "decode", "decode"),
)
PERCENTS = (50, 90, 99)
_CELL = 10
_LEAST = 0.0001  # seconds, as `figures.seconds` shows them


def quantile(seen: Seen, term: str, percent: float) -> str:
    """What that percentile is at most; beyond the last bound, more than it."""
    buckets = seen.measures.histograms.get(term) if seen.measures is not None else None
    if buckets is None:
        return figures.NOT_MEASURED
    bound = buckets.at_most(percent)
    if math.isfinite(bound):
        return f"≤ {figures.at_most(bound)}"
    finite = [one for one in buckets.upto if math.isfinite(one)]
    return f"> {figures.more_than(max(finite))}" if finite else figures.NOT_MEASURED


def mean(seen: Seen, term: str) -> str:
    """The mean; so little that it would read as nothing is said to be less than what can be shown."""
    value = seen.measures.mean(term) if seen.measures is not None else None
    return f"<{figures.seconds(_LEAST)}" if value is not None and 0 < value < _LEAST / 2 else figures.seconds(value)


def table(seen: Seen, inner: int, rows: int, look: Look) -> list[Line]:
    """A row for each: mean, quantiles, and how many they are of; where it is not told, why."""
    named = inner >= 62
    wide = 22 if named else 8
    left = (inner - wide - 2) // _CELL - 2  # beside the mean and the count
    percents = PERCENTS if left >= 3 else PERCENTS[::2] if left == 2 else PERCENTS[2:]
    heads = "".join(f"{head:>{_CELL}}" for head in ("mean", *(f"p{percent}" for percent in percents), "of"))
    out: list[Line] = [fit([(f" {'latency':<{wide}}{heads}", "dim")], inner)]
    measures = seen.measures
    for term, name, short in TERMS:
        label: Line = [(f" {f'{short} {name}' if named and short != name else short:<{wide}.{wide}}", "text")]
        count = measures.count(term) if measures is not None else None
        if measures is None or count is None:
            why = f"{figures.NOT_MEASURED:>{_CELL}} {seen.why(term)}"
            out.append(cut([*label, (why, "dim")], inner - 1, look.glyphs.more))
            continue
        cells = [mean(seen, term), *(quantile(seen, term, percent) for percent in percents)]
        line: Line = [
            *label,
            *((f"{cell:>{_CELL}}", "latency") for cell in cells),
            (f"{figures.count(count):>{_CELL}}", "dim"),
        ]
        out.append(fit(line, inner) if length(line) > inner else line)
    return out[:rows]
