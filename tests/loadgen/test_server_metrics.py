"""A server's figures over a run: from recorded pages by hand, over HTTP, and of the project's own engine."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp import web

from loadgen import server_metrics
from loadgen.engine_process import EngineProcess
from loadgen.server_figures import COUNTERS, GAUGES, HISTOGRAMS, Figures, Levels, growth, untold
from loadgen.server_metrics import NoMetrics, ServerMetrics, find_metrics, pages_of
from servers.measures import measure
from servers.reading import Reading, read
from tests.loadgen.server_pages import SERVERS, pages
from tests.servers.pages import EngineFigures
from tests.servers.stand_in import Mode, StandIn


def reading(page: str) -> Reading:
    found = read(page)
    assert found is not None
    return found


def grown(first: str, last: str) -> Figures:
    return growth(measure(reading(first), reading(last), 10.0))


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
def test_growth_by_hand(name: str, figures: Figures) -> None:
    found = grown(*pages(name))
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
    assert (found["prompt_tokens"], found["prefix_hit_rate"], found["mean_ttft_ms"]) == (None, None, None)


def test_levels_of_gauges() -> None:
    levels = Levels()
    for page in ("vllm:num_requests_running 1\n", "vllm:num_requests_running 4\nvllm:kv_cache_usage_perc 0.5\n"):
        levels.take(reading(page))
    levels.take(reading("vllm:num_requests_running 1\nvllm:kv_cache_usage_perc NaN\nvllm:num_requests_waiting +Inf\n"))
    found = levels.figures()
    assert (found["mean_running"], found["max_running"]) == (2.0, 4.0)
    assert (found["mean_kv_usage"], found["max_kv_usage"]) == (0.5, 0.5)
    assert (found["mean_waiting"], found["max_waiting"]) == (None, None)


def test_engines_are_told_apart_and_shares_of_memory_weighted() -> None:
    levels = Levels()
    for page in pages("vllm"):
        levels.take(reading(page))
    large, small = reading(pages("vllm")[0]).engines
    first = {engine: levels.figures(engine)["max_kv_usage"] for engine in (large, small)}
    assert levels.figures()["max_kv_usage"] < max(first.values())
    assert levels.figures()["max_running"] <= sum(levels.figures(engine)["max_running"] for engine in (large, small))


@pytest.mark.parametrize("name", SERVERS)
def test_what_a_server_does_not_tell_is_named(name: str) -> None:
    lacking = untold(reading(pages(name)[1]), {"ttft": "why"})
    found = grown(*pages(name))
    assert set(lacking) <= {*COUNTERS, *GAUGES, *HISTOGRAMS}
    for term in lacking:
        told = found.get(term, found.get(f"count_{term}"))
        assert told is None, "what is told is not said to be untold"
    assert lacking.get("ttft", "why") == "why"
    assert ("ttft" in lacking) == (name in ("vllm_v0", "tgi", "llama_cpp", "tensorrt_llm"))


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
    async with serving([first, first, first, last, 500, last]) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url, every=0.01)
        while metrics.looks < 3:
            await asyncio.sleep(0.005)
        found = await metrics.finish()
    assert found is not None
    assert (found["names_of"], found["where"], found["prompt_tokens"]) == ("vllm", f"{url}/metrics", 1000)
    assert found["looks"] >= 3  # type: ignore[operator]
    assert (found["failed_looks"], found["max_running"], found["max_waiting"]) == (1, 7.0, 4.0)


async def test_metrics_at_another_path() -> None:
    async with serving([pages("tensorrt_llm")[0]], "/prometheus/metrics") as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url)
        assert metrics.where == f"{url}/prometheus/metrics"
        await metrics.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", "/metrics tells no metrics that are known here"),
        ("other_total 1\n", r"names begin with .*vllm:, "),
        (404, "/metrics answered 404"),
        (401, "/metrics answered 401"),
        ("vllm:num_requests_running soon\n", "/metrics has a line that cannot be read: .*soon"),
    ],
)
async def test_a_server_without_metrics_has_none(answer: str | int, words: str) -> None:
    async with serving([answer]) as url, aiohttp.ClientSession() as http:
        with pytest.raises(NoMetrics, match=words):
            await ServerMetrics.start(http, url)


async def test_no_server_has_none() -> None:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(NoMetrics, match=r"http://127\.0\.0\.1:9/metrics cannot be asked: "):
            await ServerMetrics.start(http, "http://127.0.0.1:9")


async def test_of_a_server_that_fell_silent_what_was_seen_is_told() -> None:
    async with serving([pages("tgi")[0], 503]) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url)
        found = await metrics.finish()
    assert (found["lost"], found["looks"], found["max_running"]) == ("answered 503", 0, None)
    assert (found["prompt_tokens"], found["mean_e2el_ms"], found["restarted"]) == (None, None, False)


async def test_a_restart_in_between_is_seen_though_the_end_is_higher() -> None:
    counts = [f"vllm:prompt_tokens_total {count}\n" for count in (100, 100, 3, 500)]
    async with serving(counts) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url, every=0.01)
        while not metrics.restarts:
            await asyncio.sleep(0.005)
        found = await metrics.finish()
    assert (found["restarted"], len(found["restarts"]), found["prompt_tokens"]) == (True, 1, None)
    assert found["lost"] == ""


@pytest.mark.parametrize("mode", ["hang", "drip", "endless"])
async def test_a_page_that_does_not_come_is_waited_for_no_longer_than_allowed(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_metrics, "TIMEOUT", 0.3)
    monkeypatch.setattr(server_metrics, "LONGEST_PAGE", 1 << 20)
    async with StandIn("vllm") as server, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, server.url, every=0.05)
        server.mode = mode
        began = time.monotonic()
        while not metrics.failed:
            await asyncio.sleep(0.01)
        found = await metrics.finish()
        with pytest.raises(NoMetrics, match=r"/metrics (did not answer within 0\.3 s|is longer than 1,048,576 bytes)"):
            await find_metrics(http, server.url)
        assert time.monotonic() - began < 20 * 0.3, "bounded, however slow the machine"
    assert found["failed_looks"] >= 1
    assert found["why_failed"] == found["lost"]
    assert found["lost"] in ("did not answer within 0.3 s", "is longer than 1,048,576 bytes")
    assert found["prompt_tokens"] is None


async def test_a_redirect_is_not_followed_with_keys() -> None:
    async with StandIn("vllm") as server, aiohttp.ClientSession() as http:
        server.mode = "moved"
        with pytest.raises(NoMetrics, match="answered 307"):
            await find_metrics(http, server.url)


def test_where_metrics_may_be() -> None:
    assert pages_of("http://a:1")[0] == "http://a:1/metrics"
    assert "http://a:1/prometheus/metrics" in pages_of("http://a:1/")
    assert pages_of("http://a:8002/other/metrics") == ("http://a:8002/other/metrics",)


async def test_each_engine_of_several_is_told() -> None:
    engines = [EngineFigures(rank="0", kv_blocks=300), EngineFigures(rank="1", kv_blocks=100)]
    async with StandIn("vllm", engines) as server, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, server.url, every=0.01)
        engines[0].kv_usage, engines[1].kv_usage, engines[0].running = 0.8, 0.4, 3
        engines[0].serve(4, prompt=100, cached=50)
        engines[1].serve(1, prompt=100)
        while metrics.looks < 3:
            await asyncio.sleep(0.005)
        found = await metrics.finish()
    assert [one["rank"] for one in found["engines"]] == ["0", "1"]
    assert [one["prompt_tokens"] for one in found["engines"]] == [400, 100]
    assert [one["prefix_hit_rate"] for one in found["engines"]] == [0.5, 0.0]
    assert [one["max_kv_usage"] for one in found["engines"]] == [0.8, 0.4]
    assert (found["prompt_tokens"], found["prefix_hit_rate"], found["max_running"]) == (500, 0.4, 3)
    assert found["max_kv_usage"] == pytest.approx(0.7), "weighted by the memory, no sum"


async def test_figures_are_numbers_that_json_has() -> None:
    async with StandIn("vllm") as server, aiohttp.ClientSession() as http:
        server.edit = lambda page: (
            page.replace("vllm:num_requests_running{", 'vllm:num_requests_running{x="",')
            + ('vllm:num_requests_waiting{engine="9",model_name="m"} NaN\n')
        )
        metrics = await ServerMetrics.start(http, server.url)
        found = await metrics.finish()
    assert b"NaN" not in msgspec.json.encode(found)
    assert not [value for value in found.values() if isinstance(value, float) and not math.isfinite(value)]


async def test_counters_that_still_move_are_waited_for() -> None:
    late = [f"llamacpp:tokens_predicted_total {count}\n" for count in (0, 0, 10, 20, 30)]
    async with serving(late) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url)
        found = await metrics.finish()
    assert found is not None
    assert found["generation_tokens"] == 30


async def test_what_is_counted_late_of_earlier_requests_is_not_of_the_run() -> None:
    """A trial request's tokens, or those of the run before."""
    late = [f"llamacpp:tokens_predicted_total {count}\n" for count in (0, 2, 2, 12)]
    async with serving(late) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url)
        found = await metrics.finish()
    assert found["generation_tokens"] == 10


