"""A server's figures over a run: from recorded pages by hand, over HTTP, and of the project's own engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine_process import EngineProcess
from loadgen.server_metrics import Figure, ServerMetrics, at_most, growth, levels
from loadgen.server_terms import Buckets, read
from tests.loadgen.server_pages import SERVERS, pages


def grown(first: str, last: str) -> dict[str, Figure]:
    before, after = read(first), read(last)
    assert before is not None
    assert after is not None
    return growth(before, after)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        (
            "vllm",
            {
                "prompt_tokens": 1000,
                "generation_tokens": 50,  # with an engine that had not spoken before
                "requests": 6,
                "preemptions": 3,
                "prefix_hit_tokens": 500,
                "prefix_queried_tokens": 1000,
                "prefix_hit_rate": 0.5,
                "mean_ttft_ms": 700.0,  # 7 seconds over 10 requests of both engines
                "p50_ttft_at_most_ms": 500.0,  # 4 of 10 within 100 ms, 9 within 500
                "p90_ttft_at_most_ms": 500.0,
                "p99_ttft_at_most_ms": None,  # beyond the last bound
                "count_ttft": 10,
                "mean_itl_ms": 50.0,
                "mean_e2el_ms": None,
                "count_e2el": None,
            },
        ),
        ("vllm_v0", {"prompt_tokens": 100, "prefix_hit_rate": 0.5, "mean_itl_ms": 50.0, "preemptions": None}),
        (
            "sglang",
            {
                "prompt_tokens": 1000,
                "generation_tokens": 70,
                "requests": 6,
                "preemptions": 2,  # not 4: two ranks of one engine
                "prefix_hit_tokens": 250,  # not 500: one source is the sum of the others
                "prefix_hit_rate": 0.25,
                "mean_ttft_ms": 200.0,
                "p99_ttft_at_most_ms": 400.0,
            },
        ),
        (
            "tgi",
            {
                "prompt_tokens": 1000,
                "generation_tokens": 300,
                "requests": 10,
                "prefix_hit_rate": None,
                "mean_ttft_ms": None,
                "mean_tpot_ms": 20.0,
                "mean_e2el_ms": 1000.0,
                "p50_e2el_at_most_ms": 2000.0,
            },
        ),
        (
            "llama_cpp",
            {"prompt_tokens": 400, "generation_tokens": 40, "prefix_hit_rate": 0.75, "requests": None},
        ),
        (
            "tensorrt_llm",
            {
                "prompt_tokens": 1280,
                "generation_tokens": 128,
                "requests": 8,
                "prefix_hit_tokens": None,
                "prefix_hit_rate": 0.75,  # by blocks
                "mean_tpot_ms": 20.0,
            },
        ),
    ],
)
def test_growth_by_hand(name: str, figures: dict[str, Figure]) -> None:
    found = grown(*pages(name))
    assert not found["restarted"]
    assert {key: found[key] for key in figures} == {
        key: pytest.approx(value) if isinstance(value, float) else value for key, value in figures.items()
    }


@pytest.mark.parametrize("name", SERVERS)
def test_every_server_has_every_figure_and_an_idle_one_no_latency(name: str) -> None:
    first, last = pages(name)
    idle = grown(last, last)
    assert list(idle) == list(grown(first, last))
    assert idle["prompt_tokens"] == 0
    assert [key for key, value in idle.items() if key.endswith("_ms") and value is not None] == []
    assert idle["prefix_hit_rate"] is None  # nothing was looked up


def test_a_counter_that_fell_is_a_restart_and_no_number() -> None:
    first, last = pages("vllm")
    found = grown(last, first)
    assert found["restarted"]
    assert (found["prompt_tokens"], found["prefix_hit_rate"], found["mean_ttft_ms"]) == (None, None, None)


def test_an_engine_that_is_gone_is_a_restart() -> None:
    found = grown(
        'vllm:prompt_tokens_total{engine="0"} 5\nvllm:prompt_tokens_total{engine="1"} 5\n',
        'vllm:prompt_tokens_total{engine="0"} 9\n',
    )
    assert (found["restarted"], found["prompt_tokens"]) == (True, None)


def test_buckets_of_unlike_bounds_are_not_added_up() -> None:
    page = """vllm:time_to_first_token_seconds_bucket{{engine="0",le="1"}} {0}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf"}} {0}
