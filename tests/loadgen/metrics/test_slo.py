"""Limits are read or refused in words, and a request keeps to them or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.latency import latencies
from loadgen.metrics.slo import LIMITED, Slo, overall, parse_slo
from loadgen.outcome import Outcome, RequestRecord
from tests.loadgen.metrics.records import record, records


def verdicts(text: str, request: RequestRecord) -> tuple[bool | None, ...]:
    return parse_slo(text).verdicts(request, latencies(request))


def test_limits_in_any_order_are_the_same() -> None:
    assert parse_slo("tpot=50ms, ttft=0.5s,e2e=1m") == Slo((("ttft", 500.0), ("tpot", 50.0), ("e2el", 60_000.0)))
    assert parse_slo("e2el=1s") == parse_slo("e2e=1000ms")
    assert str(parse_slo("e2e_scheduled=1.5s,itl=20ms")) == "itl=20ms,e2el_scheduled=1500ms"


@given(st.dictionaries(st.sampled_from(LIMITED), st.integers(1, 10**6), min_size=1))
def test_written_and_read_again(limits: dict[str, int]) -> None:
    text = ",".join(f"{name}={limit}ms" for name, limit in limits.items())
    assert dict(parse_slo(text).limits) == pytest.approx(limits)
    assert parse_slo(str(parse_slo(text))) == parse_slo(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected limits such as ttft=500ms"),
        ("ttft", "got 'ttft' in 'ttft'"),
        ("ttft=1s,", "got '' in 'ttft=1s,'"),
        ("latency=1s", "'latency' is no latency with a limit; allowed are ttft, tpot, itl, e2el"),
        ("send_lag=1s", "'send_lag' is no latency with a limit"),
        ("ttft=500", "ttft: expected a number with its unit"),
        ("ttft=-1s", "ttft: expected a number with its unit"),
        ("ttft=0ms", "ttft: expected a time above 0, got '0ms'"),
        ("e2e=1s,e2el=2s", "e2el has two limits"),
    ],
)
def test_what_does_not_parse_is_told(text: str, words: str) -> None:
    with pytest.raises(ValueError) as told:  # noqa: PT011
        parse_slo(text)
    assert words in str(told.value)


def test_a_limit_is_kept_up_to_itself() -> None:
    assert verdicts("ttft=500ms,tpot=500ms,itl=750ms,e2e=1500ms", record()) == (True, True, True, True)
    assert verdicts("ttft=499ms,tpot=499ms,itl=749ms,e2e=1499ms", record()) == (False, False, False, False)
    assert verdicts("ttft_scheduled=1s,e2e_scheduled=1999ms", record()) == (True, False)


def test_a_failure_missed_every_limit() -> None:
    assert verdicts("ttft=1m,tpot=1m", record(outcome=Outcome.CUT)) == (False, False)
    assert verdicts("ttft=1m", record(outcome=Outcome.NOT_SENT, sent=None, chunks=(), ended=None)) == (False,)


def test_an_answer_without_content_is_not_a_fast_one() -> None:
    empty = record(chunks=(), output_tokens=0)
    assert verdicts("ttft=1m,tpot=1m,itl=1m,e2e=1m", empty) == (False, True, True, False)


def test_one_token_keeps_to_limits_of_the_time_between() -> None:
    assert verdicts("tpot=1ms,itl=1ms", record(output_tokens=1, chunks=(11.0,))) == (True, True)


def test_an_answer_in_one_piece_cannot_be_told_by_limits_of_a_stream() -> None:
    whole = record(streamed=False, chunks=(12.0,))
    assert verdicts("ttft=1m,tpot=1m,itl=1m,e2e=1m", whole) == (None, None, None, True)
    assert verdicts("ttft=1m,e2e=1ms", whole) == (None, False)


def test_one_that_was_interrupted_missed_what_it_is_late_for() -> None:
    silent = record(outcome=Outcome.INTERRUPTED, chunks=(), ended=12.0)
    assert verdicts("ttft=1s,tpot=1ms,e2e=1s", silent) == (False, None, False)
    assert verdicts("ttft=2s,e2e=2s,ttft_scheduled=1s", silent) == (None, None, False)
    flying = record(outcome=Outcome.INTERRUPTED)
    assert verdicts("ttft=499ms,itl=749ms", flying) == (False, False)
    assert verdicts("ttft=500ms,itl=750ms", flying) == (None, None)


@pytest.mark.parametrize(
    ("each", "together"),
    [((True, True), True), ((True, None), None), ((None, False), False), ((True, False), False), ((None,), None)],
)
def test_all_limits_together(each: tuple[bool | None, ...], together: bool | None) -> None:
    assert overall(each) is together


@given(records(), st.integers(1, 5000), st.integers(0, 5000))
def test_a_wider_limit_is_never_harder(request: RequestRecord, limit: int, more: int) -> None:
    text = ",".join(f"{name}={{0}}ms" for name in LIMITED)
    for narrow, wide in zip(
        verdicts(text.format(limit), request), verdicts(text.format(limit + more), request), strict=True
    ):
        assert narrow is False or wide is narrow


def test_no_limits_are_no_slo() -> None:
    with pytest.raises(ValueError, match="got none"):
        Slo(())
