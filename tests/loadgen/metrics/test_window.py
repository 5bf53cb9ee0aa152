"""Which requests count, against a sorted list of their times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.window import WHOLE_RUN, Part, Span, Window, find_window, parse_span
from loadgen.outcome import Outcome, RequestRecord
from tests.loadgen.metrics.records import record


def sent_at(*moments: float) -> list[RequestRecord]:
    return [record(scheduled=0.0, sent=moment, chunks=(), ended=moment + 1) for moment in moments]


def parts(requests: list[RequestRecord], warmup: Span, cooldown: Span) -> list[Part]:
    window = find_window(requests, warmup, cooldown)
    return [window.part(request) for request in requests]


WARMUP, MEASURED, COOLDOWN = Part.WARMUP, Part.MEASURED, Part.COOLDOWN


def test_seconds_are_from_the_first_and_to_the_last_send() -> None:
    requests = sent_at(7.0, 5.0, 4.0, 9.0, 6.0, 10.0)
    assert parts(requests, Span(seconds=2.0), Span(seconds=1.5)) == [
        MEASURED,
        WARMUP,
        WARMUP,
        COOLDOWN,
        MEASURED,  # sent two seconds after the first: the warm-up is over
        COOLDOWN,
    ]


def test_without_a_span_the_whole_run_counts() -> None:
    assert find_window(sent_at(1.0, 2.0), Span(), Span()) is WHOLE_RUN
    assert find_window([], Span(seconds=1), Span(requests=3)) is WHOLE_RUN  # nothing was sent
    assert find_window(sent_at(1.0, 2.0), Span(), Span(seconds=1)).begin == WHOLE_RUN.begin


@given(st.lists(st.floats(0, 1000), unique=True, min_size=1, max_size=40), st.integers(0, 45), st.integers(0, 45))
def test_requests_are_left_out_by_their_order_of_sending(moments: list[float], first: int, last: int) -> None:
    requests = sent_at(*moments)
    found = parts(requests, Span(requests=first), Span(requests=last))
    assert found.count(WARMUP) == min(first, len(moments))
    counting = sorted(moments)[first : max(0, len(moments) - last)]
    assert sorted(moment for moment, part in zip(moments, found, strict=True) if part is MEASURED) == counting


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 1200), st.integers(1, 1200))
def test_seconds_are_left_out_by_the_moment_of_sending(moments: list[int], first: int, last: int) -> None:
    found = parts(sent_at(*moments), Span(seconds=first), Span(seconds=last))
    begin, end = min(moments) + first, max(moments) - last
    assert found == [WARMUP if moment < begin else COOLDOWN if moment > end else MEASURED for moment in moments]


def test_what_was_never_sent_counts_by_its_schedule() -> None:
    window = Window(5.0, 8.0)
    unsent = {"outcome": Outcome.NOT_SENT, "sent": None, "chunks": (), "ended": None}
    assert window.part(record(scheduled=4.0, **unsent)) is WARMUP
    assert window.part(record(scheduled=9.0, **unsent)) is COOLDOWN
    assert window.part(record(scheduled=None, **unsent)) is MEASURED  # a failure is not hidden


@pytest.mark.parametrize(
    ("text", "span"),
    [("10s", Span(seconds=10)), (" 500ms ", Span(seconds=0.5)), ("50", Span(requests=50)), ("0", Span())],
)
def test_spans_as_people_write_them(text: str, span: Span) -> None:
    assert parse_span(text) == span


@pytest.mark.parametrize("text", ["", "ten", "-5", "1.5", "5 apples", "²"])
def test_what_is_no_span_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time or a number of requests, like 10s or 50"):
        parse_span(text)
