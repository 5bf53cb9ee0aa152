"""What happened when is counted once each, whatever the order, in stretches of the run's time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import completed, failed

from loadgen.outcome import Outcome, RequestRecord
from loadgen.results.series import SAMPLE, STRETCHES, Series


def series(seconds: float, *records: RequestRecord) -> Series:
    counted = Series(seconds)
    for record in records:
        counted.add(record)
    return counted


def test_a_request_by_hand() -> None:
    """6 tokens in 3 chunks at 1.55, 1.75 and 1.95 s: 2 each, in a run of 12 s with stretches of 0.1 s."""
    run = series(12.0, completed(sent=1.05, scheduled=1.0, chunks=(1.55, 1.75, 1.95), ended=2.05, tokens=6))
    assert run.width == pytest.approx(0.1)
    at = {number: count for number, count in enumerate(run.tokens) if count}
    assert at == {15: 2.0, 17: 2.0, 19: 2.0}
    assert [number for number, count in enumerate(run.sent) if count] == [10]
    assert [number for number, count in enumerate(run.completed) if count] == [20]
    assert [count for at, count in run.in_flight if 1.15 < at < 1.95] == [1] * 8
    assert tuple(run.points[0]) == pytest.approx((1.05, 0.5, 0.55))


def test_rates() -> None:
    run = Series(12.0)
    rates = run.per_second([1.0] * 120, together=50)
    assert rates == [(2.5, 10.0), (7.5, 10.0), (11.0, 10.0)]  # the last of what is left


def test_a_failure_counts_when_it_was_over_also_if_it_was_never_sent() -> None:
    not_sent = msgspec.structs.replace(failed(), outcome=Outcome.NOT_SENT, sent=None, ended=None, scheduled=3.0)
    run = series(4.0, failed(sent=2.0), not_sent, msgspec.structs.replace(not_sent, scheduled=None))
    assert sum(run.failed) == 2
    assert sum(run.sent) == 1
    assert run.in_flight[-1][1] == 0


def test_an_answer_in_one_piece_has_no_ttft() -> None:
    assert series(4.0, completed(streamed=False)).measured == 0


times = st.floats(0, 50)


@given(st.lists(st.tuples(times, times, st.lists(times, max_size=5), st.integers(0, 9)), max_size=20))
def test_nothing_is_lost_or_counted_twice(requests: list[tuple[float, float, list[float], int]]) -> None:
    records = [
        completed(sent=sent, chunks=tuple(sorted(sent + chunk for chunk in chunks)), ended=sent + last, tokens=tokens)
        for sent, last, chunks, tokens in requests
    ]
    run = series(60.0, *records)  # of 100 s: what is beyond counts in the last stretch
    assert sum(run.sent) == sum(run.completed) == len(records)
    assert sum(run.tokens) == pytest.approx(sum(record.output_tokens for record in records if record.chunks))
    assert run.in_flight[-1][1] == 0
    assert len(run.points) == run.measured == sum(bool(record.chunks) for record in records)


def test_memory_is_that_of_a_sample() -> None:
    run = series(10.0, *(completed(sent=number / 1000) for number in range(SAMPLE * 3)))
    assert len(run.points) == SAMPLE
    assert run.measured == SAMPLE * 3
    late = sum(point.sent > SAMPLE / 1000 for point in run.points) / SAMPLE
    assert late == pytest.approx(2 / 3, abs=0.05)  # each request had the same chance
    assert len(run.sent) == STRETCHES
    assert max(run.slowest) == pytest.approx(0.5)


def test_a_run_without_time() -> None:
    assert Series(0.0).per_second([1.0]) == [(0.025, 20.0)]
    with pytest.raises(ValueError, match="not negative"):
        Series(-1.0)
