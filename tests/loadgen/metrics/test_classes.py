"""Short prompts and long ones are told apart, and none that nobody knows the length of."""

from __future__ import annotations

import pytest

from loadgen.metrics.classes import PromptClasses
from loadgen.metrics.latency import latencies
from loadgen.metrics.summary import Figures
from loadgen.metrics.window import Window
from loadgen.outcome import Outcome, RequestRecord
from tests.loadgen.metrics.records import record


def counted(*records: RequestRecord, split: int = 100) -> PromptClasses:
    classes = PromptClasses(split)
    for one in records:
        classes.add(one, latencies(one))
    return classes


def test_by_the_servers_count_else_the_traces() -> None:
    failed = record(outcome=Outcome.CUT, input_tokens=None, asked_input=3000, chunks=())
    classes = counted(record(input_tokens=100), record(input_tokens=101, asked_input=5), failed)
    short, long = (classes.figures()["of"][name] for name in ("short", "long"))  # type: ignore[index]
    assert (short["turns"], short["completed"], short["failed"]) == (1, 1, 0)
    assert (long["turns"], long["completed"], long["failed"]) == (2, 1, 1)
    assert short["p99_itl_ms"] == pytest.approx(745)
    assert long["p99_ttft_ms"] is None  # among those that failed
    assert long["p99_itl_ms"] == pytest.approx(745)


def test_a_length_that_nobody_told_is_in_neither() -> None:
    classes = counted(record(input_tokens=None, asked_input=None))
    assert classes.untold == 1
    assert [one.turns for one in classes.of.values()] == [0, 0]


def test_parts_merge_where_they_are_split_alike() -> None:
    classes = counted(record(input_tokens=10))
    classes.merge(counted(record(input_tokens=10), record(input_tokens=500), record(input_tokens=None)))
    assert ([one.turns for one in classes.of.values()], classes.untold) == ([2, 1], 1)
    with pytest.raises(ValueError, match="split at 100 and at 200"):
        classes.merge(counted(split=200))


def test_what_a_window_leaves_out_is_in_no_class() -> None:
    figures = Figures(window=Window(10.0, 20.0), split=100)
    for early_or_late in (9.0, 21.0):
        figures.add(record(input_tokens=10, sent=early_or_late))
    figures.add(record(input_tokens=500, sent=20.0))
    assert figures.classes is not None
    assert [one.turns for one in figures.classes.of.values()] == [0, 1]


def test_the_classes_of_two_parts_are_merged() -> None:
    figures = Figures(split=100)
    figures.add(record(input_tokens=10))
    other = Figures(split=100)
    other.add(record(input_tokens=500))
    figures.merge(other)
    assert figures.classes is not None
    assert [one.turns for one in figures.classes.of.values()] == [1, 1]
    assert Figures().classes is None
