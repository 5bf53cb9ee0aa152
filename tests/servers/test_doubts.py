"""What cannot be is not shown, and the reason names what was told."""

from __future__ import annotations

import math

import pytest

from servers.reading import Reading, read
from servers.terms import Engine

KV, RUNNING, INFO = "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:cache_config_info"
ONE = '{engine="0",model_name="m"}'
TWO = '{engine="1",model_name="m"}'


def known(page: str) -> Reading:
    reading = read(page)
    assert reading is not None
    return reading


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("7", "it tells 700 %, which no memory has"),
        ("-1", "it tells -100 %, which no memory has"),
        ("1.06", "it tells 106 %, which no memory has"),
        ("NaN", "it tells nan %, which no memory has"),
        ("+Inf", "it tells inf %, which no memory has"),
    ],
)
def test_a_share_of_memory_beyond_all_of_it_is_absent_with_its_reason(told: str, why: str) -> None:
    reading = known(f"{KV}{ONE} {told}\n{RUNNING}{ONE} 2\n")
    assert reading.totals() == {"running": 2}
    assert reading.doubt("kv_usage") == why
    assert reading.doubt("running") == ""


@pytest.mark.parametrize("told", ["0", "0.5", "1", "1.02"])
def test_what_can_be_is_believed(told: str) -> None:
    reading = known(f'{KV}{ONE} {told}\n{INFO}{{block_size="16",num_gpu_blocks="None"}} 1\n')
    assert reading.totals() == {"kv_usage": min(1.0, float(told))}
    assert reading.doubts == ()


@pytest.mark.parametrize(
    ("told", "why"), [("-3", "it tells -3, which is no count"), ("1e31", "it tells 1e+31, which is no count")]
)
def test_a_count_below_none_is_absent_with_its_reason(told: str, why: str) -> None:
    reading = known(f"{KV}{ONE} 0.5\n{RUNNING}{ONE} {told}\n")
    assert reading.totals() == {"kv_usage": 0.5}
    assert reading.doubt("running") == why


def test_what_one_of_two_engines_tells_wrongly_has_no_total_and_the_other_is_believed() -> None:
    reading = known(f"{KV}{ONE} 7\n{KV}{TWO} 0.5\n{RUNNING}{ONE} 2\n{RUNNING}{TWO} -3\n")
    assert reading.totals() == {}
    first, second = reading.of(Engine("m", "0")), reading.of(Engine("m", "1"))
    assert (first.totals(), second.totals()) == ({"running": 2}, {"kv_usage": 0.5})
    assert (first.doubt("kv_usage"), first.doubt("running")) == ("it tells 700 %, which no memory has", "")
    assert (second.doubt("kv_usage"), second.doubt("running")) == ("", "it tells -3, which is no count")


def test_another_way_to_tell_the_same_is_believed_instead() -> None:
    reading = known(
        "trtllm_kv_cache_utilization 7\ntrtllm_kv_cache_used_blocks 5\ntrtllm_kv_cache_max_blocks 20\n"
        "trtllm_kv_cache_tokens_per_block 32\n"
    )
    assert reading.totals()["kv_usage"] == 0.25
    assert not math.isnan(reading.totals()["kv_capacity"])
    assert reading.doubts == ()
