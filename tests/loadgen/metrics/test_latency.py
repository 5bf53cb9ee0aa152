"""One request's latencies by hand; what is undefined is None, never 0."""

from __future__ import annotations

import pytest

from loadgen.metrics.latency import METRICS, Distributions, Latencies, latencies
from loadgen.outcome import Outcome
from tests.loadgen.metrics.records import record


def test_by_hand() -> None:
    assert latencies(record()) == Latencies(
        ttft=500.0,
        tpot=500.0,
        itl=(250.0, 750.0),  # the wait for the first is not among them
        e2el=1500.0,  # the last chunk, not the end of the response
        ttft_scheduled=1000.0,
        e2el_scheduled=2000.0,
        send_lag=500.0,
    )
    assert Latencies.__struct_fields__ == METRICS


def test_one_token_has_no_tpot() -> None:
    assert latencies(record(output_tokens=1, chunks=(11.0,))).tpot is None


def test_several_tokens_in_one_chunk_have_a_tpot_of_no_time_and_no_gap() -> None:
    measured = latencies(record(output_tokens=8, chunks=(11.0,)))
    assert (measured.tpot, measured.itl) == (0.0, ())


@pytest.mark.parametrize("outcome", [Outcome.CUT, Outcome.TIMEOUT, Outcome.INTERRUPTED])
def test_an_answer_that_is_not_whole_has_no_e2e(outcome: Outcome) -> None:
    measured = latencies(record(outcome=outcome))
    assert (measured.ttft, measured.itl, measured.e2el, measured.e2el_scheduled, measured.tpot) == (
        500.0,
        (250.0, 750.0),
        None,
        None,
        None,
    )


def test_an_answer_in_one_piece_has_an_e2e_alone() -> None:
    assert latencies(record(streamed=False, chunks=(12.0,))) == Latencies(
        e2el=1500.0, e2el_scheduled=2000.0, send_lag=500.0
    )


def test_what_was_never_sent_has_none() -> None:
    assert latencies(record(outcome=Outcome.NOT_SENT, sent=None, chunks=(), ended=None)) == Latencies()


def test_a_failure_is_infinitely_slow_and_has_no_gaps() -> None:
    many = Distributions()
    many.add(record())
    many.add(record(outcome=Outcome.CUT))
    many.add(record(outcome=Outcome.NOT_SENT, sent=None, chunks=(), ended=None))
    infinite = {name: histogram.infinite for name, histogram in many.of.items() if histogram.infinite}
    assert infinite == {"ttft": 2, "e2el": 2, "ttft_scheduled": 2, "e2el_scheduled": 2}
    assert (many.of["itl"].count, many.of["tpot"].count, many.of["send_lag"].count) == (2, 1, 2)
    assert many.figures()["p99_ttft_ms"] is None
