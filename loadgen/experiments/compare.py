"""A against B: the same requests on both sides in turn, the ratios of what came of them, and whether they differ.

Runs alternate (A B, B A, A B, ...), so that a machine that gets slower or faster does so to both. Each repeat gives
one ratio for every figure. For latencies it is the median over the requests that both sides completed of B's latency /
A's of the same request, which no single odd request moves; for the rest it is of the runs' own figures.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.experiments.sides import Side
from loadgen.experiments.statistics import ERROR_RATE, Decision, Mean, holm, repeats_needed, smallest_found
from loadgen.metrics.classes import CLASSES, LONG, SHORT
from loadgen.metrics.latency import latencies
from loadgen.metrics.window import Part
from loadgen.outcome import Outcome
from loadgen.results.document import Document, measure
from loadgen.results.run_file import RunFile

Measure = Callable[[Side, int, Path], Awaitable[RunFile]]
FIVE_PERCENT = 0.05
TOO_FEW_REPEATS = "fewer than 3 repeats tell too little of its uncertainty"
LEAST_REPEATS = 3  # two have an interval too, of which the ends differ by some powers of ten
_NUMBERS = re.compile(r"[\d.,]+")
_PERCENTILE = re.compile(r"p(\d+)_(\w+)_ms")
PARTS = ("summary", "engine", "settings")  # whose numbers have ratios
Key = tuple[int, int]  # a session's place in the trace, and a turn of it


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that is compared: a latency of single requests, or a figure of a run's summary."""

    name: str
    title: str
    shown: str  # of the summary, beside the ratio
    more: str  # what B's is where the change is above 0
    less: str
    as_much: str  # of a multiple
    requests: bool = False
    points: bool = False  # a share, compared by difference
    of: str = ""  # the class of prompts that it is of; empty: of all

    def value(self, document: Document) -> float | None:
        """What a side has; None: nothing."""
        classes = document.get("classes") or {"of": {}}
        part = classes["of"].get(self.of, {}) if self.of else document["summary"]
        value: float | None = part.get(self.shown)
        return value

    def values(self, document: Document) -> int | None:
        """How many values its percentile is of; None: it is no percentile of a class of latencies."""
        percentile = _PERCENTILE.fullmatch(self.shown)
        if percentile is None:
            return None
        classes = document.get("classes") or {"of": {}}
        part = classes["of"].get(self.of, {}) if self.of else document["summary"]
        count: int | None = part.get(f"count_{percentile[2]}")
        return count

    @property
    def least_values(self) -> int:
        """Of how many values its percentile is not merely the greatest: 10 for a p90, 100 for a p99."""
        percentile = _PERCENTILE.fullmatch(self.shown)
        return 1 if percentile is None else round(100 / (100 - int(percentile[1])))

    @property
    def milliseconds(self) -> bool:
        return self.shown.endswith("_ms")


_TIME = ("longer", "shorter", "long")
_AMOUNT = ("more", "fewer", "many")
FIGURES = (
    Figure("output_throughput", "output tokens/s", "output_throughput", *_AMOUNT),
    Figure("ttft_scheduled", "TTFT", "p50_ttft_scheduled_ms", *_TIME, requests=True),
    Figure("p99_ttft_scheduled_ms", "TTFT, p99", "p99_ttft_scheduled_ms", *_TIME),
    Figure("tpot", "TPOT", "p50_tpot_ms", *_TIME, requests=True),
    Figure("e2el_scheduled", "E2E", "p50_e2el_scheduled_ms", *_TIME, requests=True),
    Figure("p99_e2el_scheduled_ms", "E2E, p99", "p99_e2el_scheduled_ms", *_TIME),
    Figure("slo_attainment", "turns within the limits", "slo_attainment", *_AMOUNT, points=True),
    Figure("failed_share", "turns failed", "failed_share", *_AMOUNT, points=True),
)
_PERCENTILES = ("p50", "p90", "p99", "max")
# Each more that is decided on makes all others harder to find. Who sends a long prompt waits for its first token.
_DECIDED: dict[str, tuple[str, ...]] = {
    "": ("p99_itl_ms", "p90_ttft_scheduled_ms"),
    SHORT: ("p99_itl_ms", "p90_ttft_scheduled_ms"),
    LONG: ("p90_ttft_scheduled_ms",),
}


