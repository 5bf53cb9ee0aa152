"""The columns of a pool's table: what each is of a worker and of the whole pool, which give way, and how they sort."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.cluster.protocol import WorkerPhase, WorkerState
from tui import figures
from tui.cluster.view import ClusterView, cached_share, held_share, hit_rate, tells
from tui.focus import ClusterFocus
from tui.look import Glyphs
from tui.panels import table
from tui.panels.line import Line, clean

Value = str | float | None  # None: not told
Of = Callable[[ClusterView, WorkerState], Value]

LEAST_NAME, MOST_NAME = 8, 20  # cells
LEAST_BAR, MOST_BAR = 8, 28
PHASES: tuple[WorkerPhase, ...] = ("dead", "starting", "draining", "ready")  # as they sort: the bad ones first
ROLES: dict[WorkerPhase, str] = {"ready": "good", "draining": "warn", "starting": "warn", "dead": "bad"}
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Column(table.Column):
    """`value` is of a worker, `total` of the workers of a pool that tell now."""

    value: Of
    total: Callable[[ClusterView, Sequence[WorkerState]], Value]
    text: Callable[[Value], str]

    def fitted(self, value: Value, width: int) -> str:
        """In so many cells: a number that has no room is rounded, for one that is cut is another number."""
        text, number = self.text(value), _number(value)
        return text if len(text) <= width or number is None else figures.brief(number)


def glyph(phase: WorkerPhase, glyphs: Glyphs) -> str:
    return {"ready": glyphs.live, "draining": glyphs.released, "starting": glyphs.down, "dead": glyphs.aborted}[phase]


def _count(value: Value) -> str:
    number = _number(value)
    return figures.count(number) if number is None or number < 10_000 else figures.brief(number)


def _rate(value: Value) -> str:
    if isinstance(value, str):
        return value
    number = _number(value)
    return f"{number:.1f}" if number is not None and 0 < number < 9.95 else _count(number)


def _percent(value: Value) -> str:
    return figures.percent(_number(value))


def _word(value: Value) -> str:
    return str(value) if value else figures.NOT_MEASURED


def _number(value: Value) -> float | None:
    return None if value is None or isinstance(value, str) else value


def _nothing(view: ClusterView, workers: Sequence[WorkerState]) -> Value:
    return ""


def _told(of: Callable[[WorkerState], float]) -> tuple[Of, Callable[[ClusterView, Sequence[WorkerState]], Value]]:
    """A count, and its sum."""
    return (
        lambda view, worker: of(worker) if tells(worker) else None,
        lambda view, workers: sum(map(of, workers)) if workers else None,
    )


def _paced(counter: str) -> tuple[Of, Callable[[ClusterView, Sequence[WorkerState]], Value]]:
    """A counter's growth a second, and the sum: at least so much, where one's is not known yet."""

    def total(view: ClusterView, workers: Sequence[WorkerState]) -> Value:
        rates = [rate for worker in workers if (rate := view.rate(worker, counter)) is not None]
        if not rates:
            return None
        return sum(rates) if len(rates) == len(workers) else f"{_rate(sum(rates))}+"

    return lambda view, worker: view.rate(worker, counter), total


def _shared(
    part: Callable[[WorkerState], float], whole: Callable[[WorkerState], float]
) -> Callable[[ClusterView, Sequence[WorkerState]], Value]:
    """Of all together, not the mean of shares."""
    return lambda view, workers: figures.ratio(sum(map(part, workers)), sum(map(whole, workers)))


def blocks(worker: WorkerState) -> int:
    return worker.engine.num_blocks if worker.engine is not None else 0


# As they stand from left to right.
NAME = Column("name", "name", LEAST_NAME, 0, lambda view, worker: clean(worker.name), _nothing, _word, words=True)
BAR = Column("bar", "KV", LEAST_BAR, 1, lambda view, worker: held_share(worker), _nothing, _percent,
             words=True)  # fmt: skip
COLUMNS: tuple[Column, ...] = (
    NAME,
    Column("state", "state", 8, 11, lambda view, worker: worker.phase, _nothing, _word, words=True),
    BAR,
    Column("held", "held", 5, 2, lambda view, worker: held_share(worker),
           _shared(lambda worker: worker.held_blocks, blocks), _percent),
    Column("cached", "cached", 6, 12, lambda view, worker: cached_share(worker),
           _shared(lambda worker: worker.cached_blocks, blocks), _percent),
    Column("running", "run", 4, 3, *_told(lambda worker: worker.running), _count),
    Column("waiting", "wait", 4, 4, *_told(lambda worker: worker.waiting), _count),
    Column("moving", "move", 4, 9, *_told(lambda worker: worker.sending + worker.receiving), _count),
    Column("prefill", "in/s", 6, 6, *_paced("prefill_tokens"), _rate),
    Column("decode", "out/s", 6, 7, *_paced("decode_tokens"), _rate),
    Column("hit rate", "hits", 5, 8, lambda view, worker: hit_rate(worker),
           _shared(lambda worker: worker.found_tokens, lambda worker: worker.looked_up_tokens), _percent),
    Column("load", "load", 6, 5, *_told(lambda worker: worker.load), _count),
    Column("routed", "routed", 6, 13, lambda view, worker: worker.routed,
           lambda view, workers: sum(worker.routed for worker in workers) if workers else None, _count),
    Column("restarts", "died", 4, 10, lambda view, worker: worker.restarts, _nothing, _count),
    Column("node", "node", 12, 14, lambda view, worker: clean(worker.node), _nothing, _word, words=True),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS if column is not BAR}
SORTS = tuple(BY_NAME)


def fitting(inner: int, longest: int) -> tuple[tuple[Column, int], ...]:
    """The columns that `inner` cells have room for, each with its width; three cells are before them, one between."""
    least = max(LEAST_NAME, min(longest, MOST_NAME, inner // 3))
    left, chosen = inner - 4 - least, {NAME.name}
    for column in sorted(COLUMNS[1:], key=lambda column: column.place):
        if column.width + 1 > left:
            break
        left -= column.width + 1
        chosen.add(column.name)
    bar = min(MOST_BAR, LEAST_BAR + left)
    widths = {NAME.name: least, BAR.name: bar}
    return tuple((column, widths.get(column.name, column.width)) for column in COLUMNS if column.name in chosen)


def bar(worker: WorkerState, width: int, glyphs: Glyphs) -> Line:
    """The pool: what is held, what is cached, what is free. Whatever there is has a cell at least."""
    whole = blocks(worker)
    if not tells(worker) or not whole:
        return [(f"{glyphs.dash:<{width}}", "dim")]
    held = _cells(worker.held_blocks, whole, width)
    cached = min(width - held, _cells(worker.cached_blocks, whole, width))
    return [
        (glyphs.prefill * held, "speed"),
        (glyphs.cached * cached, "cached"),
        (glyphs.free * (width - held - cached), "free"),
    ]


def _cells(part: int, whole: int, width: int) -> int:
    return min(width, max(1 if part else 0, round(part / whole * width)))


def matching(workers: Sequence[WorkerState], wanted: str) -> list[WorkerState]:
    """Those with `wanted` in their name, phase, node, reason or model."""
    wanted = wanted.strip().lower()
    if not wanted:
        return list(workers)
    return [worker for worker in workers if any(wanted in text.lower() for text in _texts(worker))]


def _texts(worker: WorkerState) -> tuple[str, ...]:
    model = worker.engine.model if worker.engine is not None else ""
    return worker.name, worker.phase, worker.node, worker.reason, model


def sorted_by(focus: ClusterFocus) -> str:
    return focus.sort if focus.sort in BY_NAME else NAME.name


def ordered(view: ClusterView, workers: Sequence[WorkerState], focus: ClusterFocus) -> list[WorkerState]:
    """Those that match, sorted: equal ones by their names, and last those that do not tell that figure now."""
    found = sorted(matching(workers, focus.filter), key=_natural)
    name = sorted_by(focus)
    if name == NAME.name:
        return found[::-1] if focus.descending else found
    if name == "state":
        return sorted(found, key=lambda worker: PHASES.index(worker.phase), reverse=focus.descending)
    column = BY_NAME[name]
    values = [(column.value(view, worker), worker) for worker in found]
    told = [pair for pair in values if pair[0] is not None]
    told.sort(key=lambda pair: pair[0], reverse=focus.descending)  # type: ignore[arg-type,return-value]
    return [*(worker for _, worker in told), *(worker for value, worker in values if value is None)]


def _natural(worker: WorkerState) -> list[str | int]:
    """By name, numbers in it by their size."""
    return [int(part) if part.isascii() and part.isdigit() else part for part in _DIGITS.split(worker.name)]
