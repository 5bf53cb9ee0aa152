"""vLLM's log lines are read, and laid beside looks at its metrics over the same time."""

from __future__ import annotations

import pytest

from benchmarks.vllm_log import beside, parse, table
from servers.looks import Look
from servers.reading import read

LOGGED = (
    b"(APIServer pid=7) INFO 11-30 15:15:35 [loggers.py:335] Engine 000: Avg prompt throughput: 300.4 tokens/s, "
    b"Avg generation throughput: 101.7 tokens/s, Running: 4 reqs, Waiting: 1 reqs, CPU KV cache usage: 4.8%, "
    b"Prefix cache hit rate: 84.1%"
)


def look(time, generated, running):
    page = f"""vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} 1
vllm:kv_cache_usage_perc{{engine="0"}} 0.05
vllm:generation_tokens_total{{engine="0"}} {generated}
vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} {generated * 3}
vllm:prefix_cache_queries_total{{engine="0"}} {generated * 4}
vllm:prefix_cache_hits_total{{engine="0"}} {generated}
"""
    return Look(time, read(page))


def test_a_line_of_the_log_is_read_and_others_are_not():
    line = parse(LOGGED, 10.0)
    assert line is not None
    assert (line.prompt_rate, line.generation_rate, line.running, line.waiting) == (300.4, 101.7, 4, 1)
    assert (line.kv_usage, line.hit_rate) == (4.8, 84.1)
    assert parse(b"INFO: 127.0.0.1 - GET /metrics 200 OK", 10.0) is None


def test_rates_are_of_the_time_between_two_lines_and_gauges_of_the_looks_around_the_second():
    before, line = parse(LOGGED, 0.0), parse(LOGGED, 10.0)
    looks = [look(-3.0, 0, 9), look(0.0, 1000, 2), look(5.0, 1500, 2), look(10.0, 2000, 4), look(10.5, 2100, 5)]
    pair = beside(before, line, looks)
    assert pair is not None
    assert pair.generation_rate == pytest.approx(100.0)
    assert pair.prompt_rate == pytest.approx(300.0)
    assert pair.running == (4, 5)
    assert pair.kv_usage == pytest.approx((5.0, 5.0))
    assert pair.hit_rate == pytest.approx(25.0)
    assert table([pair]).row_count == 1
    assert beside(before, line, looks[:1]) is None
