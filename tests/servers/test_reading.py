"""The rules of reading a page: which series are one, what is told and what is not, and pages that cannot be read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from servers import exposition
from servers.exposition import samples
from servers.names import parse
from servers.reading import Buckets, lines_known, read
from servers.terms import Engine
from tests.servers.recorded import known

KV = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "python_gc_objects_collected_total 3\n", '[{"iter": 1, "vllm:": 2}]', "<html>vllm: is here</html>"),
        *("# HELP vllm:num_requests_running none yet\n", "vllm:something_else 1\n", 'other{name="vllm:x"} 1\n', "\0\1"),
    ],
)
def test_pages_without_known_names_are_nothing(text: str) -> None:
    assert read(text) is None
    assert lines_known(text) == ""


@pytest.mark.parametrize(
    "line",
    [
        *(f"{RUNNING} soon", RUNNING, f"{RUNNING} 1_000", f"{RUNNING} 0x10", f"{RUNNING} 1 2 3"),
        *(f'{RUNNING}{{engine="0" 1', f"{RUNNING}{{engine=0}} 1", f'{RUNNING}{{engine="0",engine="1"}} 1'),
        *(f'{RUNNING}{{engine="0}} 1', f'{RUNNING}{{0engine="0"}} 1'),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="cannot read this line of metrics") as error:
        read(f"vllm:num_requests_waiting 1\n{line}\n")
    assert repr(line.split("\n")[0])[:40] in str(error.value)


def test_a_long_line_that_cannot_be_read_is_named_by_its_beginning() -> None:
    for line in (f'{RUNNING}{{a="' + "\\" * 8_001, f"{RUNNING}{{" + "a" * 8_000, f"{RUNNING}{{" + 'a="b",' * 1_300):
        with pytest.raises(ValueError, match="cannot read this line of metrics: 'vllm:") as error:
            read(line)
        assert len(str(error.value)) < 1_000


def test_a_bound_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match="its bound le is 'soon'"):
        read('vllm:time_to_first_token_seconds_bucket{le="soon"} 1\n')


def test_lines_of_others_are_not_looked_at() -> None:
    assert known(f"{RUNNING} 1\nother{{{{{{ soon\nvllm:something_else soon\n").totals() == {"running": 1}


def test_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_PAGE", 1000)
    monkeypatch.setattr(exposition, "MAX_SERIES", 10)
    page = "".join(f'{RUNNING}{{engine="{engine}"}} 1\n' for engine in range(10))
    assert known(page).totals() == {"running": 10}
    with pytest.raises(ValueError, match="more than 10 lines"):
        read(page + f"{RUNNING} 1\n")
    with pytest.raises(ValueError, match="at most 1,000 are read"):
        read(page + " " * 1000)


def test_the_same_series_is_counted_once_whatever_the_order_of_its_labels() -> None:
    page = f'{RUNNING}{{engine="0",model_name="m"}} 2\n{RUNNING}{{model_name="m",engine="0"}} 2\n'
    assert known(page).totals() == {"running": 2}


@pytest.mark.parametrize("rank", ["tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank"])
def test_ranks_of_one_engine_repeat_what_it_tells(rank: str) -> None:
    page = "".join(
        f'sglang:num_running_reqs{{model_name="m",{rank}="{place}"}} 5\n'
        f'sglang:num_retracted_requests_total{{model_name="m",{rank}="{place}"}} {7 + place}\n'
        f'sglang:time_to_first_token_seconds_bucket{{model_name="m",le="+Inf",{rank}="{place}"}} 4\n'
        for place in range(4)
    )
    reading = known(page)
    assert reading.totals() == {"running": 5}
    assert list(reading.counters["preemptions"].values()) == [10]  # the one that is ahead
    assert [buckets.count for buckets in reading.histograms["ttft"].values()] == [4]


@pytest.mark.parametrize(
    ("values", "told"),
    [((5, 5), 5), ((0, 5), 5), ((5, 0, 0), 5), ((0, 0), 0), ((5, 6), None), ((0, 5, 6), None), ((0.5,), 0.5)],
)
def test_a_gauge_of_each_process_is_told_where_they_do_not_differ(
    values: tuple[float, ...], told: float | None
) -> None:
    page = "".join(f'{RUNNING}{{engine="0",pid="{pid}"}} {value}\n' for pid, value in enumerate(values))
    assert known(page).totals().get("running") == told


def test_counters_of_processes_add_up() -> None:
    page = "".join(f'vllm:generation_tokens_total{{engine="0",pid="{pid}"}} {pid}\n' for pid in (7, 8))
    assert sum(known(page).counters["generation_tokens"].values()) == 15


def test_priorities_are_parts_of_what_is_told_of_all() -> None:
    page = """sglang:num_running_reqs{priority=""} 5
