"""The curves of percentiles agree with the figures, and end where the failures begin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import completed, failed

from loadgen.metrics.slo import parse_slo
from loadgen.metrics.summary import Figures
from loadgen.outcome import RequestRecord
from loadgen.results.charts import percentiles
from loadgen.results.svg import Chart, Line


def charts(*records: RequestRecord, slo: str | None = None) -> dict[str, Chart]:
    figures = Figures(None if slo is None else parse_slo(slo))
    for record in records:
        figures.add(record)
    return {chart.title: chart for chart in percentiles(figures)}


def answered(*first_chunks: float) -> list[RequestRecord]:
    return [completed(index=at, chunks=(1 + first,), ended=100.0) for at, first in enumerate(first_chunks)]


def line(chart: Chart, label: str) -> Line:
    (found,) = (mark for mark in chart.marks if mark.label == label)
    assert isinstance(found, Line)
    return found


def test_the_median_by_hand() -> None:
    ttft = line(charts(*answered(0.1, 0.2, 0.4))["Time to first token"], "TTFT")
    places = dict(ttft.points)
    assert places[0.0] == pytest.approx(100, rel=1e-3)
    assert ttft.points[-1][0] == 1.0  # with three requests nothing is beyond the 90th percentile
    assert ttft.points[-1][1] == pytest.approx(360, rel=1e-3)


def test_failures_cut_the_line() -> None:
    ttft = line(charts(*answered(0.1, 0.2), failed(), failed(turn=2))["Time to first token"], "TTFT")
    assert 0 < ttft.points[-1][0] < 0.2  # a third of the way: beyond lies a failure


def test_limits_are_drawn_where_they_can_be_seen() -> None:
    drawn = charts(*answered(0.1, 0.2), slo="ttft=300ms,e2e=100s")
    assert line(drawn["Time to first token"], "limit of TTFT").points == [(0.0, 300.0), (1.0, 300.0)]
    assert [mark.label for mark in drawn["End to end"].marks] == ["E2E", "E2E, scheduled"]


def test_long_times_are_in_seconds() -> None:
    drawn = charts(*answered(20.0))["Time to first token"]
    assert drawn.y_label == "s"
    assert line(drawn, "TTFT").points[0][1] == pytest.approx(20, rel=1e-3)


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=30))
def test_curves_rise_from_the_least_to_the_greatest(firsts: list[float]) -> None:
    chart = charts(*answered(*firsts))["Time to first token"]
    values = [value for _, value in line(chart, "TTFT").points]
    scale = {"ms": 1000, "s": 1}[chart.y_label]
    assert values == sorted(values)
    assert values[0] == pytest.approx(min(firsts) * scale, rel=1e-3)
    assert values[-1] <= max(firsts) * scale * 1.001