async def test_one_last_look_that_fails_does_not_lose_the_run() -> None:
    first, last = pages("vllm")
    async with serving([first, first, 503, 503, last]) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url)
        found = await metrics.finish()
    assert (found["lost"], found["prompt_tokens"]) == ("", 1000)


_STEPS = """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 1
nv_trt_llm_general_metrics{general_type="iteration_counter",model="tensorrt_llm",version="1"} COUNT
"""
_RESPONSES = """\
nv_inference_first_response_histogram_ms_bucket{model="ensemble",version="1",le="100"} COUNT
nv_inference_first_response_histogram_ms_bucket{model="ensemble",version="1",le="+Inf"} COUNT
nv_inference_first_response_histogram_ms_sum{model="ensemble",version="1"} COUNT0
nv_inference_first_response_histogram_ms_count{model="ensemble",version="1"} COUNT
"""


@pytest.mark.parametrize(("counts", "restarted"), [((5, 6, 9), False), ((5, 6, 3), True)])
async def test_looks_without_buckets_are_no_restart(counts: tuple[int, ...], restarted: bool) -> None:
    """Triton tells the first responses of its ensemble, and nothing else by that name."""
    told = [(_STEPS + _RESPONSES).replace("COUNT", str(count)) for count in (counts[0], *counts)]
    async with serving(told) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url, every=0.01)
        while metrics.looks < 2:
            await asyncio.sleep(0.005)
        found = await metrics.finish()
    assert (found["restarted"], found["count_ttft"]) == (restarted, None if restarted else 4)