sglang:num_running_reqs{priority="0"} 3
sglang:num_running_reqs{priority="1"} 2
"""
    assert known(page).totals() == {"running": 5}
    assert known(page.replace('priority=""', 'priority="2"')).totals() == {"running": 10}


def test_shares_of_kv_memory_are_weighted_and_never_added() -> None:
    page = f"""{KV}{{engine="0"}} 0.9
{KV}{{engine="1"}} 0.1
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="100"}} 1
vllm:cache_config_info{{block_size="16",engine="1",num_gpu_blocks="700"}} 1
"""
    assert known(page).totals() == pytest.approx({"kv_usage": 0.2, "kv_capacity": 12_800})
    assert known(page).of(Engine("", "0")).totals() == pytest.approx({"kv_usage": 0.9, "kv_capacity": 1_600})


@pytest.mark.parametrize(("first", "second", "told"), [("0.3", "0.4", None), ("0", "0.4", None), ("0.3", "0.3", 0.3)])
def test_a_share_of_one_engine_in_series_with_labels_that_nobody_knows_is_not_added_either(
    first: str, second: str, told: float | None
) -> None:
    """As where pages of several are joined, or two versions of a model are loaded."""
    info = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100",site="'
    page = f"""{KV}{{engine="0",site="a"}} {first}
{KV}{{engine="0",site="b"}} {second}
{RUNNING}{{engine="0",site="a"}} 1
{RUNNING}{{engine="0",site="b"}} 2
{info}a"}} 1
{info}b"}} 1
"""
    totals = known(page).totals()
    assert totals.get("kv_usage") == told
    assert (totals["running"], totals["kv_capacity"]) == (3, 2 * 100 * 16)
    triton = f"""nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="fraction",model="m",version="1"}} {first}
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="fraction",model="m",version="2"}} {second}
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="max",model="m",version="1"}} 100
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="max",model="m",version="2"}} 300
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="used",model="m",version="1"}} 90
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="used",model="m",version="2"}} 30
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="tokens_per",model="m",version="1"}} 64
nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="tokens_per",model="m",version="2"}} 64
"""
    totals = known(triton).totals()
    assert totals["kv_usage"] == pytest.approx(told or 120 / 400)  # all used blocks of all there are
    assert totals["kv_capacity"] == 400 * 64


@pytest.mark.parametrize("blocks", ["None", "0", "", "many"])
def test_a_share_of_unknown_memory_is_told_of_each_engine_alone(blocks: str) -> None:
    page = f"""{KV}{{engine="0"}} 0.9
{KV}{{engine="1"}} 0.1
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="100"}} 1
vllm:cache_config_info{{block_size="16",engine="1",num_gpu_blocks="{blocks}"}} 1
"""
    reading = known(page)
    assert "kv_usage" not in reading.totals()
    assert "kv_capacity" not in reading.totals() or blocks == "0"
    assert reading.gauges["kv_usage"] == {Engine("", "0"): 0.9, Engine("", "1"): 0.1}
    assert reading.of(Engine("", "1")).totals()["kv_usage"] == 0.1


def test_memory_is_put_to_the_engine_that_it_must_be_of() -> None:
    info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"%s} 1\n'
    one = f'{KV}{{engine="0",model_name="m"}} 0.5\n'
    for labels in ("", ',engine="0"'):  # once it was told without its engine
        assert known(one + info % labels).gauges["kv_capacity"] == {Engine("m", "0"): 1600}
    two_models = one + f'{KV}{{engine="0",model_name="n"}} 0.5\n'
    assert "kv_capacity" not in known(two_models + info % ',engine="0"').gauges  # whose?


def test_models_are_kept_apart() -> None:
    page = "".join(f'{RUNNING}{{model_name="{model}"}} {count}\n' for model, count in (("a", 1), ("b", 2)))
    page += 'vllm:generation_tokens_total{model_name="b"} 9\n'
    reading = known(page)
    assert reading.engines == (Engine("a"), Engine("b"))
    assert (reading.of(Engine("a")).totals(), reading.of(Engine("a")).counters) == ({"running": 1}, {})
    assert sum(reading.of(Engine("b")).counters["generation_tokens"].values()) == 9


def test_servers_behind_a_router_are_told_apart() -> None:
    page = f'{RUNNING}{{server="http://a"}} 1\n{RUNNING}{{server="http://b"}} 2\n'
    assert known(page).gauges["running"] == {Engine("", "http://a"): 1, Engine("", "http://b"): 2}


def test_a_server_that_counts_for_all_its_engines_tells_none_of_one() -> None:
    page = """sglang:num_running_reqs{dp_rank="0",model_name="m"} 1
