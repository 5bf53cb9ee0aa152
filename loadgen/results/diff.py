"""Two runs' figures beside each other, and conditions on them that a CI job fails by. Pure."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.metrics.latency import ALSO, METRICS, PERCENTILES
from loadgen.results.document import Document
from loadgen.results.tables import Table, text

STATISTICS = ("mean", "std", "min", "max", *(f"p{percent}" for percent in PERCENTILES), "count")
OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
MILLISECONDS = {"ms": 1.0, "s": 1000.0}
EXAMPLES = "'ttft.p99 > +10%', 'ttft.p99 > 500ms', 'output_throughput < -5%', 'failed > 0'"
FIRST = frozenset(
    {
        *("completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "hit_rate"),
        *("request_throughput", "output_throughput", "goodput", "slo_attainment"),
        *(f"{name}.{statistic}" for name in ("ttft", "tpot", "itl", "e2el") for statistic in ("mean", "p50", "p99")),
        *("ttft_scheduled.p99", "e2el_scheduled.p99", "send_lag.p99"),
    }
)  # of a table that is read
_CONDITION = re.compile(
    r"\s*(?P<name>[\w.]+)\s*(?P<operator>>=|<=|>|<)\s*(?P<sign>[+-]?)(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>%|ms|s|)\s*"
)


class ConditionError(ValueError):
    """A condition that cannot be read, or not be told; the message says what is allowed or lacking."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of both runs; None: a run does not have it."""

    a: float | None
    b: float | None

    @property
    def change(self) -> float | None:
        """From A to B."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def relative(self) -> float | None:
        """The change as a share of A: infinite from 0 to anything else."""
        if self.a is None or self.b is None:
            return None
        if self.a == 0:
            return math.copysign(math.inf, self.b) if self.b else 0.0
        return (self.b - self.a) / abs(self.a)


@dataclass(frozen=True, slots=True)
class Condition:
    """What B must not be: its figure, or the change from A to B if the number has a sign or a percent sign.

    `number` is in the figure's own unit (latencies: milliseconds), or a share if `relative`.
    """

    text: str
    name: str
    operator: str
    number: float
    relative: bool
    change: bool

    def holds(self, pairs: Mapping[str, Pair]) -> bool:
        """Whether B is so. Raises `ConditionError` for a figure that a run lacks: it can be no pass."""
        pair = self.pair(pairs)
        value = pair.relative if self.relative else pair.change if self.change else pair.b
        if value is None:
            lacking = [side for side, figure in (("A", pair.a), ("B", pair.b)) if figure is None]
            raise ConditionError(f"{self.text!r}: {' and '.join(lacking)} has no {self.name}, so it cannot be told")
        return bool(OPERATORS[self.operator](value, self.number))

    def pair(self, pairs: Mapping[str, Pair]) -> Pair:
        """The figure that it is about. Raises `ConditionError` if no run has it."""
        pair = pairs.get(self.name)
        if pair is None:
            raise ConditionError(f"{self.text!r}: neither run has {self.name}; both have {', '.join(_both(pairs))}")
        return pair

    def seen(self, pairs: Mapping[str, Pair]) -> str:
        """What it is judged by, in words. Raises as `pair`."""
        pair = self.pair(pairs)
        b = text(pair.b, self.name)
        return f"{text(pair.a, self.name)} to {b}, {_percent(pair.relative)}" if self.change else b


def _both(pairs: Mapping[str, Pair]) -> list[str]:
    return [name for name, pair in pairs.items() if pair.change is not None]


def parse_condition(condition: str) -> Condition:
    """Read one as `EXAMPLES` has them. Raises `ConditionError` that says what is allowed."""
    found = _CONDITION.fullmatch(condition)
    if found is None:
        raise ConditionError(
            f"expected FIGURE, one of {' '.join(OPERATORS)}, and a number, like {EXAMPLES}, got {condition!r}"
        )
    latency, dot, statistic = found["name"].partition(".")
    unit = found["unit"]
    name = found["name"]
    if dot and latency != "engine":
        latency = ALSO.get(latency, latency)
        if latency not in METRICS:
            allowed = ", ".join((*METRICS, *ALSO))
            raise ConditionError(f"{condition!r}: {latency!r} is no latency; allowed are {allowed}, and engine.FIGURE")
        statistic = "p50" if statistic == "median" else statistic
        if statistic not in STATISTICS:
            raise ConditionError(
                f"{condition!r}: {statistic!r} is no statistic; allowed are {', '.join((*STATISTICS, 'median'))}"
            )
        name = f"{latency}.{statistic}"
    of_time = bool(dot) and latency != "engine" and statistic != "count"
    if unit in MILLISECONDS and not of_time:
        raise ConditionError(f"{condition!r}: {name} is no latency: its number has no unit, or %")
    if of_time and not unit:
        raise ConditionError(f"{condition!r}: {name} is a time: give its unit, ms or s, or % for a change")
    number = float(f"{found['sign']}{found['number']}")
    relative = unit == "%"
    scale = 0.01 if relative else MILLISECONDS.get(unit, 1.0)
    return Condition(condition, name, found["operator"], number * scale, relative, relative or bool(found["sign"]))


def pairs(a: Document, b: Document) -> dict[str, Pair]:
    """Every figure of either run, under the names that conditions have."""
    of_a, of_b = dict(_figures(a)), dict(_figures(b))
    return {name: Pair(of_a.get(name), of_b.get(name)) for name in of_a | of_b}


def _figures(document: Document) -> Iterator[tuple[str, float]]:
    latencies = {f"{statistic}_{name}{'' if statistic == 'count' else '_ms'}": f"{name}.{statistic}"
                 for name in METRICS for statistic in STATISTICS}  # fmt: skip
    for name, value in document["summary"].items():
        if _is_number(value) and not name.startswith("median_"):  # which is the p50
            yield latencies.get(name, name), value
    for name, value in (document["engine"] or {}).items():
        if _is_number(value):
            yield f"engine.{name}", value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def diff_table(pairs: Mapping[str, Pair], names: tuple[str, str], also: Collection[str] | None = ()) -> Table:
    """Both figures, the change and its share: of what matters most and of `also`, or with None of all."""
    shown = pairs.keys() if also is None else [name for name in pairs if name in FIRST or name in also]
    rows = tuple(
        (name, text(pair.a, name), text(pair.b, name), _signed(pair.change, name), _percent(pair.relative))
        for name, pair in ((name, pairs[name]) for name in shown)
    )
    rest = len(pairs) - len(rows)
    caption = (
        "Latencies in milliseconds. One run of each: for what may be chance, see `loadgen compare`.",
        *([f"{rest} more with --all."] if rest else []),
    )
    return Table("Difference", rows, ("", *names, "change", "relative"), caption)


def _signed(value: float | None, name: str) -> str:
    if value is None:
        return "-"
    figure = text(value, name)
    shown = f"{figure[:-1]} points" if figure.endswith("%") else figure  # the change of a share is no share of it
    return f"+{shown}" if value > 0 else shown


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    if share == 0:
        return "same"
    return f"{share:+.1%}" if math.isfinite(share) else "from 0"


def diff_document(pairs: Mapping[str, Pair], conditions: Mapping[Condition, bool]) -> dict[str, Any]:
    """For other programs; a relative change from 0 is null."""
    return {
        "figures": {
            name: {"a": pair.a, "b": pair.b, "change": pair.change, "relative": _finite(pair.relative)}
            for name, pair in pairs.items()
        },
        "conditions": [
            {"condition": condition.text, "figure": condition.name, "holds": holds}
            for condition, holds in conditions.items()
        ],
        "failed": any(conditions.values()),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
