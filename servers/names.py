"""How `servers.dialects` writes a name, and what a page has under it. Pure."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from sys import getsizeof
from typing import NamedTuple

from servers.dialects import DIALECTS, Dialect
from servers.exposition import Samples, counted
from servers.sized_cache import SizedCache, bytes_of
from servers.terms import Engine, Labels

# Labels that tell one engine behind a page from another, as engines and what stands before them write it.
_RANKS = ("engine", "dp_rank", "worker_addr", "server", "instance", "pod")
_MODELS = ("model_name", "model", "name")

_WRITTEN = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(\w+)=(\w+)\})?(?:#(\w+))?")
_SIGNS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "*": operator.mul,
    "/": lambda part, whole: part / whole if whole else math.nan,
}


class Name(NamedTuple):
    """`where`: the label and its value that a series must have; `held`: the label that holds the number."""

    name: str
    where: tuple[str, str] | None
    held: str


class Expression(NamedTuple):
    """Names joined by signs, from left to right."""

    first: Name
    rest: tuple[tuple[str, Name], ...]

    @property
    def names(self) -> tuple[Name, ...]:
        return (self.first, *(name for _, name in self.rest))


@cache
def parse(text: str) -> Expression:
    """Raises ValueError for what is not written as `servers.dialects` says."""
    words = text.split(" ")
    if unknown := set(words[1::2]) - _SIGNS.keys():
        raise ValueError(f"not a sign between names of metrics, in {text!r}: {', '.join(sorted(unknown))}")
    names = []
    for word in words[::2]:
        match = _WRITTEN.fullmatch(word)
        if match is None:
            raise ValueError(f"not a name of a metric: {word!r}")
        names.append(Name(match[1], (match[2], match[3]) if match[2] else None, match[4] or ""))
    return Expression(names[0], tuple(zip(words[1::2], names[1:], strict=True)))


def spellings(dialect: Dialect) -> dict[str, str]:
    """Every name that a dialect reads, as pages may spell it, with the dialect's own spelling."""
    names = {
        name.name
        for alternatives in (*dialect.counters.values(), *dialect.gauges.values(), *dialect.facts.values())
        for text in alternatives
        for name in parse(text).names
    }
    for alternatives in dialect.histograms.values():
        names |= {f"{name}_{part}" for name in alternatives for part in ("bucket", "sum", "count")}
    mark = dialect.marks[0]
    others = {
        spelling + name.removeprefix(mark): name
        for spelling in dialect.spellings
        for name in names
        if name.startswith(mark)
    }
    return {name: name for name in names} | others


SPELLINGS: Mapping[str, Mapping[str, str]] = {dialect.kind: spellings(dialect) for dialect in DIALECTS}


def engine_of(labels: Labels) -> Engine:
    return _engines[labels]


def _find_engine(labels: Labels) -> Engine:
    known = dict(labels)
    model = next((known[label] for label in _MODELS if known.get(label)), "")
    return Engine(model, "/".join(known[label] for label in _RANKS if known.get(label)))


_engines = SizedCache(_find_engine, lambda labels, engine: bytes_of(labels) + sum(map(getsizeof, engine)))


def told(name: Name, samples: Samples) -> dict[Labels, float]:
    """The series under a name, and their numbers; NaN where there is none in them."""
    series = samples.get(name.name, {})
    if any(label == "priority" for labels in series for label, _ in labels):
        # SGLang tells of each priority, and of all together with an empty one.
        series = {labels: value for labels, value in series.items() if not dict(labels).get("priority")} or series
    if name.where is not None:
        series = {labels: value for labels, value in series.items() if name.where in labels}
    return {labels: _held(labels, name.held) for labels in series} if name.held else dict(series)


def texts(expression: Expression, samples: Samples) -> set[str]:
    """What a page tells under a name as text."""
    name = expression.first
    series = told(name._replace(held=""), samples)
    if name.held:
        return {text for labels in series if (text := dict(labels).get(name.held, "")) not in ("", "None")}
    return {f"{value:.15g}" for value in series.values() if math.isfinite(value)}


def levels(expression: Expression, samples: Samples, share: bool = False) -> dict[Engine, float]:
    """The number of each engine that every part of an expression tells of; none is NaN.

    Counts of one engine in several series add up. A `share` that is told as one, and what a count is multiplied by,
    are known only where all of its series tell the same.
    """
    values = _by_engine(told(expression.first, samples), adds=not share or bool(expression.rest))
    for sign, name in expression.rest:
        others = _by_engine(told(name, samples), adds=sign != "*")
        others = _joined(others, {*values, *others})
        values = {engine: _SIGNS[sign](value, others[engine]) for engine, value in values.items() if engine in others}
    return {engine: value for engine, value in values.items() if math.isfinite(value)}


def joined(gauges: Mapping[str, Mapping[Engine, float]]) -> dict[str, dict[Engine, float]]:
    """With what is told of ranks alone, without their models, put to the engines that it must be of; left out where
    there are several."""
    engines = {engine for values in gauges.values() for engine in values}
    found = {term: _joined(values, engines) for term, values in gauges.items()}
    return {term: values for term, values in found.items() if values}


def _joined(values: Mapping[Engine, float], engines: Iterable[Engine]) -> dict[Engine, float]:
    named = [engine for engine in set(engines) if engine.model]
    if not named or any(engine.model for engine in values):
        return dict(values)
    found: dict[Engine, float] = {}
    for engine, value in values.items():
        whose = [other for other in named if other.rank == engine.rank]
        if len(named) == len(values) == 1:
            whose = named
        if len(whose) == 1:
            found[whose[0]] = value
    return found


def _by_engine(series: Mapping[Labels, float], adds: bool) -> dict[Engine, float]:
    processes: dict[Labels, list[float]] = {}
    for labels, value in series.items():
        processes.setdefault(_processless[labels], []).append(value)
    values: dict[Engine, list[float]] = {}
    for labels, told_values in processes.items():
        values.setdefault(engine_of(labels), []).append(_one_of(told_values))
    return {engine: sum(parts) if adds else _same(parts) for engine, parts in values.items()}


def _without_process(labels: Labels) -> Labels:
    return frozenset(item for item in labels if item[0] != "pid")


_processless = SizedCache(_without_process, lambda labels, rest: 2 * bytes_of(labels))


def _one_of(values: list[float]) -> float:
    """The gauge that several processes of a server tell. An engine tells one of them at each step, which is right until
    the next; the others lag behind, or are still 0. Where several differ, nobody knows which is right: NaN."""
    rest = {value for value in values if value != 0}
    return rest.pop() if len(rest) == 1 else (math.nan if rest else 0.0)


def _same(values: list[float]) -> float:
    return values[0] if len(set(values)) == 1 else math.nan


def _held(labels: Labels, label: str) -> float:
    try:
        return counted(float(dict(labels)[label]))
    except (KeyError, ValueError):  # "None" before the memory was measured
        return math.nan


def first_told(alternatives: Iterable[str], samples: Samples) -> Expression | None:
    """The first alternative all of whose names a page has."""
    for text in alternatives:
        expression = parse(text)
        if all(told(name, samples) for name in expression.names):
            return expression
    return None