sglang:num_running_reqs{dp_rank="1",model_name="m"} 2
sglang:generation_tokens_total{model_name="m"} 7
"""
    reading = known(page)
    assert reading.engines == (Engine("m", "0"), Engine("m", "1"))
    assert reading.of(Engine("m", "0")).counters == {}
    alone = known(page.replace('dp_rank="1"', 'dp_rank="0"'))
    assert sum(alone.of(Engine("m", "0")).counters["generation_tokens"].values()) == 7


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-Inf", "Inf", "-1", "1e999", "1e31"])
def test_what_is_no_count_is_not_told(value: str) -> None:
    page = f"""{RUNNING}{{engine="0"}} {value}
vllm:num_requests_waiting{{engine="0"}} 3
{KV}{{engine="0"}} {value}
vllm:generation_tokens_total{{engine="0"}} {value}
vllm:time_to_first_token_seconds_bucket{{le="1"}} {value}
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} 3
"""
    reading = known(page)
    assert reading.totals() == {"waiting": 3}
    assert (reading.counters, reading.histograms) == ({}, {})


def test_a_number_is_told_where_another_rank_has_none() -> None:
    lines = ['sglang:num_running_reqs{tp_rank="0"} NaN\n', 'sglang:num_running_reqs{tp_rank="1"} 3\n']
    for order in (lines, lines[::-1]):
        assert known("".join(order)).totals() == {"running": 3}


@pytest.mark.parametrize(("share", "told"), [("1", 1.0), ("1.02", 1.0), ("1.2", None), ("42", None), ("0", 0.0)])
def test_a_share_is_one_of_1(share: str, told: float | None) -> None:
    assert known(f"{RUNNING} 1\n{KV} {share}\n").totals().get("kv_usage") == told


def test_bounds_in_milliseconds_are_those_in_seconds_to_the_last_digit() -> None:
    """Else histograms of two kinds of servers have no bound in common."""
    name, milliseconds = "nv_inference_first_response_histogram_ms", (7, 35, 57, 100, 290, 1010)
    page = 'nv_trt_llm_request_metrics{request_type="waiting"} 0\n'
    page += "".join(f'{name}_bucket{{le="{bound}"}} 1\n' for bound in (*milliseconds, "+Inf")) + f"{name}_sum 290\n"
    (buckets,) = known(page).histograms["ttft"].values()
    assert [*buckets.upto] == [0.007, 0.035, 0.057, 0.1, 0.29, 1.01, math.inf]
    assert buckets.total == 0.29


TTFT = "vllm:time_to_first_token_seconds"


def histogram(*lines: str) -> list[Buckets]:
    page = "".join(f"{TTFT}_{line}\n" for line in lines)
    return list(known(f"{RUNNING} 1\n{page}").histograms.get("ttft", {}).values())


def test_buckets_in_any_order_and_with_any_way_to_write_infinity() -> None:
    lines = ('bucket{le="+Inf"} 3', 'bucket{le="1.0"} 2', 'bucket{le="0.5"} 1', "sum 4", "count 3")
    assert histogram(*lines) == [Buckets({0.5: 1, 1.0: 2, math.inf: 3}, 4)]
    assert histogram(*lines) == histogram(*(line.replace("+Inf", "inf") for line in lines))


def test_the_last_bucket_is_the_count_where_it_is_missing() -> None:
    assert histogram('bucket{le="1"} 2', "sum 4", "count 3") == [Buckets({1.0: 2, math.inf: 3}, 4)]
    assert histogram('bucket{le="1"} 2', "sum 4") == []
    assert histogram("sum 4", "count 3") == []


def test_buckets_that_fall_are_none() -> None:
    assert histogram('bucket{le="1"} 3', 'bucket{le="2"} 2', 'bucket{le="+Inf"} 3', "sum 4", "count 3") == []


@pytest.mark.parametrize("total", [(), ("sum NaN",), ("sum -3",)])
def test_a_sum_that_is_not_told_gives_no_mean(total: tuple[str, ...]) -> None:
    (buckets,) = histogram('bucket{le="+Inf"} 3', *total)
    assert (buckets.count, buckets.total, buckets.mean, buckets.at_most(50)) == (3, None, None, math.inf)


def test_an_older_name_counts_only_without_the_newer() -> None:
    older, newer = "vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds"
    page = "".join(f'{name}_bucket{{le="+Inf"}} {count}\n' for name, count in ((older, 9), (newer, 4)))
    (buckets,) = known(page).histograms["itl"].values()
    assert buckets.count == 4
    gauges = known(f"{KV} 0.5\nvllm:gpu_cache_usage_perc 0.1\n").gauges
    assert gauges["kv_usage"] == {Engine(): 0.5}


def test_readings_that_are_alike_share_their_layout() -> None:
    page = f'{RUNNING}{{engine="0"}} %s\nvllm:generation_tokens_total{{engine="0"}} 5\n'
    assert known(page % 1).layout is known(page % 2).layout
    assert known(page % 1).layout is not known((page % 1).replace('"0"', '"1"')).layout


def test_a_server_is_not_taken_for_one_that_it_names() -> None:
    assert known(f'{RUNNING}{{model_name="paged:sglang:m"}} 1\n').kind == "vllm"
    assert known(f"{RUNNING} 1\npaged:steps_total 1\n").kind == "paged-engine"


def test_exemplars_are_not_kept() -> None:
    kept = lines_known(
        f'vllm:generation_tokens_total{{model_name="a # b"}} 5 # {{trace_id="mine"}} 1 2\n{RUNNING} 1 17\n'
    )
    assert kept == f'vllm:generation_tokens_total{{model_name="a # b"}} 5\n{RUNNING} 1 17\n'


@pytest.mark.parametrize("text", ["a b", "a +b", "a + ", "{x=y}", "a - b", 'a{x="y"}', ""])
def test_a_name_that_is_not_written_as_agreed_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse(text)


LABEL = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.tuples(LABEL, LABEL), st.floats(min_value=0, max_value=1e15, allow_nan=False), min_size=1, max_size=6
    )
)
def test_a_line_is_read_as_its_writer_meant_it(values: dict[tuple[str, str], float]) -> None:
    """Whatever stands in labels: what prometheus-client writes is what its own parser reads of it, and what this one
    does."""
    registry = CollectorRegistry()
    gauge = Gauge("vllm:num_requests_running", "", ["model_name", "engine"], registry=registry)
    counter = Counter("vllm:generation_tokens", "", ["model_name", "engine"], registry=registry)
    latency = Histogram("vllm:time_to_first_token_seconds", "", ["model_name", "engine"], registry=registry)
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
        counter.labels(*labels).inc(value)
        latency.labels(*labels).observe(value)
    text = generate_latest(registry).decode()
    found = samples(text, {name: name for name in (RUNNING, "vllm:generation_tokens_total", f"{TTFT}_bucket")})
    meant: dict[str, dict[frozenset[tuple[str, str]], float]] = {name: {} for name in found}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in meant:
                meant[sample.name][frozenset(sample.labels.items())] = sample.value
    assert found == meant
    assert len(found[RUNNING]) == len(values)
    reading = known(text)
    assert known(generate_openmetrics(registry).decode()) == reading
    assert known(lines_known(text)) == reading
    assert reading.totals()["running"] == pytest.approx(sum(values.values()))
