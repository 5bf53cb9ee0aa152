"""Looks at one server over time: windows, columns, restarts, gaps, and how much memory twenty minutes of them take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servers.looks import KEPT, Look, Looks, kept_from
from servers.measures import measure
from servers.reading import Reading, read
from servers.terms import Engine
from tests.servers.recorded import known, looks

TOKENS = "vllm:generation_tokens_total"


def at(tokens: float, running: float = 1.0, more: str = "") -> Reading:
    return known(f'{TOKENS}{{engine="0"}} {tokens}\nvllm:num_requests_running{{engine="0"}} {running}\n{more}')


def seen(*values: float | None, every: float = 1.0) -> Looks:
    """Looks at a server that had generated so many tokens, one a second from 0 on; None: the look failed."""
    return Looks([Look(place * every, None if value is None else at(value)) for place, value in enumerate(values)])


def test_a_window_is_measured_up_to_the_newest_reading() -> None:
    found = seen(0, 10, 30, 60, None)
    measured = found.measure(2.0)
    assert measured is not None
    assert (measured.seconds, measured.rate("generation_tokens")) == (2.0, 25.0)
    assert found.newest == Look(4.0, None)
    assert found.newest_reading is not None
    assert found.newest_reading.time == 3.0
    whole = found.measure(60.0)
    assert whole is not None
    assert (whole.seconds, whole.rate("generation_tokens")) == (3.0, 20.0)


def test_a_rate_is_not_of_the_time_that_a_server_was_away_once_it_is_back_for_two_looks() -> None:
    found = Looks([Look(0.0, at(0)), Look(1.0, at(10)), *(Look(float(time), None) for time in range(2, 600))])
    found.add(Look(600.0, at(40)))
    away = found.measure(10.0)
    assert away is not None
    assert (away.seconds, away.growth["generation_tokens"]) == (599.0, 30.0)  # there is nothing nearer
    found.add(Look(601.0, at(90)))
    back = found.measure(10.0)
    assert back is not None
    assert (back.seconds, back.rate("generation_tokens")) == (1.0, 50.0)
    whole = found.measure(600.0)
    assert whole is not None
    assert (whole.seconds, whole.growth["generation_tokens"]) == (600.0, 80.0)


def test_a_window_is_whole_where_looks_are_as_far_apart_as_it_is_long() -> None:
    measured = seen(0, 10, 30, 60, every=7.0).measure(10.0)
    assert measured is not None
    assert (measured.seconds, measured.growth["generation_tokens"]) == (14.0, 50.0)


def test_looks_of_pages_without_end_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.looks.MOST_BYTES", 800)

    def users(count: int) -> Reading:
        return at(9.0, more="".join(f'{TOKENS}{{engine="0",user="{user}"}} 1\n' for user in range(count)))

    few, many, all_of_them = users(0), users(20), users(40)
    found, fed = Looks(), list[Look]()
    for reading in (*[few] * 80, *[many] * 5, None, all_of_them, None, *[few] * 50):
        fed.append(Look(float(len(fed)), reading))
        found.add(fed[-1])
        kept = list(found._looks)
        assert kept == fed[kept_from(fed, len(fed)) :]
        assert sum(look.bytes for look in kept) <= 800
        if len(kept) < len(fed):
            assert sum(look.bytes for look in kept) + fed[-len(kept) - 1].bytes > 800
        assert found.upto()._looks == found._looks
        if len(fed) == 80:
            assert len(kept) == 100 // len(few.values)
    assert found.measure(1_000.0) is not None


def test_before_two_readings_there_is_nothing_to_measure() -> None:
    for found in (seen(), seen(None), seen(5), seen(None, 5, None)):
        assert found.measure(10.0) is None
        assert found.series("generation_tokens", 10.0, 2) == [None, None]
    assert seen().series("running", 1.0, 0) == []
    assert seen(5, 6).series("generation_tokens", 0.0, 2) == [None, None]


def test_a_window_reaches_back_to_the_last_restart_at_most() -> None:
    found = seen(0, 100, 3, 13, 33)
    measured = found.measure(60.0)
    assert measured is not None
    assert (measured.seconds, measured.rate("generation_tokens"), measured.restarted) == (2.0, 15.0, False)
    assert found.restarts == [2.0]
    just_now = seen(0, 100, 3).measure(60.0)
    assert just_now is not None
    assert (just_now.restarted, just_now.growth) == (True, {})


def test_a_restart_that_nobody_saw_is_seen_by_when_the_process_began() -> None:
    start = "process_start_time_seconds %s\n"
    found = Looks([Look(0, at(5, more=start % 100)), Look(1, None), Look(2, at(9, more=start % 200))])
    assert found.restarts == [2]
    measured = found.measure(10.0)
    assert measured is not None
    assert measured.restarted


def test_one_engine_that_began_anew_leaves_the_other_as_it_was() -> None:
    def both(first: int, second: int) -> Reading:
        return known(
            f'{TOKENS}{{engine="0"}} {first}\n{TOKENS}{{engine="1"}} {second}\n'
            'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 2\n'
        )

    found = Looks([Look(t, both(10 * t, second)) for t, second in enumerate((50, 60, 3, 4))])
    first, second = Engine("", "0"), Engine("", "1")
    one, other, whole = found.measure(60.0, first), found.measure(60.0, second), found.measure(60.0)
    assert one is not None
    assert other is not None
    assert whole is not None
    assert (one.seconds, one.rate("generation_tokens")) == (3.0, 10.0)
    assert (other.seconds, other.rate("generation_tokens")) == (1.0, 1.0)
    assert (whole.seconds, whole.rate("generation_tokens")) == (1.0, 11.0)
    assert found.series("generation_tokens", 3.0, 3, first) == [10.0, 10.0, 10.0]
    assert found.series("generation_tokens", 3.0, 3, second) == [10.0, None, 1.0]
    assert found.series("generation_tokens", 3.0, 3) == [20.0, None, 11.0]
    assert found.series("running", 3.0, 3, second) == [2.0, 2.0, 2.0]
    assert found.series("running", 3.0, 3) == [3.0, 3.0, 3.0]


def test_a_counter_that_was_away_does_not_begin_at_0_again() -> None:
    page = 'vllm:num_preemptions_total{engine="0"} %s\n'
    found = Looks(
        [
            Look(0, at(0, more=page % 1000)),
            Look(1, at(1)),
            Look(2, at(2, more=page % 1010)),
            Look(3, at(3, more=page % 1012)),
        ]
    )
    assert found.restarts == []
    assert found.series("preemptions", 3.0, 3) == [None, None, 2.0]
    for seconds, growth in ((1.0, 2), (2.0, None), (3.0, 12)):
        measured = found.measure(seconds)
        assert measured is not None
        assert measured.growth.get("preemptions") == growth
        assert measured.growth["generation_tokens"] == seconds


def test_a_counter_that_comes_began_at_0() -> None:
    page = 'vllm:request_success_total{engine="0",finished_reason="stop"} %s\n'
    found = Looks([Look(0, at(0)), Look(1, at(1, more=page % 4)), Look(2, at(2, more=page % 5))])
    assert found.series("requests", 2.0, 2) == [4.0, 1.0]
    measured = found.measure(2.0)
    assert measured is not None
    assert measured.growth["requests"] == 5


def test_columns_of_a_counter() -> None:
    found = seen(0, 10, 30, 60, 100)
    assert found.series("generation_tokens", 4.0, 4) == [10, 20, 30, 40]
    assert found.series("generation_tokens", 4.0, 2) == [15, 35]
    assert found.series("generation_tokens", 4.0, 1) == [25]
    assert found.series("generation_tokens", 2.0, 4) == [30, 30, 40, 40]  # two columns a look
    assert found.series("generation_tokens", 8.0, 4) == [None, None, 15, 35]  # before the first look
    assert found.series("generation_tokens", 100.0, 1) == [25]
    assert found.series("requests", 4.0, 2) == [None, None]


def test_columns_of_a_gauge() -> None:
    found = Looks([Look(float(t), at(0, running)) for t, running in enumerate((1, 2, 3, 5, 8))])
    assert found.series("running", 4.0, 4) == [2, 3, 5, 8]
    assert found.series("running", 4.0, 2) == [3, 8]
    assert found.series("running", 2.0, 4) == [3, 5, 5, 8]
    assert found.series("running", 6.0, 3) == [1, 3, 8]
    assert found.series("running", 8.0, 4) == [None, 1, 3, 8]
    assert found.series("kv_usage", 4.0, 2) == [None, None]


def test_a_peak_between_two_looks_of_a_column_is_its_level() -> None:
    found = Looks([Look(float(t), at(0, running)) for t, running in enumerate((9, 1, 7, 2, 1, 0, 3))])
    assert found.series("running", 6.0, 2) == [7, 3]  # the 9 was before
    assert found.series("running", 6.0, 1) == [7]
    assert found.series("running", 12.0, 1) == [9]
    assert found.series("running", 1.0, 1) == [3]
    failed = Looks([Look(0.0, at(0, 1)), Look(1.0, at(0, 7)), Look(2.0, None), Look(3.0, None), Look(4.0, None)])
    assert failed.series("running", 4.0, 2) == [7, None]


def test_columns_in_which_a_look_failed_are_none() -> None:
    found = seen(0, 10, None, None, 40, 50)
    assert found.series("generation_tokens", 5.0, 5) == [10, None, None, 10, 10]
    assert found.series("running", 5.0, 5) == [1, None, None, 1, 1]
    ended = seen(0, 10, 20, None)
    assert ended.series("running", 3.0, 3) == [1, 1, None]
    assert ended.series("generation_tokens", 3.0, 3) == [10, 10, None]


def test_columns_over_a_restart_are_none() -> None:
    assert seen(0, 100, 3, 13).series("generation_tokens", 3.0, 3) == [100, None, 10]


def test_what_is_told_is_that_of_the_newest_reading() -> None:
    first, later = looks("sglang")
    found = Looks([Look(0.0, first)])
    assert (found.tells("ttft"), found.tells("prefix_hit_tokens"), found.tells("hit_rate")) == (True, False, True)
    found.add(Look(1.0, None))
    assert found.tells("running")
    found.add(Look(2.0, later))
    assert (found.tells("prefix_hit_tokens"), found.tells("hit_rate"), found.tells("itl")) == (True, False, False)


def test_a_moment_stays_as_it_is() -> None:
    found = seen(0, 10, 5)
    moment = found.upto()
    before = (len(moment), moment.measure(9.0), moment.restarts, moment.series("generation_tokens", 2.0, 2))
    found.add(Look(3.0, at(1)))
    found.add(Look(4.0, None))
    assert (len(moment), moment.measure(9.0), moment.restarts, moment.series("generation_tokens", 2.0, 2)) == before
    assert (len(found), found.restarts) == (5, [2.0, 3.0])


def test_no_more_looks_are_kept_than_that_and_restarts_go_with_them() -> None:
    found = Looks(kept=3)
    for place, tokens in enumerate((5, 1, 2, 0, 3)):
        found.add(Look(float(place), at(tokens)))
    assert (len(found), found.restarts) == (3, [3.0])
    assert len(found.upto()) == 3
    found.add(Look(5.0, at(4)))
    found.add(Look(6.0, at(5)))
    assert found.restarts == []
    assert len(seen(*range(KEPT + 5))) == KEPT


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=2, max_size=30),
    st.integers(1, 40),
    st.floats(0.5, 40),
)
def test_columns_never_tell_more_than_was_counted(growth: Sequence[int | None], columns: int, seconds: float) -> None:
    total, tokens = 0, []
    for grown in growth:
        total += grown or 0
        tokens.append(None if grown is None else total)
    found = seen(*tokens)
    series = found.series("generation_tokens", seconds, columns)
    gauges = found.series("running", seconds, columns)
    assert len(series) == len(gauges) == columns
    assert all(rate is None or 0 <= rate <= 3 * len(growth) for rate in series)
    assert all(level in (None, 1.0) for level in gauges)
    if None not in growth and seconds == len(growth) - 1:
        assert sum(rate or 0.0 for rate in series) * seconds / columns == pytest.approx(total - (growth[0] or 0))


def test_the_whole_is_what_its_columns_add_up_to() -> None:
    found = seen(0, 3, 4, 9, 9, 20)
    series = found.series("generation_tokens", 5.0, 5)
    assert sum(rate for rate in series if rate is not None) == 20
    measured = found.measure(5.0)
    assert measured is not None
    assert measured.growth["generation_tokens"] == 20


def big_page(look: int) -> str:
    """As vLLM's: 13 series of counts, and ten histograms of one engine, in about 230 numbers that are read."""
    lines = [
        f'vllm:{name}{{engine="0",model_name="m"}} {look * 100.5}'
        for name in (
            *("num_requests_running", "num_requests_waiting", "prompt_tokens_total", "generation_tokens_total"),
            *("num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total"),
        )
    ]
    for name in (
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
        *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "iteration_tokens_total", "request_prompt_tokens"),
        "request_generation_tokens",
    ):
        bounds = [*(str(0.001 * 2**power) for power in range(28)), "+Inf"]
        lines += [
            f'vllm:{name}_bucket{{engine="0",le="{bound}",model_name="m"}} {look * place}'
            for place, bound in enumerate(bounds)
        ]
        lines.append(f'vllm:{name}_sum{{engine="0",model_name="m"}} {look * 1.5}')
    return "\n".join([*lines, ""])