async def test_a_restart_that_only_histograms_show_is_one() -> None:
    told = [_STEPS.replace("COUNT", "7") + _RESPONSES.replace("COUNT", count) for count in ("5", "5", "3")]
    async with serving(told) as url, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, url)
        found = await metrics.finish()
    assert (found["restarted"], len(found["restarts"]), found["count_ttft"]) == (True, 1, None)


@pytest.mark.parametrize("what", ["read", "taken"])
async def test_a_page_that_takes_long_is_looked_at_rarely(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait while a page is read, and while one is taken that has no end."""
    async with StandIn("vllm") as server, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, server.url, every=0.01)
        while metrics.looks < 3:
            await asyncio.sleep(0.005)
        if what == "read":
            monkeypatch.setattr(server_metrics, "read", lambda page: time.sleep(0.03) or read(page))
        else:
            monkeypatch.setattr(server_metrics, "LONGEST_PAGE", 1 << 24)
            server.mode = "endless"
        told = metrics.looks + metrics.failed
        while metrics.looks + metrics.failed < told + 2:  # the one that may be under way, and a slow one
            await asyncio.sleep(0.005)
        asked = server.metrics_asked
        await asyncio.sleep(0.1)
        assert server.metrics_asked == asked
        await metrics.close()


@pytest.mark.parametrize(("bulk", "beside"), [(10, False), (5_000, True)])
async def test_a_long_page_is_read_beside_the_requests(
    bulk: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def noted(page: str) -> Reading | None:
        threads.add(threading.current_thread())
        return read(page)

    monkeypatch.setattr(server_metrics, "read", noted)
    async with StandIn("vllm", bulk=bulk) as server, aiohttp.ClientSession() as http:
        metrics = await ServerMetrics.start(http, server.url, every=0.01)
        while metrics.looks < 1:
            await asyncio.sleep(0.005)
        await metrics.finish()
    assert (threading.main_thread() not in threads) is beside


async def test_the_projects_own_engine_counts_what_its_answers_tell() -> None:
    async with (
        EngineProcess(("--model", "tiny", "--kv-memory", "16MiB"), lambda _: None) as engine,
        aiohttp.ClientSession() as http,
    ):
        metrics = await ServerMetrics.start(http, engine.url, every=0.02)

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
