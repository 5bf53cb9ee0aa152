"""The columns of the table of requests: what each is, how it reads, which give way first, and how they sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.protocol import RequestState
from tui import figures
from tui.focus import RequestsFocus
from tui.panels import stays, table
from tui.view import View

Value = str | float | None  # None: not measured
Values = Callable[[View, Sequence[RequestState]], Sequence[Value]]

LEAST_ID, MOST_ID = 8, 36  # cells


@dataclass(frozen=True, slots=True)
class Column(table.Column):
    """`values` are of any requests at once."""

    values: Values
    text: Callable[[Value], str]


def _figure(value: Value) -> str:
    return value if isinstance(value, str) else figures.count(value)


def _seconds(value: Value) -> str:
    return value if isinstance(value, str) else figures.seconds(value)


def _ago(value: Value) -> str:
    return f"{_seconds(value)} ago"


def _rate(value: Value) -> str:
    return value if isinstance(value, str) else stays.rate(value)


def _state(value: Value) -> str:
    return stays.DOINGS[int(value)] if isinstance(value, float | int) else ""


def _states(view: View, states: Sequence[RequestState]) -> list[Value]:
    """As places in the order in which they are sorted."""
    return [stays.DOINGS.index(stays.doing(state)) for state in states]


def _waited(view: View, states: Sequence[RequestState]) -> list[Value]:
    since = stays.waiting_since(view, [state for state in states if state.status == "waiting"])
    return [stays.waited(view, state, since) for state in states]


def _cached(view: View, states: Sequence[RequestState]) -> list[Value]:
    """Who waits has looked nothing up yet."""
    return [None if state.status == "waiting" else state.cached_tokens for state in states]


def shared(view: View, states: Sequence[RequestState]) -> list[int]:
    """Of each request's blocks, those that another one's table holds too."""
    tables = [_array(state.table) for state in states]
    if not tables:
        return []
    lengths = [len(table) for table in tables]
    blocks = np.concatenate(tables)
    counts = np.concatenate(([0], np.cumsum(view.blocks.references[blocks] > 1)))
    ends = np.cumsum([0, *lengths])
    found: list[int] = (counts[ends[1:]] - counts[ends[:-1]]).tolist()
    return found


@lru_cache(maxsize=2048)
def _array(table: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """A block table [blocks]; most do not change from a frame to the next."""
    return np.array(table, np.int32)


# As they stand from left to right.
COLUMNS: tuple[Column, ...] = (
    Column("id", "id", LEAST_ID, 0, lambda view, states: [state.request for state in states], _figure, words=True),
    Column("state", "state", 9, 1, _states, _state, words=True),
    Column("waited", "waited", 8, 4, _waited, _seconds),
    Column("prompt", "prompt", 7, 6, lambda view, states: [state.prompt_tokens for state in states], _figure),
    Column("cached", "cached", 7, 8, _cached, _figure),
    Column("generated", "gener.", 7, 2, lambda view, states: [stays.generated(state) for state in states], _figure),
    Column("max", "of max", 7, 9, lambda view, states: [state.max_tokens for state in states], _figure),
    Column("blocks", "blocks", 7, 5, lambda view, states: [len(state.table) for state in states], _figure),
    Column("shared", "shared", 7, 10, shared, _figure),
    Column("tok/s", "mean tok/s", 11, 3, lambda view, states: [stays.speed(view, state) for state in states], _rate),
    Column("TTFT", "TTFT", 8, 7, lambda view, states: [stays.ttft(state) for state in states], _seconds),
    Column("preemptions", "preempted", 10, 11, lambda view, states: [one.preemptions for one in states], _figure),
    Column("priority", "priority", 9, 12, lambda view, states: [state.priority for state in states], _figure),
    Column("arrived", "arrived", 10, 13, lambda view, states: [view.now - one.arrived for one in states], _ago),
)
BY_NAME = {column.name: column for column in COLUMNS}


def fitting(inner: int) -> tuple[tuple[Column, int], ...]:
    """The columns that `inner` cells have room for, each with its width; a cell is before each.

    What is left over is the id's.
    """
    left = inner - 1 - LEAST_ID
    chosen = {"id"}
    for column in sorted(COLUMNS[1:], key=lambda column: column.place):
        if column.width + 1 > left:
            break
        chosen.add(column.name)
        left -= column.width + 1
    widths = {"id": min(MOST_ID, LEAST_ID + max(0, left))}
    return tuple((column, widths.get(column.name, column.width)) for column in COLUMNS if column.name in chosen)


def matching(view: View, wanted: str) -> list[RequestState]:
    """In the order of arrival, those whose id or state has `wanted` in it; `state:` asks of the state alone."""
    states = list(view.requests.values())
    wanted = wanted.strip().lower()
    if not wanted:
        return states
    if wanted.startswith("state:"):
        state = wanted.removeprefix("state:").strip()
        return [one for one in states if state in stays.doing(one)]
    return [one for one in states if wanted in one.request.lower() or wanted in stays.doing(one)]


def ordered(view: View, focus: RequestsFocus) -> list[RequestState]:
    """Those that match, sorted: equal ones in the order of arrival, and last those whose figure was not measured."""
    states = matching(view, focus.filter)
    column = BY_NAME.get(focus.sort, BY_NAME["arrived"])
    if column.name == "arrived":  # the first to arrive come first: the order that they are in
        return states[::-1] if focus.descending else states
    values = column.values(view, states)
    measured = [(value, state) for value, state in zip(values, states, strict=True) if value is not None]
    measured.sort(key=_first, reverse=focus.descending)
    unmeasured = [state for value, state in zip(values, states, strict=True) if value is None]
    return [*(state for _, state in measured), *unmeasured]


def _first(pair: tuple[str | float, RequestState]) -> Any:
    return pair[0]
