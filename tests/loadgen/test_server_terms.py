"""Pages that servers answer /metrics with, read into one set of terms."""

from __future__ import annotations

import pytest

from loadgen.server_terms import COUNTERS, Reading, read
from tests.loadgen.server_pages import SERVERS, pages


def reading(name: str) -> Reading:
    found = read(pages(name)[0])
    assert found is not None
    return found


@pytest.mark.parametrize("name", SERVERS)
def test_every_server_is_known_by_its_own_names(name: str) -> None:
    first = reading(name)
    assert first.kind.replace(".", "_").replace("-", "_") == name.removesuffix("_v0")
    assert {"running", "waiting"} <= first.gauges.keys()
    assert {"prompt_tokens", "generation_tokens"} <= first.counters.keys() <= set(COUNTERS)


@pytest.mark.parametrize("name", SERVERS)
def test_a_look_at_the_gauges_is_the_same_without_the_rest(name: str) -> None:
    alone = read(pages(name)[0], gauges_alone=True)
    assert alone is not None
    assert (alone.gauges, alone.counters, alone.histograms) == (reading(name).gauges, {}, {})


@pytest.mark.parametrize(
    ("name", "gauges"),
    [
        ("vllm", {"running": 3, "waiting": 4, "kv_usage": 0.4}),  # 0.5 of 3,000 blocks and 0.1 of 1,000
        ("vllm_v0", {"running": 7, "waiting": 1, "kv_usage": 0.42}),
        ("sglang", {"running": 4, "waiting": 2, "kv_usage": 0.2}),  # four ranks of two engines
        ("tgi", {"running": 5, "waiting": 3}),  # and nothing of its KV memory: absent, not 0
        ("llama_cpp", {"running": 2, "waiting": 1}),
        ("tensorrt_llm", {"running": 2, "waiting": 0, "kv_usage": 0.25}),
    ],
)
def test_gauges_by_hand(name: str, gauges: dict[str, float]) -> None:
    assert reading(name).gauges == pytest.approx(gauges)


def test_shares_of_unknown_memory_are_averaged() -> None:
    found = read('vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n')
    assert found is not None
    assert found.gauges == pytest.approx({"kv_usage": 0.4})


def test_one_gauge_for_each_process_of_a_server_is_one_gauge() -> None:
    found = read('vllm:num_requests_running{pid="7"} 5\nvllm:num_requests_running{pid="8"} 5\n')
    assert found is not None
    assert found.gauges == {"running": 5.0}


def test_a_histogram_of_the_older_name_counts_only_without_the_newer() -> None:
    (newer,) = reading("vllm").histograms["itl"].values()
    (older,) = reading("vllm_v0").histograms["itl"].values()
    assert (newer.total, older.total) == (2.0, 1.0)


@pytest.mark.parametrize(
    "text", ["", "python_gc_objects_collected_total 3\n", '[{"iter": 1}]', "<html>vllm: is here</html>"]
)
def test_pages_without_known_names_are_nothing(text: str) -> None:
    assert read(text) is None


def test_a_value_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="soon"):
        read("vllm:num_requests_running soon\n")
