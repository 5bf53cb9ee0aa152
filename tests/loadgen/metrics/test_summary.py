"""The figures against numbers worked out by hand, and over any requests against plain sums."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.histogram import RELATIVE_ERROR
from loadgen.metrics.slo import parse_slo
from loadgen.metrics.summary import Figures, summarize
from loadgen.metrics.window import Window
from loadgen.outcome import Outcome, RequestRecord, TokenSource
from tests.loadgen.metrics.records import record, records


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


def figures(served: list[RequestRecord], slo: str = "ttft=1s,e2e=5s") -> Figures:
    taken = Figures(parse_slo(slo))
    for one in served:
        taken.add(one)
    return taken


def test_goodput_by_hand() -> None:
    fast, slow = record(), record(sent=10.0, index=1)  # TTFT 500 and 1000 ms, E2E 1500 and 2000 ms
    failed = record(index=2, outcome=Outcome.TIMEOUT, ended=12.5)
    summary = summarize([fast, slow, failed], parse_slo("ttft=600ms,e2e=2s"))
    assert summary["slo"] == {"ttft": 600.0, "e2el": 2000.0}
    assert (summary["slo_met"], summary["slo_missed"]) == (1, 2)
    assert summary["goodput"] == 1 / 2.5
    assert summary["slo_attainment"] == pytest.approx(1 / 3)
    assert summary["slo_attainment_by_limit"] == {"ttft": pytest.approx(1 / 3), "e2el": pytest.approx(2 / 3)}


def test_goodput_counts_no_request_of_which_nobody_can_tell() -> None:
    early = record(outcome=Outcome.INTERRUPTED, chunks=(), ended=10.6)
    late = record(outcome=Outcome.INTERRUPTED, chunks=(), ended=20.0)
    waiting = record(outcome=Outcome.NOT_REACHED, sent=None, chunks=(), ended=None)
    summary = summarize([record(), early, late, waiting], parse_slo("ttft=1s"))
    assert (summary["slo_met"], summary["slo_missed"], summary["slo_attainment"]) == (1, 1, 0.5)
    alone = summarize([early], parse_slo("ttft=1s"))
    assert (alone["goodput"], alone["slo_attainment"]) == (None, None)


def test_without_limits_there_is_no_goodput() -> None:
    summary = summarize([record()])
    assert (summary["slo"], summary["goodput"], summary["slo_attainment"]) == (None, None, None)


def test_an_answer_in_one_piece_has_an_e2e_alone() -> None:
    whole = record(streamed=False, chunks=(12.0,))
    failed = record(streamed=False, chunks=(), outcome=Outcome.CONNECTION)
    summary = summarize([whole, failed])
    assert (summary["mean_e2el_ms"], summary["count_e2el"], summary["p99_e2el_ms"]) == (1500.0, 1, None)
    assert [summary[f"count_{name}"] for name in ("ttft", "tpot", "itl", "ttft_scheduled")] == [0, 0, 0, 0]
    assert summary["output_tokens_per_chunk"] is None
    assert summary["output_throughput"] == 1.5


def test_tokens_that_were_asked_cached_and_tried_again() -> None:
    summary = summarize(
        [
            record(asked_input=20, cached_tokens=15),
            record(asked_input=21, cached_tokens=5, retries=2),
            record(asked_input=20, asked_output=4, input_tokens=None),
            record(outcome=Outcome.HTTP_ERROR, chunks=(), cached_tokens=9, asked_input=1, asked_output=1, retries=1),
        ]
    )
    assert (summary["asked_input_mismatches"], summary["other_length_than_asked"]) == (1, 1)
    assert (summary["cached_tokens"], summary["hit_rate"]) == (20, 0.5)
    assert summary["retries"] == 3
    assert summary["output_tokens_per_chunk"] == 1.0
    untold = summarize([record()])
    assert (untold["cached_tokens"], untold["hit_rate"]) == (None, None)


def test_an_answer_that_tells_no_cached_tokens_beside_others_that_do_had_none() -> None:
    summary = summarize([record(cached_tokens=10), record(), record(cached_tokens=5)])
    assert (summary["cached_tokens"], summary["cached_told"], summary["hit_rate"]) == (15, 2, 15 / 60)


def test_of_an_answer_that_tells_no_cached_tokens_beside_others_that_tell_of_none_nothing_is_known() -> None:
    """As of one of two replicas, started without the flag."""
    summary = summarize([record(cached_tokens=10), record(), record(cached_tokens=0)])
    assert (summary["cached_tokens"], summary["cached_told"], summary["hit_rate"]) == (10, 2, 10 / 40)


@pytest.mark.parametrize("source", [TokenSource.CHUNKS, TokenSource.TOKENIZER])
def test_an_answer_is_short_by_the_servers_own_count_alone(source: TokenSource) -> None:
    """A chunk may hold several tokens, and a text lacks those that are not shown."""
    summary = summarize([record(asked_output=5, output_tokens=3, token_source=source)])
    assert (summary["shorter_than_asked"], summary["tokens_short"], summary["other_length_than_asked"]) == (0, 0, 1)


def test_answers_that_ended_early() -> None:
    short, long = record(asked_output=5, finish="stop"), record(asked_output=2, finish="length")
    summary = summarize([short, long, record(asked_output=3, finish="length")])
    assert (summary["shorter_than_asked"], summary["tokens_short"], summary["other_length_than_asked"]) == (1, 2, 2)
    assert summary["finish_reasons"] == {"length": 2, "stop": 1}


def test_what_is_outside_the_window_is_counted_apart() -> None:
    cold = record(sent=10.0)
    late = record(sent=11.0, index=1)
    summary = summarize([cold, record(), late], window=Window(10.2, 10.8))
    assert (summary["turns"], summary["warmup_requests"], summary["cooldown_requests"]) == (1, 1, 1)
    assert (summary["mean_ttft_ms"], summary["duration"], summary["sessions"]) == (500.0, 2.0, 1)


def test_repeats_add_their_times_and_their_sessions() -> None:
    one = summarize([record(), record(index=1, outcome=Outcome.CUT)])
    both = figures([record(), record(index=1, outcome=Outcome.CUT)])
    both.merge(figures([record(), record(index=1, outcome=Outcome.CUT)]))
    summary = both.summary()
    assert (summary["duration"], summary["sessions"], summary["sessions_completed"]) == (4.0, 4, 2)
    assert (summary["completed"], summary["failures"]) == (2, {"stream cut off": 2})
    assert summary["output_throughput"] == one["output_throughput"]
    assert summary["count_itl"] == 4


def test_other_limits_do_not_merge() -> None:
    with pytest.raises(ValueError, match=r"ttft=1000ms,e2el=5000ms and with ttft=1000ms do not merge"):
        figures([]).merge(figures([], "ttft=1s"))


@given(st.lists(st.lists(records(), max_size=8), min_size=3, max_size=3))
def test_merging_is_associative_and_commutative(runs: list[list[RequestRecord]]) -> None:
    def merged(*all_of_them: Figures) -> Figures:
        into = Figures(parse_slo("ttft=1s,e2e=5s"))
        for one in all_of_them:
            into.merge(one)
        return into

    def same(one: dict[str, object], other: dict[str, object]) -> None:
        assert list(one) == list(other)
        for name, value in one.items():
            again = other[name]
            if isinstance(value, float) and isinstance(again, float):
                assert math.isclose(value, again, rel_tol=1e-9, abs_tol=1e-6), name
            else:
                assert value == again, name

    a, b, c = (figures(run) for run in runs)
    same(merged(merged(a, b), c).summary(), merged(a, merged(b, c)).summary())
    same(merged(a, b).summary(), merged(b, a).summary())
    same(merged(a).summary(), a.summary())


@given(st.lists(records(), max_size=30))
def test_every_request_is_counted_once(served: list[RequestRecord]) -> None:
    summary = figures(served).summary()
    outcomes = Counter(one.outcome for one in served)
    counted = [summary[name] for name in ("completed", "failed", "interrupted", "not_reached")]
    assert sum(counted) == summary["turns"] == len(served)  # type: ignore[arg-type]
    assert summary["failed"] == sum(summary["failures"].values())  # type: ignore[attr-defined]
    judged = summary["slo_met"] + summary["slo_missed"]  # type: ignore[operator]
    assert summary["failed"] <= judged <= len(served) - outcomes[Outcome.NOT_REACHED]
    assert summary["slo_missed"] >= summary["failed"]  # type: ignore[operator]
    shares = [summary["slo_attainment"], *summary["slo_attainment_by_limit"].values()]  # type: ignore[attr-defined]
    assert all(shares[0] <= share for share in shares[1:] if share is not None and shares[0] is not None)


@given(st.lists(records(), max_size=30))
def test_ttft_is_that_of_numpy_with_failures_as_infinity(served: list[RequestRecord]) -> None:
    summary = figures(served).summary()
    streamed = [one for one in served if one.streamed]
    values = [
        (one.chunks[0] - one.sent) * 1000
        for one in streamed
        if one.outcome is Outcome.COMPLETED and one.chunks and one.sent is not None
    ]
    every = sorted(values) + [np.inf] * sum(one.outcome.failed for one in streamed)
    assert summary["count_ttft"] == len(values)
    assert summary["mean_ttft_ms"] == (pytest.approx(np.mean(values), abs=1e-9) if values else None)
    for percent in (50, 90, 95, 99):
        with np.errstate(invalid="ignore"):
            exact = float(np.percentile(every, percent)) if every else np.inf
        found = summary[f"p{percent}_ttft_ms"]
        if np.isfinite(exact):
            assert found == pytest.approx(exact, rel=RELATIVE_ERROR * 1.01, abs=1e-9)
        elif not np.isnan(exact):
            assert found is None
