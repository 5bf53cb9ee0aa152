"""Pages of real servers before and after seven requests, read against the usage that their own answers told.

`tests/data/real_servers` has what vLLM and llama.cpp answered, and the tokens that the client added up.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servers.measures import Measures, measure
from tests.servers.recorded import known

FOLDER = Path(__file__).parents[1] / "data" / "real_servers"


def load(name: str) -> tuple[Measures, dict[str, int], dict[str, float]]:
    first, later = map(known, (FOLDER / f"{name}.txt").read_text().split("=== later\n"))
    usage = json.loads((FOLDER / f"{name}.json").read_text())["usage"]
    return measure(first, later, 10.0), usage, later.totals()


@pytest.mark.parametrize("name", ["vllm", "llama_cpp"])
def test_tokens_are_those_that_the_client_was_told(name: str) -> None:
    seen, usage, _ = load(name)
    assert seen.growth["prompt_tokens"] == usage["prompt_tokens"]
    assert seen.growth["generation_tokens"] == usage["generation_tokens"]
    assert seen.growth["prefix_hit_tokens"] == usage["cached"]
    assert seen.hit_rate == pytest.approx(usage["cached"] / usage["prompt_tokens"])
    assert not seen.restarted


def test_vllm_tells_requests_and_latencies_of_each() -> None:
    seen, usage, gauges = load("vllm")
    assert seen.growth["requests"] == usage["requests"]
    for term in ("ttft", "e2el", "queue", "prompt_length", "generation_length"):
        assert seen.count(term) == usage["requests"]
    assert seen.mean("prompt_length") == usage["prompt_tokens"] / usage["requests"]
    assert seen.mean("generation_length") == usage["generation_tokens"] / usage["requests"]
    assert seen.count("itl") == usage["generation_tokens"] - usage["requests"]  # the first token of each has none
    assert gauges["running"] == gauges["waiting"] == gauges["kv_usage"] == 0
    assert gauges["kv_capacity"] == 260 * 32


def test_llama_cpp_tells_no_latencies_and_nothing_of_its_memory() -> None:
    seen, _, gauges = load("llama_cpp")
    assert set(gauges) == {"running", "waiting"}
    assert not seen.histograms
    assert "requests" not in seen.growth
