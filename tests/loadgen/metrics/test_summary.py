"""The figures against numbers worked out by hand."""

from __future__ import annotations

import pytest

from loadgen.metrics.slo import Slo, parse_slo
from loadgen.metrics.summary import Figures, summarize
from loadgen.metrics.window import Window
from loadgen.outcome import Outcome, RequestRecord, TokenSource


def record(**changes: object) -> RequestRecord:
    base: dict[str, object] = {
        "session": "s",
        "index": 0,
        "turn": 0,
        "asked_output": 3,
        "scheduled": 10.0,
        "outcome": Outcome.COMPLETED,
        "sent": 10.5,
        "chunks": (11.0, 11.25, 12.0),
        "ended": 12.5,
        "token_source": TokenSource.USAGE,
        "input_tokens": 20,
        "output_tokens": 3,
    }
    return RequestRecord(**{**base, **changes})  # type: ignore[arg-type]


def test_one_request_by_hand() -> None:
    summary = summarize([record()])
    assert summary["mean_ttft_ms"] == 500.0
    assert summary["mean_ttft_scheduled_ms"] == 1000.0
    assert summary["mean_e2el_ms"] == 1500.0  # the last chunk, not the end of the response
    assert summary["mean_e2el_scheduled_ms"] == 2000.0
    assert summary["mean_tpot_ms"] == 500.0  # (1500 - 500) / 2
    assert summary["mean_itl_ms"] == 500.0  # 250 and 750; the wait for the first is not among them
    assert (summary["min_itl_ms"], summary["max_itl_ms"], summary["count_itl"]) == (250.0, 750.0, 2)
    assert summary["mean_send_lag_ms"] == 500.0
    assert summary["duration"] == 2.0
    assert summary["output_throughput"] == 1.5
    assert summary["total_token_throughput"] == 11.5
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (20, 3)
    assert summary["token_source"] == "usage"


def test_chunks_are_not_tokens() -> None:
    summary = summarize([record(output_tokens=9)])
    assert summary["mean_tpot_ms"] == 125.0  # 1000 / 8
    assert (summary["total_output_tokens"], summary["total_chunks"], summary["count_itl"]) == (9, 3, 2)


def test_tpot_of_one_token_is_left_out_not_zero() -> None:
    summary = summarize([record(), record(output_tokens=1, chunks=(11.0,))])
    assert (summary["count_tpot"], summary["min_tpot_ms"], summary["count_ttft"]) == (1, 500.0, 2)
    alone = summarize([record(output_tokens=1, chunks=(11.0,))])
    assert (alone["count_tpot"], alone["mean_tpot_ms"], alone["p99_tpot_ms"]) == (0, None, None)


def test_duration_spans_first_send_to_last_response() -> None:
    records = [record(), record(sent=20.0, scheduled=20.0, chunks=(21.0,), ended=30.5, output_tokens=1)]
    summary = summarize(records)
    assert summary["duration"] == 20.0
    assert summary["request_throughput"] == 0.1


def test_failures_stay_in_the_percentiles() -> None:
    fast = [record() for _ in range(9)]
    failed = record(outcome=Outcome.HTTP_ERROR, chunks=(), output_tokens=0, input_tokens=None)
    summary = summarize([*fast, failed])
    assert (summary["completed"], summary["failed"], summary["turns"]) == (9, 1, 10)
    assert summary["p50_ttft_ms"] == 500.0
    assert summary["p99_ttft_ms"] is None  # it falls among the failed
    assert (summary["mean_ttft_ms"], summary["count_ttft"]) == (500.0, 9)
    assert summary["failures"] == {"HTTP error": 1}
    assert summary["count_send_lag"] == 10  # a failed request was sent late or not all the same


def test_a_failed_request_adds_no_tokens_and_no_gaps() -> None:
    cut = record(outcome=Outcome.CUT, token_source=TokenSource.CHUNKS)
    summary = summarize([record(), cut])
    assert (summary["total_output_tokens"], summary["count_itl"], summary["count_tpot"]) == (3, 2, 1)


def test_interrupted_turns_are_told_apart_from_failures() -> None:
    flying = record(outcome=Outcome.INTERRUPTED)
    waiting = record(outcome=Outcome.NOT_REACHED, sent=None, chunks=(), ended=None, scheduled=None)
    summary = summarize([record(), flying, waiting])
    assert (summary["completed"], summary["failed"]) == (1, 0)
    assert (summary["interrupted"], summary["not_reached"]) == (1, 1)
    assert summary["interrupted_chunks"] == 3
    assert summary["total_output_tokens"] == 3  # of the completed one
    assert summary["p99_ttft_ms"] == 500.0


def test_sessions_served_whole() -> None:
    records = [record(), record(turn=1, outcome=Outcome.NOT_SENT, sent=None), record(index=1)]
    summary = summarize(records)
    assert (summary["sessions"], summary["sessions_completed"]) == (2, 1)


USAGE, TOKENIZER, CHUNKS = TokenSource.USAGE, TokenSource.TOKENIZER, TokenSource.CHUNKS


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ((USAGE, USAGE), "usage"),
        ((CHUNKS,), "chunks"),
        ((CHUNKS, USAGE), "usage, else chunks"),
        ((CHUNKS, TOKENIZER, USAGE), "usage, else tokenizer, else chunks"),
        ((), "none"),
    ],
)
def test_token_source_is_told(sources: tuple[TokenSource, ...], told: str) -> None:
    assert summarize([record(token_source=source) for source in sources])["token_source"] == told


def test_input_tokens_are_unknown_unless_every_answer_told_them() -> None:
    summary = summarize([record(), record(input_tokens=None)])
    assert summary["total_input_tokens"] is None
    assert summary["total_token_throughput"] is None


def test_an_answer_without_text_has_no_latency_but_counts() -> None:
    summary = summarize([record(chunks=(), output_tokens=4)])
    assert (summary["completed"], summary["count_ttft"], summary["total_output_tokens"]) == (1, 0, 4)


def test_nothing_at_all() -> None:
    summary = summarize([])
    assert (summary["completed"], summary["duration"], summary["output_throughput"]) == (0, 0.0, None)


def test_vllm_names() -> None:
    summary = summarize([record()])
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for stat in ("mean", "median", "std", "p50", "p90", "p95", "p99", "min", "max"):
            assert f"{stat}_{metric}_ms" in summary
    assert summary["median_ttft_ms"] == summary["p50_ttft_ms"]


def test_itl_is_pooled_over_requests() -> None:
    summary = summarize([record(), record(chunks=(20.0, 21.0))])
    assert (summary["count_itl"], summary["min_itl_ms"], summary["p50_itl_ms"], summary["max_itl_ms"]) == (
        3,
        250.0,
        750.0,
        1000.0,
    )
