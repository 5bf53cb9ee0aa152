"""What experiments found, as tables and sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.experiments.compare import FIGURES, LEAST_REPEATS, Verdict
from loadgen.experiments.statistics import ERROR_RATE
from loadgen.results.tables import Table, text

FIGURE = {figure.name: figure for figure in FIGURES}
TIMES_FROM = 2.0  # a ratio from here on, or below 1 / this, is told as one


def findings(verdicts: Sequence[Verdict], names: tuple[str, str]) -> list[str]:
    """What is known of B against A, in sentences."""
    a, b = names
    told = [verdict for verdict in verdicts if verdict.differs is not None]
    differing = [verdict for verdict in told if verdict.differs]
    alike = [verdict for verdict in told if not verdict.differs]
    lines = []
    if not told:
        lines.append(f"No verdict: fewer than {LEAST_REPEATS} repeats tell too little. Ask for more with --repeat.")
    elif not differing:
        lines.append(f"No difference found between {a} and {b}.")
    else:
        lines.append(f"{b} differs from {a}:")
    lines += [f"  {verdict.title}: {_words(verdict)} ({_range(verdict)})" for verdict in differing]
    if differing and alike:
        lines.append("No difference found in:")
    lines += [f"  {verdict.title}: {_range(verdict, words=True)}" for verdict in alike]
    lines += [f"  {verdict.title}: not told, {verdict.untold}" for verdict in verdicts if told and verdict.untold]
    return lines


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Each figure of both sides, by how much it changes, and what could have been found."""
    rows = tuple(
        (
            verdict.title + (" (ms)" if FIGURE[verdict.figure].milliseconds else ""),
            _shown(verdict, verdict.a),
            _shown(verdict, verdict.b),
            "-" if verdict.change is None else _signed(verdict, verdict.change),
            "-" if verdict.low is None else _range(verdict, signed=True),
            text(verdict.differs),
            _smallest(verdict.found_from),
        )
        for verdict in verdicts
    )
    return Table("B against A", rows, ("", "A", "B", "change", "between", "differs", "finds"))


def explanation(verdicts: Sequence[Verdict], names: tuple[str, str], repeats: int) -> str:
    """What the columns of `verdict_table` are."""
    told = [f"A: {names[0]}. B: {names[1]}."]
    if repeats >= LEAST_REPEATS and any(verdict.error_rate for verdict in verdicts):
        told += [
            f"A and B are medians of {repeats} repeats; changes are taken within a repeat, those of latencies without",
            f"a percentile between the same requests. between: by t over the repeats, {_confidence(verdicts)} % sure.",
            "differs: all of these together err between equal sides in at most",
            f"{ERROR_RATE * 100:.0f} % of comparisons (Holm). finds: about the smallest change that is found in 9 of",
            "10 comparisons with such noise.",
        ]
        needed = [verdict.repeats_for_5_percent or 0 for verdict in verdicts if verdict.differs is False]
        if max(needed, default=0) > repeats:
            told.append(f"To find 5 % in all where none was found: about --repeat {max(needed)}.")
    return " ".join(told)


def _confidence(verdicts: Sequence[Verdict]) -> str:
    """How sure the intervals are: each has the level at which its figure was decided on."""
    levels = sorted({round(100 * (1 - one.error_rate), 1) for one in verdicts if one.error_rate is not None})
    return " to ".join(f"{level:g}" for level in dict.fromkeys((*levels[:1], *levels[-1:])))


def _shown(verdict: Verdict, value: float | None) -> str:
    return text(value, "attainment" if verdict.points else "")


def _percent(share: float) -> str:
    """With a digit after the point where it is small."""
    size = abs(share) * 100
    return f"{size:.1f}" if size < 9.95 else f"{size:.0f}"


def _smallest(change: float | None) -> str:
    if not change:
        return "-"
    return f"{_percent(change)} %" if change < 1 else f"x {1 + change:.3g}"


def _as_times(verdict: Verdict) -> bool:
    values = [value for value in (verdict.change, verdict.low, verdict.high) if value is not None]
    return not verdict.points and not all(1 / TIMES_FROM < 1 + value < TIMES_FROM for value in values)


def _unit(verdict: Verdict) -> str:
    return "points" if verdict.points else "%"


def _signed(verdict: Verdict, value: float) -> str:
    if _as_times(verdict):
        return f"x {1 + value:.3g}"
    return f"{'-' if value < 0 else '+' if value > 0 else ''}{_percent(value)} {_unit(verdict)}"


def _words(verdict: Verdict, value: float | None = None) -> str:
    """A change in words: `12 % shorter`, `3.4 times as long`; the verdict's own unless given."""
    value = verdict.change if value is None else value
    assert value is not None
    figure = FIGURE[verdict.figure]
    if _as_times(verdict):
        return f"{1 + value:.3g} times as {figure.as_much}"
    return f"{_percent(value)} {_unit(verdict)} {figure.more if value > 0 else figure.less}"


def _range(verdict: Verdict, signed: bool = False, words: bool = False) -> str:
    """Where a change lies."""
    low, high = verdict.low, verdict.high
    assert low is not None
    assert high is not None
    if words and low == high == 0:
        return "equal in every repeat"
    if words:
        return f"between {_words(verdict, low)} and {_words(verdict, high)}"
    if _as_times(verdict):
        return f"{1 + low:.3g} to {1 + high:.3g}"
    if signed:
        first, second = (_signed(verdict, value) for value in (low, high))
        return f"{first.removesuffix(_unit(verdict)).strip()} to {second}"
    least, most = sorted((low, high), key=abs)
    return f"{_percent(least)} to {_percent(most)} {_unit(verdict)}"