def test_twenty_minutes_of_ten_servers_fit_in_64_mib() -> None:
    taken = 100
    pages = [big_page(look) for look in range(taken + 1)]
    assert len(known(pages[0]).values) >= 300
    found = Looks([Look(0.0, read(pages[0]))])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for look, page in enumerate(pages[1:], 1):
            found.add(Look(float(look), read(page), 0.01))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == taken + 1
    assert (after - before) / taken * KEPT * 10 < 64 * 2**20


def test_a_window_of_recorded_looks_is_what_its_ends_come_to() -> None:
    first, later = looks("vllm")
    found = Looks([Look(0.0, first), Look(4.0, None), Look(10.0, later)])
    assert found.measure(10.0) == measure(first, later, 10.0)
    assert found.measure(10.0, Engine("m", "1")) == measure(first, later, 10.0, Engine("m", "1"))


def test_after_a_stop_rates_are_over_the_real_time_and_then_of_the_newest_looks_again() -> None:
    """As where this program was stopped, or the machine slept, and the server went on with ten tokens a second."""

    def page(second: float) -> Reading:
        return at(10.0 * second)

    found = Looks([Look(float(second), page(second)) for second in range(4)])
    for second, seconds in ((603.0, 600.0), (604.0, 1.0), (605.0, 2.0)):
        found.add(Look(second, page(second)))
        measured = found.measure(5.0)
        assert measured is not None
        assert (measured.seconds, measured.rate("generation_tokens")) == (seconds, 10.0)
    rates = [rate for rate in found.series("generation_tokens", 700.0, 70) if rate is not None]
    assert rates
    assert all(rate == pytest.approx(10.0) for rate in rates)
    assert found.restarts == []
