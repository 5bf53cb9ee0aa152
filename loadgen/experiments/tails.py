"""What tails say of two sides, as a table and as one plain sentence that claims no more than the repeats show. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.experiments.compare import LEAST_REPEATS, TAILS, THROUGHPUT, TOO_FEW_REPEATS, Figure, Verdict
from loadgen.metrics.classes import LONG, SHORT
from loadgen.results.document import Document
from loadgen.results.tables import Table, text

_FIGURES = {figure.name: figure for figures in TAILS.values() for figure in figures} | {THROUGHPUT.name: THROUGHPUT}


def tail_table(verdicts: Sequence[Verdict], split: int | None) -> Table:
    """A row for each percentile of TTFT and ITL of each class; only those that the sentence is of have an interval."""
    rows = tuple(
        (
            f"{verdict.title}{' (ms)' if _FIGURES[verdict.figure].milliseconds else ''}",
            text(verdict.a),
            text(verdict.b),
            "-" if verdict.change is None else _ratio(verdict.change),
            "-" if verdict.low is None or verdict.high is None else f"{_ratio(verdict.low)} to {_ratio(verdict.high)}",
            text(verdict.differs),
        )
        for verdict in verdicts
    )
    caption = ["B / A is the mean over the repeats. TTFT counts from the moment a turn was due."]
    if split is not None:
        caption.append(f"{SHORT}: prompts of up to {split:,} tokens; {LONG}: all others.")
    return Table("Tails", rows, ("", "A", "B", "B / A", "between", "differs"), tuple(caption))


def plain_verdict(verdicts: Sequence[Verdict], names: tuple[str, str], failed: tuple[int, int] = (0, 0)) -> str:
    """What B is against A by the figures that were decided on, and what it buys at which price. `failed`: requests of
    each, all repeats together."""
    a, b = names
    decided = [verdict for verdict in verdicts if verdict.differs is not None or verdict.untold is not None]
    if not decided:
        return f"{b}: nothing was measured that both sides have."
    told = "; ".join(_said(verdict, a) for verdict in decided)
    return f"{b}: {told}: {_bought(decided)}.{_failed(names, failed)}"


def _failed(names: tuple[str, str], failed: tuple[int, int]) -> str:
    """Requests that are in no ITL, and whose work the others did not have beside them."""
    if not any(failed):
        return ""
    told = " and ".join(f"{count:,} with {name}" for name, count in zip(names, failed, strict=True))
    return f" Requests failed, {told}: what these would have taken from the others, no figure shows."


def split_of(document: Document | None) -> int | None:
    """Up to how many tokens a prompt is short in it; None: there are no classes."""
    classes = (document or {}).get("classes")
    return None if classes is None else int(classes["split_prompt_tokens"])


def _said(verdict: Verdict, a: str) -> str:
    """`ITL of short prompts, p99, 0.31 of colocated's (21.0 against 68.1 ms)`."""
    figure = _FIGURES[verdict.figure]
    if verdict.change is None:
        return f"{verdict.title}: not told, {verdict.untold}"
    ratio = _ratio(verdict.change)
    if verdict.differs is False:
        assert verdict.low is not None
        assert verdict.high is not None
        between = f"between {_ratio(verdict.low)} and {_ratio(verdict.high)} of {a}'s"
        return f"{verdict.title}: a difference is not shown ({ratio}, {between})"
    how = "of" if verdict.change < 0 else "times"
    unit = " ms" if figure.milliseconds else ""
    unshown = "" if verdict.differs else ", not shown"
    if verdict.few_values is not None:
        unshown += f" by {verdict.few_values:,} values where {figure.least_values} are needed"
    return f"{verdict.title}, {ratio} {how} {a}'s ({text(verdict.b)} against {text(verdict.a)}{unit}{unshown})"


def _bought(decided: Sequence[Verdict]) -> str:
    """What is shown to be better, what is not, and what is shown to be worse."""
    if all(verdict.differs is None for verdict in decided):
        of_repeats = any(verdict.untold == TOO_FEW_REPEATS for verdict in decided)
        return "nothing is shown" + (f" by fewer than {LEAST_REPEATS} whole repeats" if of_repeats else "")
    gains = [_group(_FIGURES[verdict.figure]) for verdict in decided if verdict.differs and _better(verdict)]
    losses = [_group(_FIGURES[verdict.figure]) for verdict in decided if verdict.differs and not _better(verdict)]
    throughput = _group(THROUGHPUT)
    price = f", at the price of {_and(losses)}" if losses else ""
    if not gains:
        return f"no gain is shown{f', and it costs {_and(losses)}' if losses else ''}"
    held = any(_FIGURES[verdict.figure] is THROUGHPUT and verdict.differs is False for verdict in decided)
    not_throughput = f", a difference in {throughput} is not shown" if held else ""
    return f"it buys {_and(gains)}{not_throughput}{price}"


def _better(verdict: Verdict) -> bool:
    assert verdict.change is not None
    return (verdict.change > 0) == (_FIGURES[verdict.figure] is THROUGHPUT)


def _group(figure: Figure) -> str:
    if figure is THROUGHPUT:
        return "throughput"
    name = "ITL" if figure.shown.endswith("_itl_ms") else "TTFT"
    return f"{name} tails{f' of {figure.of} prompts' if figure.of else ''}"


def _and(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _ratio(change: float) -> str:
    """Two digits at least: one that is small is not 0."""
    quotient = 1 + change
    return f"{quotient:.2g}" if 0 < quotient < 0.1 else f"{quotient:,.2f}"