vllm:time_to_first_token_seconds_bucket{{engine="1",le="2"}} {0}
vllm:time_to_first_token_seconds_bucket{{engine="1",le="+Inf"}} {0}
"""
    assert grown(page.format(1), page.format(2))["count_ttft"] is None


@given(st.lists(st.floats(0, 20), min_size=1, max_size=50), st.sampled_from((50, 90, 99)))
def test_so_many_percent_are_within_the_bound(values: list[float], percent: float) -> None:
    bounds = (0.5, 1.0, 2.0, 5.0, 10.0, math.inf)
    buckets = Buckets({bound: sum(value <= bound for value in values) for bound in bounds}, sum(values))
    bound = at_most(buckets, percent)
    if bound is None:
        assert sum(value <= 10.0 for value in values) < len(values) * percent / 100
        return
    assert sum(value <= bound for value in values) >= len(values) * percent / 100
    tighter = max((lower for lower in bounds if lower < bound), default=-1.0)
    assert sum(value <= tighter for value in values) < len(values) * percent / 100


def test_levels_of_gauges() -> None:
    found = levels([{"running": 1.0}, {"running": 4.0, "kv_usage": 0.5}, {"running": 1.0}])
    assert (found["mean_running"], found["max_running"]) == (2.0, 4.0)
    assert (found["mean_kv_usage"], found["max_kv_usage"]) == (0.5, 0.5)
    assert (found["mean_waiting"], found["max_waiting"]) == (None, None)


@asynccontextmanager
async def serving(answers: Iterable[str | int], path: str = "/metrics") -> AsyncIterator[str]:
    """A server whose page is the next one of the answers, and the last one from then on; a number is a status."""
    left = list(answers)

    async def answer(_: web.Request) -> web.Response:
        page = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=page) if isinstance(page, int) else web.Response(text=page)

    app = web.Application()
    app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_from_start_to_finish() -> None:
    first, last = pages("vllm")
    async with serving([first, last, 500, last]) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url, every=0.01)
        assert metrics is not None
        await asyncio.sleep(0.1)
        found = await metrics.finish()
    assert found is not None
    assert (found["names_of"], found["where"], found["prompt_tokens"]) == ("vllm", f"{url}/metrics", 1000)
    assert found["looks"] >= 3  # type: ignore[operator]
    assert (found["failed_looks"], found["max_running"], found["max_waiting"]) == (1, 7.0, 4.0)


async def test_metrics_at_another_path() -> None:
    async with serving([pages("tensorrt_llm")[0]], "/prometheus/metrics") as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url)
        assert metrics is not None
        assert metrics.where == f"{url}/prometheus/metrics"
        await metrics.close()


@pytest.mark.parametrize("answer", ["", "other_total 1\n", 404, "vllm:num_requests_running soon\n"])
async def test_a_server_without_metrics_has_none(answer: str | int) -> None:
    async with serving([answer]) as url, aiohttp.ClientSession() as http:
        assert await ServerMetrics.start(http, url) is None


async def test_no_server_has_none() -> None:
    async with aiohttp.ClientSession() as http:
        assert await ServerMetrics.start(http, "http://127.0.0.1:9") is None


async def test_a_server_that_fell_silent_has_no_figures() -> None:
    async with serving([pages("tgi")[0], 503]) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url)
        assert metrics is not None
        assert await metrics.finish() is None


async def test_counters_that_still_move_are_waited_for() -> None:
    late = [f"llamacpp:tokens_predicted_total {count}\n" for count in (0, 10, 20, 30)]
    async with serving(late) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url)
        assert metrics is not None
        found = await metrics.finish()
    assert found is not None
    assert found["generation_tokens"] == 30


async def test_the_projects_own_engine_counts_what_its_answers_tell() -> None:
    async with (
        EngineProcess(("--model", "tiny", "--kv-memory", "16MiB"), lambda _: None) as engine,
        aiohttp.ClientSession() as http,
    ):
        metrics = await ServerMetrics.start(http, engine.url, every=0.02)
        assert metrics is not None

        async def ask(number: int) -> dict[str, int]:
            body = {"model": "tiny", "prompt": "the same words " * 20 + str(number), "max_tokens": 200 + number}
            async with http.post(f"{engine.url}/v1/completions", json={**body, "ignore_eos": True}) as reply:
                usage: dict[str, int] = (await reply.json())["usage"]
                return usage

        usages = await asyncio.gather(*map(ask, range(8)))
        found = await metrics.finish()
    assert found is not None
    assert found["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
    assert found["generation_tokens"] == sum(usage["completion_tokens"] for usage in usages)
    assert (found["requests"], found["restarted"], found["count_ttft"]) == (8, False, 8)
    assert 1 <= found["max_running"] <= 8  # type: ignore[operator]
    assert 0 < found["max_kv_usage"] <= 1  # type: ignore[operator]
    assert 0 < found["prefix_hit_rate"] < 1  # type: ignore[operator]
