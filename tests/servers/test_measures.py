"""What came between two looks, and of a fleet: by hand, and for any page that a server might answer with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servers.measures import Measures, broken, measure, merge, total
from servers.reading import Buckets, Reading, read
from servers.terms import COUNTERS, GAUGES, HISTOGRAMS, SHARES, Engine
from tests.servers.recorded import NAMES, known, looks, pages

TOKENS = "vllm:generation_tokens_total"
RUNNING = "vllm:num_requests_running 1\n"
TTFT = "vllm:time_to_first_token_seconds"


def between(before: str, after: str, seconds: float = 10.0) -> Measures:
    return measure(known(RUNNING + before), known(RUNNING + after), seconds)


def buckets(counts: Mapping[str, float], labels: str = "", total: float = 1.0) -> str:
    lines = [f'{TTFT}_bucket{{le="{le}"{labels}}} {count}' for le, count in counts.items()]
    return "\n".join([*lines, f"{TTFT}_sum{{{labels.removeprefix(',')}}} {total}", ""])


def test_a_counter_that_fell_is_a_restart_and_no_number_of_it_is_told() -> None:
    first, later = looks("vllm")
    seen = measure(later, first, 10.0)
    assert seen.restarted
    assert (seen.growth, seen.histograms, seen.hit_rate, seen.rate("prompt_tokens")) == ({}, {}, None, None)
    assert seen.pace("generation_tokens") is None
    assert seen.gauges == first.totals()


def test_after_a_restart_a_counter_that_rose_is_not_believed_either() -> None:
    """It may have come further than it was before."""
    seen = between(f"{TOKENS} 100\nvllm:num_preemptions_total 1\n", f"{TOKENS} 5\nvllm:num_preemptions_total 3\n")
    assert (seen.restarted, seen.growth) == (True, {})


def test_a_process_that_began_later_is_a_restart_though_all_rose() -> None:
    page = f"{TOKENS} %s\nprocess_start_time_seconds %s\n"
    assert between(page % (5, "1.7e+09"), page % (9, "1.7e+09")).growth["generation_tokens"] == 4
    seen = between(page % (5, "1.7e+09"), page % (9, "1.700000001e+09"))
    assert (seen.restarted, seen.growth) == (True, {})
    assert not between(f"{TOKENS} 5\n", page % (9, "1.7e+09")).restarted


def test_a_histogram_that_fell_is_a_restart() -> None:
    for after in ({"1": 2, "+Inf": 5}, {"1": 3, "+Inf": 4}):
        assert between(buckets({"1": 3, "+Inf": 5}), buckets(after)).restarted


def test_an_engine_that_is_gone_is_a_restart_and_the_other_goes_on() -> None:
    before, after = f'{TOKENS}{{engine="0"}} 5\n{TOKENS}{{engine="1"}} 5\n', f'{TOKENS}{{engine="0"}} 9\n'
    seen = between(before, after)
    assert (seen.restarted, seen.growth) == (True, {})
    gauges = 'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 1\n'
    first, later = known(gauges + before), known(gauges + after)
    assert broken(first, later) == {Engine("", "1")}
    assert measure(first, later, 1.0, Engine("", "0")).growth == {"generation_tokens": 4, "live_generation_tokens": 4}
    assert measure(first, later, 1.0, Engine("", "1")).restarted


def test_one_series_that_went_makes_its_counter_unknown_and_no_other() -> None:
    page = 'vllm:request_success_total{finished_reason="stop"} %s\n'
    seen = between(
        f'{TOKENS} 5\n{page % 3}vllm:request_success_total{{finished_reason="abort"}} 1\n', f"{TOKENS} 7\n{page % 9}"
    )
    assert (seen.restarted, seen.growth) == (False, {"generation_tokens": 2, "live_generation_tokens": 2})


def test_one_that_comes_began_at_0_unless_it_was_there_earlier() -> None:
    away, there = RUNNING + f'{TOKENS}{{model_name="a"}} 5\n', f'{TOKENS}{{model_name="b"}} 70\n'
    first, later = known(away), known(away + there)
    assert measure(first, later, 1.0).growth["generation_tokens"] == 70
    assert "generation_tokens" not in measure(first, later, 1.0, earlier=[later.layout]).growth
    assert measure(first, later, 1.0, earlier=[first.layout]).growth["generation_tokens"] == 70


def test_a_histogram_that_comes_back_is_not_all_new() -> None:
    away, there = RUNNING + f"{TOKENS} 5\n", buckets({"+Inf": 70})
    first, later = known(away), known(away + there)
    assert measure(first, later, 1.0).count("ttft") == 70
    assert measure(first, later, 1.0, earlier=[later.layout]).count("ttft") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vllm:gpu_prefix_cache_queries_total 100\nvllm:gpu_prefix_cache_hits_total 90\n",
         "vllm:prefix_cache_queries_total 2\nvllm:prefix_cache_hits_total 1\n"),
        ("vllm:time_per_output_token_seconds_bucket{le=\"+Inf\"} 5\n",
         "vllm:inter_token_latency_seconds_bucket{le=\"+Inf\"} 9\n"),
        ("tgi_request_success 5\n", "tgi_request_success_total 9\n"),
    ],
)  # fmt: skip
def test_a_server_that_was_upgraded_to_other_names_did_not_fall_to_0(old: str, new: str) -> None:
    """All its names are others, or some are while a counter that kept its name goes on."""
    before, after = known(old), known(new)
    seen = measure(before, after, 1.0)
    assert seen.restarted
    assert (seen.growth, seen.histograms) == ({}, {})
    rest = "vllm:num_preemptions_total 1\ntgi_queue_size 1\ntgi_request_generated_tokens_sum 5\n"
    seen = measure(known(old + rest), known(new + rest), 1.0)
    assert not seen.restarted
    assert seen.hit_rate is None
    assert seen.count("itl") is None
    assert "requests" not in seen.growth


def test_another_server_at_the_same_place_is_a_restart() -> None:
    assert measure(known(pages("tgi")[0]), known(pages("vllm")[0]), 1.0).restarted


def test_a_number_that_was_no_number_once_is_unknown_and_not_all_new() -> None:
    for before, after in (("NaN", "50"), ("50", "NaN"), ("+Inf", "50")):
        seen = between(f"{TOKENS} {before}\n", f"{TOKENS} {after}\n")
        assert (seen.restarted, seen.growth) == (False, {})


def test_an_empty_window_has_no_rate_no_mean_and_no_percentile() -> None:
    page = f"{TOKENS} 5\nvllm:prefix_cache_queries_total 5\nvllm:prefix_cache_hits_total 5\n" + buckets({"+Inf": 5})
    seen = between(page, page)
    assert seen.rate("generation_tokens") == 0
    assert (seen.hit_rate, seen.count("ttft"), seen.mean("ttft"), seen.at_most("ttft", 99)) == (None, None, None, None)
    assert between(page, page, 0.0).rate("generation_tokens") is None
    assert between(page, page, 0.0).pace("generation_tokens") is None
    assert (seen.rate("steps"), seen.pace("steps"), seen.count("itl")) == (None, None, None)


def test_histograms_are_merged_before_anything_is_read_off_them() -> None:
    """Of 100 quick ones and 2 slow ones, half are quick: the mean of two medians would say otherwise."""
    zero = buckets({"0.1": 0, "5": 0, "+Inf": 0}, ',engine="0"') + buckets({"0.1": 0, "5": 0, "+Inf": 0}, ',engine="1"')
    later = buckets({"0.1": 100, "5": 100, "+Inf": 100}, ',engine="0"', 5.0) + buckets(
        {"0.1": 0, "5": 2, "+Inf": 2}, ',engine="1"', 6.1
    )
    seen = between(zero, later)
    assert (seen.count("ttft"), seen.at_most("ttft", 50), seen.at_most("ttft", 99)) == (102, 0.1, 5.0)
    assert seen.mean("ttft") == pytest.approx((5.0 + 6.1 - 2) / 102)


def test_histograms_of_unlike_bounds_are_merged_where_they_agree() -> None:
    page = buckets({"1": 1, "2": 2, "+Inf": 3}, ',engine="0"') + buckets({"2": 4, "3": 5, "+Inf": 5}, ',engine="1"')
    seen = between("", page)
    assert seen.histograms["ttft"].upto == {2.0: 6, math.inf: 8}


def test_bounds_that_changed_make_a_histogram_unknown() -> None:
    seen = between(f"{TOKENS} 1\n" + buckets({"1": 1, "+Inf": 3}), f"{TOKENS} 1\n" + buckets({"2": 2, "+Inf": 4}))
    assert (seen.restarted, seen.count("ttft")) == (False, None)


def test_more_below_a_bound_than_below_the_next_is_no_histogram() -> None:
    seen = between(buckets({"1": 0, "2": 5, "+Inf": 5}), buckets({"1": 4, "2": 6, "+Inf": 9}))
    assert (seen.restarted, seen.count("ttft")) == (False, None)


def test_a_total_of_servers() -> None:
    parts = [measure(*looks(name), 10.0) for name in ("vllm", "sglang_live", "tgi")]
    whole = total(parts)
    assert whole.gauges["running"] == 7 + 10 + 1
    # 0.7 of 64,000 and 0.4 of 80,000; the third tells nothing of its memory.
    assert whole.gauges["kv_usage"] == pytest.approx((44_800 + 32_000) / 144_000)
    assert whole.gauges["kv_capacity"] == 144_000
    assert whole.growth["generation_tokens"] == 50 + 0 + 300
    assert whole.hit_rate == pytest.approx((500 + 500) / (1000 + 1000))
    assert whole.pace("generation_tokens") == (35.0, False)  # one of them tells no live tokens
    assert total(parts[:2]).pace("generation_tokens") == (15.0, True)
    assert (whole.parts, whole.seconds, whole.restarted) == (5, 10.0, False)
    assert {term: whole.told_by[term] for term in ("kv_usage", "prefix_hit_tokens", "ttft")} == {
        "kv_usage": 2,
        "prefix_hit_tokens": 2,
        "ttft": 1,
    }
    assert "running" not in whole.told_by


def test_a_total_over_memory_of_unknown_size_is_none() -> None:
    parts = [measure(*looks(name), 10.0) for name in ("vllm", "tensorrt_llm")]
    assert "kv_usage" not in total(parts).gauges
    assert total(parts[1:]).gauges["kv_usage"] == 0.75


def test_a_share_that_servers_reckon_themselves_has_no_total() -> None:
    part = measure(*looks("tensorrt_llm"), 10.0)
    assert part.gauges["hit_rate"] == 0.99
    assert "hit_rate" not in total([part, part]).gauges
    assert total([part]).gauges["hit_rate"] == 0.99


def test_what_was_looked_up_counts_in_a_total_only_where_what_was_found_does() -> None:
    whole = total([measure(*looks(name), 10.0) for name in ("vllm", "tensorrt_llm")])
    assert (whole.growth["prefix_queried_tokens"], whole.hit_rate) == (1000, 0.5)


def test_a_part_that_began_anew_is_missing_in_a_total() -> None:
    first, later = looks("vllm")
    whole = total([measure(first, later, 10.0), measure(later, first, 10.0)])
    assert whole.restarted
    assert (whole.growth["requests"], whole.told_by["requests"]) == (6, 1)


def test_a_total_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="a total of nothing"):
        total([])


# Servers' pages, whatever they tell: of engines by number, each with counters, a histogram and gauges.

COUNT = st.integers(0, 10**6)


class Page:
    """What an engine tells at two looks: nothing falls."""

    def __init__(self, drawn: tuple[list[tuple[int, int]], list[tuple[int, int]], float, int]) -> None:
        counters, bins, self.share, self.capacity = drawn
        self.counters = [(before, before + grown) for before, grown in counters]
        self.bins = [(before, before + grown) for before, grown in bins]

    def text(self, engine: int, look: int) -> str:
        labels = f'engine="{engine}",model_name="m"'
        lines = [
            f"vllm:prompt_tokens_total{{{labels}}} {self.counters[0][look]}",
            f"vllm:generation_tokens_total{{{labels}}} {self.counters[1][look]}",
            f"vllm:prefix_cache_queries_total{{{labels}}} {self.counters[0][look] + self.counters[2][look]}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {self.counters[2][look]}",
            f"vllm:num_requests_running{{{labels}}} {self.capacity % 7}",
            f"vllm:kv_cache_usage_perc{{{labels}}} {self.share}",
            f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="{self.capacity}"}} 1',
        ]
        upto = 0
        for bound, counts in zip(("0.1", "0.5", "1", "+Inf"), self.bins, strict=True):
            upto += counts[look]
            lines.append(f'{TTFT}_bucket{{{labels},le="{bound}"}} {upto}')
        return "\n".join([*lines, f"{TTFT}_sum{{{labels}}} {upto / 4}", ""])


PAGE = st.builds(
    Page,
    st.tuples(
        st.lists(st.tuples(COUNT, COUNT), min_size=3, max_size=3),
        st.lists(st.tuples(COUNT, COUNT), min_size=4, max_size=4),
        st.floats(0, 1),
        st.integers(1, 10**6),
    ),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(PAGE, min_size=1, max_size=5))
def test_a_total_of_servers_is_what_one_page_of_all_of_them_comes_to(engines: list[Page]) -> None:
    apart = [
        measure(known(page.text(number, 0)), known(page.text(number, 1)), 7.0) for number, page in enumerate(engines)
    ]
    whole = total(apart)
    before, after = (known("".join(page.text(number, look) for number, page in enumerate(engines))) for look in (0, 1))
    joined = measure(before, after, 7.0)
    assert whole.growth == joined.growth
    assert whole.histograms.keys() == joined.histograms.keys()
    for term, found in whole.histograms.items():
        assert found.upto == joined.histograms[term].upto
        assert found.mean == pytest.approx(joined.histograms[term].mean)
    assert whole.gauges == pytest.approx(joined.gauges)
    assert (whole.parts, whole.hit_rate) == (joined.parts, joined.hit_rate)
    shares = [page.share for page in engines]
    assert min(shares) - 1e-9 <= joined.gauges["kv_usage"] <= max(shares) + 1e-9
    for number, part in enumerate(apart):
        assert measure(before, after, 7.0, Engine("m", str(number))) == part


@given(st.lists(st.dictionaries(st.sampled_from((0.1, 0.5, 1.0, 2.0)), COUNT), min_size=1, max_size=4))
def test_merged_buckets_are_exact_where_all_have_a_bound(drawn: list[dict[float, int]]) -> None:
    parts = []
    for counts in drawn:
        upto, so_far = {}, 0
        for bound in (*sorted(counts), math.inf):
            so_far += counts.get(bound, 1)
            upto[bound] = float(so_far)
        parts.append(Buckets(upto, 1.0))
    merged = merge(parts)
    assert merged is not None
    assert merged.count == sum(part.count for part in parts)
    assert all(low <= high for low, high in pairwise(merged.upto.values()))
    for bound, count in merged.upto.items():
        assert count == sum(part.upto[bound] for part in parts)
    assert merged.total == len(parts)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=50), st.sampled_from((50, 90, 99)))
def test_so_many_percent_are_within_the_bound(values: list[float], percent: float) -> None:
    bounds = (0.5, 1.0, 2.0, 5.0, 10.0, math.inf)
    found = Buckets({bound: sum(value <= bound for value in values) for bound in bounds}, sum(values))
    bound = found.at_most(percent)
    assert sum(value <= bound for value in values) >= len(values) * percent / 100
    tighter = max((lower for lower in bounds if lower < bound), default=-1.0)
    assert sum(value <= tighter for value in values) < len(values) * percent / 100


@pytest.mark.parametrize("count", [0.07, 1e308, 5e-324, 3.0])
def test_all_values_are_within_the_last_bound_however_their_number_rounds(count: float) -> None:
    found = Buckets({1.0: count, math.inf: count}, None)
    assert [found.at_most(percent) for percent in (1, 50, 100)] == [1.0, 1.0, 1.0]


# And whatever stands where a number should be.

NUMBER = st.one_of(
    st.sampled_from(("NaN", "+Inf", "-Inf", "-0", "0", "-1", "1e308", "1e-308", "0.5", "1")),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.integers(0, 100).map(str),
)


def numbers(measures: Measures) -> Iterator[float]:
    yield from measures.gauges.values()
    yield from measures.growth.values()
    for found in measures.histograms.values():
        yield from found.upto.values()
        yield from () if found.total is None else (found.total,)
    asked = [measures.hit_rate, *(measures.rate(term) for term in COUNTERS), *(measures.mean(t) for t in HISTOGRAMS)]
    asked += [measures.at_most(term, percent) for term in HISTOGRAMS for percent in (1, 50, 100)]
    asked += [pace.rate for term in COUNTERS if (pace := measures.pace(term)) is not None]
    yield from (value for value in asked if value is not None)


def told(reading: Reading) -> Iterator[float]:
    for values in (*reading.counters.values(), *reading.gauges.values()):
        yield from values.values()
    for series in reading.histograms.values():
        for found in series.values():
            yield from found.upto.values()
            yield from () if found.total is None else (found.total,)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(NAMES), st.data())
def test_no_nan_ever_comes_out_and_no_count_is_below_0(name: str, data: st.DataObject) -> None:
    readings = []
    for page in pages(name):
        lines = [line for line in page.splitlines() if not line.startswith("#")]
        spoilt = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=8))
        for place in spoilt:
            lines[place] = f"{lines[place].rpartition(' ')[0]} {data.draw(NUMBER)}"
        gone = data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=3))
        reading = read("\n".join(line for place, line in enumerate(lines) if place not in gone))
        assert reading is not None
        readings.append(reading)
    first, later = readings
    engines = (None, *first.engines, *later.engines)
    found = [measure(*pair, 3.0, engine) for pair in ((first, later), (later, first)) for engine in engines]
    found += [total(found), total(found[:1])]
    for measures in found:
        assert all(value >= 0 for value in numbers(measures))
        assert all(measures.gauges[term] <= 1 for term in SHARES & measures.gauges.keys())
        assert measures.gauges.keys() <= set(GAUGES)
    assert all(math.isfinite(value) and value >= 0 for reading in readings for value in told(reading))