def _tails(of: str) -> tuple[Figure, ...]:
    """Those of all prompts, or of a class of them."""
    whose = f" of {of} prompts" if of else ""
    return tuple(
        Figure(f"{of}.{part}_{name}_ms", f"{title}{whose}, {part}", f"{part}_{name}_ms", *_TIME, of=of)
        for name, title in (("itl", "ITL"), ("ttft_scheduled", "TTFT"))
        for part in _PERCENTILES
    )


TAILS = {of: _tails(of) for of in ("", *CLASSES)}
THROUGHPUT = FIGURES[0]
OF_REQUESTS = tuple(figure.name for figure in FIGURES if figure.requests)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the repeats say of one figure.

    `change` is B / A - 1, or the difference of two shares. It lies between `low` and `high` with an error of at most
    `error_rate`, and `differs` if that leaves out 0; all verdicts of a comparison together find a difference between
    equal sides in at most 5 % of cases. `found_from` is about the smallest change that would be found in 9 of 10
    comparisons, and with `repeats_for_5_percent` that would be 5 %. None: the repeats do not tell; `untold` says why.
    """

    figure: str
    title: str
    a: float | None  # the median over the repeats
    b: float | None
    points: bool = False
    change: float | None = None
    low: float | None = None
    high: float | None = None
    error_rate: float | None = None
    chance: float | None = None  # of so much or more if the sides are equal
    deviation: float | None = None  # from repeat to repeat, of the logarithm of B / A or of the shares' difference
    differs: bool | None = None
    found_from: float | None = None
    repeats_for_5_percent: int | None = None
    untold: str | None = None
    few_values: int | None = None  # of how few its percentile is in one of the runs, where that is too few


@dataclass(frozen=True, slots=True)
class Repeat:
    """Both sides' documents, and by the name of each figure the logarithm of B / A, or the difference of two shares.

    None: a side has no such figure.
    """

    a: Document
    b: Document
    changes: Mapping[str, float | None]


def read_repeat(a: RunFile, b: RunFile) -> Repeat:
    """Read both runs, in memory for the latencies of A's requests. Raises `ResultError`."""
    (document_a, latencies_a), (document_b, latencies_b) = _read(a), _read(b)
    before = dict(latencies_a)
    logarithms: list[list[float]] = [[] for _ in OF_REQUESTS]
    for key, after in latencies_b:
        for found, first, second in zip(logarithms, before.get(key, ()), after, strict=False):
            if first is not None and second is not None and min(first, second) > 0:
                found.append(math.log(second / first))
    changes = {
        name: statistics.median(found) if found else None for name, found in zip(OF_REQUESTS, logarithms, strict=True)
    }
    for figure in (*FIGURES, *(figure for figures in TAILS.values() for figure in figures)):
        if not figure.requests:
            changes[figure.name] = _change(figure, figure.value(document_a), figure.value(document_b))
    return Repeat(document_a, document_b, changes)


def _read(run: RunFile) -> tuple[Document, Iterator[tuple[Key, tuple[float | None, ...]]]]:
    """A run's document, and what its completed requests have of `OF_REQUESTS`."""
    measured = measure(run)
    document = measured.document()
    summary = document["summary"]
    summary["failed_share"] = summary["failed"] / summary["turns"] if summary["turns"] else None
    window = measured.figures.window

    def requests() -> Iterator[tuple[Key, tuple[float | None, ...]]]:
        for record in run.records():
            if record.outcome is Outcome.COMPLETED and window.part(record) is Part.MEASURED:
                of_it = latencies(record)
                yield record.key, tuple([getattr(of_it, name) for name in OF_REQUESTS])

    return document, requests()


def _change(figure: Figure, before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    if figure.points:
        return float(after - before)
    return math.log(after / before) if before > 0 and after > 0 else None


async def interleaved(
    sides: tuple[Side, Side], repeats: int, folder: Path, measure: Measure
) -> AsyncIterator[tuple[int, RunFile]]:
    """Measure A B, B A, A B, ... into files of the folder; yields which side each run is of."""
    for repeat in range(1, repeats + 1):
        for index in (0, 1) if repeat % 2 else (1, 0):
            yield index, await measure(sides[index], repeat, folder / f"{'ab'[index]}-{repeat}.jsonl")


def tail_figures(repeats: Sequence[Repeat]) -> list[Figure]:
    """TTFT and ITL in percentiles: of each class of prompts where the runs have classes, else of all."""
    classed = any(document.get("classes") for repeat in repeats for document in (repeat.a, repeat.b))
    return [figure for of in (CLASSES if classed else ("",)) for figure in TAILS[of]]


def tail_verdicts(repeats: Sequence[Repeat]) -> list[Verdict]:
    """What the repeats say of tails, and as `verdicts` has it, of throughput. Of tails those that the verdict in words
    is made of are decided on, all together; of the others there are only the changes."""
    figures = tail_figures(repeats)
    decided = {figure for figure in figures if figure.shown in _DECIDED[figure.of]}
    too_few = {figure for figure in decided if few(figure, repeats) is not None}
    throughput = [verdict for verdict in verdicts(repeats) if verdict.figure == THROUGHPUT.name]
    return [*verdicts(repeats, figures, decided, too_few), *throughput]


def few(figure: Figure, repeats: Sequence[Repeat]) -> int | None:
    """Of how few values a percentile is in one of the runs, where that is too few; else None."""
    counts = [figure.values(document) for repeat in repeats for document in (repeat.a, repeat.b)]
    least = min((count for count in counts if count is not None), default=None)
    return least if least is not None and least < figure.least_values else None


def verdicts(
    repeats: Sequence[Repeat],
    among: Sequence[Figure] = FIGURES,
    decided: Collection[Figure] = FIGURES,
    too_few: Collection[Figure] = (),
) -> list[Verdict]:
    """What the repeats say of each figure that a side has; those `decided` on are told with their uncertainty, but for
    percentiles of `too_few` values: how far these are off, repeats do not tell."""
    figures = [figure for figure in among if any(_shown(figure, repeats))]
    means: dict[Figure, Mean] = {}
    for figure in figures:
        if figure not in decided or figure in too_few:
            continue
        values = [repeat.changes[figure.name] for repeat in repeats]
        told = [value for value in values if value is not None]
        if len(told) == len(values) >= LEAST_REPEATS:
            means[figure] = Mean.of(told)
    # Equal to the last digit in every repeat is no test that could fail: it takes nothing from the others.
    tested = [figure for figure, mean in means.items() if mean.value or mean.error]
    decisions = dict(zip(tested, holm([means[figure].chance for figure in tested]), strict=True))
    return [
        _verdict(figure, repeats, means.get(figure), decisions.get(figure), max(1, len(tested)), figure in decided)
        for figure in figures
    ]


def _shown(figure: Figure, repeats: Sequence[Repeat]) -> list[float | None]:
    return [figure.value(side) for repeat in repeats for side in (repeat.a, repeat.b)]


def _verdict(
    figure: Figure, repeats: Sequence[Repeat], mean: Mean | None, decision: Decision | None, tested: int, decided: bool
) -> Verdict:
    """`mean` None: no uncertainty is known; `decision` None: every repeat was exactly equal."""
    back = _same if figure.points else math.expm1
    values = [repeat.changes[figure.name] for repeat in repeats]
    told = [value for value in values if value is not None]
    shown = _shown(figure, repeats)
    verdict = Verdict(
        figure=figure.name,
        title=figure.title,
        a=_median(shown[::2]),
        b=_median(shown[1::2]),
        points=figure.points,
        change=back(statistics.fmean(told)) if told else None,
    )
    if mean is None:
        return (
            replace(verdict, untold=_untold(figure, repeats, values), few_values=few(figure, repeats))
            if decided
            else verdict
        )
    error_rate = ERROR_RATE if decision is None else decision.error_rate
    low, high = mean.interval(error_rate)
    deviation = mean.error * math.sqrt(mean.repeats)
    return replace(
        verdict,
        low=back(low),
        high=back(high),
        error_rate=error_rate,
        chance=mean.chance,
        deviation=deviation,
        differs=decision is not None and decision.differs,
        found_from=back(smallest_found(mean.error, mean.repeats, tested)),
        repeats_for_5_percent=repeats_needed(deviation, FIVE_PERCENT, tested),
    )


def _same(value: float) -> float:
    return value


def _untold(figure: Figure, repeats: Sequence[Repeat], values: Sequence[float | None]) -> str:
    lacking = sum(value is None for value in values)
    if not lacking and len(values) < LEAST_REPEATS:
        return TOO_FEW_REPEATS
    if not lacking:
        return f"a run has {few(figure, repeats)} of the {figure.least_values} values that it takes"
    if lacking == len(values):
        return "a side has none, or it is among its failed requests"
    return f"in {lacking} of {len(values)} repeats a side has none, or it is among its failed requests"


def _median(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return statistics.median(told) if told else None


def typical(documents: Sequence[Document]) -> Document:
    """A side's figures as one document: the median over its repeats of every number, and what else the first has.

    Warnings and notes are those of all, told once where they differ in numbers alone.
    """
    told = {part: _told_once([document.get(part, ()) for document in documents]) for part in ("warnings", "notes")}
    return {**_typical(documents), **{part: lines for part, lines in told.items() if part in documents[0]}}


def _told_once(lines_of_each: Sequence[Sequence[str]]) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for lines in lines_of_each:
        for line in lines:
            kinds.setdefault(_NUMBERS.sub("#", line), []).append(line)
    return [
        first if not others else f"{first} (the like in {len(others)} more of {len(lines_of_each)} repeats)"
        for first, *others in kinds.values()
    ]


def _typical(values: Sequence[Any]) -> Any:
    first = next((value for value in values if value is not None), None)
    if isinstance(first, dict):
        return {name: _typical([value.get(name) for value in values if isinstance(value, dict)]) for name in first}
    if isinstance(first, bool) or not isinstance(first, int | float):
        return first
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    whole = all(isinstance(number, int) for number in numbers)
    return statistics.median_low(numbers) if whole else statistics.median(numbers)


def ratios(a: Any, b: Any) -> Any:
    """b / a for every number that both have, in the same shape; None where a is 0 or one side has no number."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {name: ratios(a[name], b[name]) for name in a if name in b and _compares(a[name], b[name])}
    if a is None or b is None or a == 0:
        return None
    return b / a


def _compares(a: Any, b: Any) -> bool:
    if isinstance(a, dict) or isinstance(b, dict):
        return isinstance(a, dict) and isinstance(b, dict) and bool(a.keys() & b.keys())
    return all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in (a, b))


def comparison(repeats: Sequence[Repeat], conditions: str, only_a: Document | None = None) -> Document:
    """The JSON contract's shape, with `repeats` and `verdicts`. `only_a`: there is no whole repeat, but that run."""
    a = typical([repeat.a for repeat in repeats]) if repeats else only_a
    b = typical([repeat.b for repeat in repeats]) if repeats else None
    return {
        "a": a,
        "b": b,
        "ratio": {} if a is None or b is None else ratios(*({part: side[part] for part in PARTS} for side in (a, b))),
        "conditions": conditions,
        "repeats": [{"a": repeat.a["summary"], "b": repeat.b["summary"]} for repeat in repeats],
        "verdicts": [msgspec.to_builtins(verdict) for verdict in verdicts(repeats)],
        "tails": [msgspec.to_builtins(verdict) for verdict in tail_verdicts(repeats)],
    }
