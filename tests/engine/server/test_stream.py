"""The step stream against the engine's own state, while requests come, leave, are aborted, and modes switch."""

import asyncio
import itertools
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from aiohttp import web
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from engine.config import EngineConfig
from engine.core_client import CallFailedError, CoreClient, CoreProcess
from engine.messages import Reply
from engine.protocol import EngineInfo, Gap, Parts, Record, Snapshot, decode_item, decode_snapshot
from engine.sampling_params import SamplingParams
from engine.server.app import make_app
from engine.server.hub import StepHub
from engine.server.metrics import Metrics
from engine.server.serve import load
from engine.server.service import Service
from engine.server.settings import ServeSettings
from tests.engine.mirror import mirror_core
from tui.fold import EngineFold

STEPS = 1000


async def events(http: httpx.AsyncClient, **params: int) -> AsyncIterator[Record | Gap]:
    async with http.stream("GET", "/engine/steps", params=params) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                item = decode_item(line.removeprefix("data: ").encode())
                assert not isinstance(item, Snapshot)
                yield item


async def traffic(http: httpx.AsyncClient, seed: int, stop: asyncio.Event) -> None:
    """Requests of all lengths with shared beginnings; some clients leave early."""
    rng = random.Random(seed)
    while not stop.is_set():
        prompt = "shared beginning " * rng.randrange(4) + str(rng.random())
        body = {"prompt": prompt, "max_tokens": rng.choice([1, 5, 40, 120]), "seed": rng.randrange(9)}
        body |= rng.choice([{}, {"n": 3}, {"n": 2, "use_beam_search": True}, {"prompt_logprobs": 1}, {"priority": 1}])
        body |= rng.choice([{}, {"cache_salt": "s"}, {"prefix_cache": False}, {"timeout": 0.05}, {"best_of": 3}])
        if "use_beam_search" in body:
            body.pop("best_of", None)
        ask = asyncio.create_task(http.post("/v1/completions", json=body))
        if rng.random() < 0.3:
            await asyncio.sleep(rng.random() / 20)
            ask.cancel()
        await asyncio.gather(ask, return_exceptions=True)


async def switches(http: httpx.AsyncClient, stop: asyncio.Event) -> None:
    rng = random.Random(0)
    while not stop.is_set():
        change = rng.choice(
            [
                {"batching": rng.choice(["static", "continuous"])},
                {"allocation": rng.choice(["paged", "reserved"])},
                {"prefix_cache": rng.random() < 0.5, "chunked_prefill": rng.random() < 0.5},
                {"max_num_batched_tokens": rng.choice([16, 64, 512])},
                {"max_num_seqs": rng.choice([2, 8, 64])},
                {"scheduling_policy": rng.choice(["fcfs", "priority", "shortest_prefill", "fair"]), "max_wait": 0.2},
                {"max_prefill_chunk": rng.choice([0, 16, 48])},
                {"reserved_fit": rng.choice(["first", "best"])},
            ]
        )
        answer = (await http.patch("/engine/control", json=change)).raise_for_status().json()
        assert {name: answer[name] for name in change} == change
        assert answer["step"] >= 1
        await asyncio.sleep(0.02)


async def test_a_thousand_steps_folded_are_the_snapshot(server) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
        before = (await http.get("/engine/control")).json()
        start = decode_snapshot((await http.get("/engine/snapshot")).content)
        fold = EngineFold.from_snapshot(start)
        stream = events(http, **{"from": start.seq + 1})
        stop = asyncio.Event()
        load = [asyncio.create_task(traffic(http, seed, stop)) for seed in range(12)]
        load.append(asyncio.create_task(switches(http, stop)))
        compared = 0
        end = start.seq + STEPS
        wanted: Snapshot | None = None
        expected = itertools.count(start.seq + 1)
        async for record in stream:
            assert isinstance(record, Record)
            assert record.seq == next(expected)
            fold.apply(record)
            if wanted is not None and record.seq == wanted.seq:
                assert fold.to_snapshot() == wanted
                compared += 1
                wanted = None
                if record.seq >= end:
                    break
            if wanted is None and (record.seq % 100 == 0 or record.seq >= end):
                wanted = decode_snapshot((await http.get("/engine/snapshot")).content)
                if wanted.seq == record.seq:
                    assert fold.to_snapshot() == wanted
                    wanted = None
        stop.set()
        await asyncio.gather(*load)
        await stream.aclose()
        assert compared >= 3
        before.pop("step")
        (await http.patch("/engine/control", json=before)).raise_for_status()


def test_a_stream_without_from_begins_with_the_next_record(http: httpx.Client) -> None:
    newest = http.get("/engine/snapshot").json()["seq"]
    with http.stream("GET", "/engine/steps") as response:
        http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).raise_for_status()
        lines = response.iter_lines()
        assert next(lines) == "event: step"
        assert next(lines) == f"id: {newest + 1}"
        assert json.loads(next(lines).removeprefix("data: "))["seq"] == newest + 1
        assert next(lines) == ""


def test_control_tells_the_step_it_holds_from(http: httpx.Client) -> None:
    answer = http.patch("/engine/control", json={"max_num_seqs": 33}).json()
    assert http.get("/engine/control").json() == answer
    with http.stream("GET", "/engine/steps", params={"from": answer["step"]}) as response:
        data = next(line for line in response.iter_lines() if line.startswith("data: "))
    assert json.loads(data.removeprefix("data: "))["control"]["max_num_seqs"] == 33
    assert http.patch("/engine/control", json={"max_num_seqs": 64}).json()["max_num_seqs"] == 64


def samples(text: str) -> dict[str, float]:
    """`name`, or `name/value` of a label that splits it, to value."""
    splitting = ("finished_reason", "source", "sleep_state", "cause", "by", "part")
    return {
        "/".join([sample.name, *(sample.labels[label] for label in splitting if label in sample.labels)]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def check_metrics(found: dict[str, float], snapshot: Snapshot) -> None:
    counters, pool, sharing = snapshot.counters, snapshot.pool, snapshot.sharing
    assert found["vllm:generation_tokens_total"] == counters.sampled_tokens
    assert found["vllm:num_preemptions_total"] == counters.preemptions
    assert found["paged:steps_total"] == counters.steps
    assert found["vllm:request_success_total/stop"] == counters.stopped
    assert found["vllm:request_success_total/length"] == counters.length_capped
    assert found["vllm:request_success_total/abort"] == counters.aborted
    assert found["vllm:request_success_total/error"] == counters.failed
    assert found["vllm:prefix_cache_queries_total"] == sharing.looked_up_tokens
    assert found["vllm:prefix_cache_hits_total"] == sharing.found_tokens
    assert found["vllm:request_success_total/deadline"] == counters.expired
    for name in ("forks", "copied_blocks", "swapped_out_blocks", "swapped_in_blocks", "recomputed_tokens"):
        assert found[f"paged:{name}_total"] == getattr(counters, name), name
    assert found["paged:expired_requests_total"] == counters.expired
    assert found["paged:forked_tokens_total"] == sharing.forked_tokens
    for cause in ("decoded", "copied", "evicted"):
        assert found[f"paged:prefix_cache_tokens_by_cause_total/{cause}"] == getattr(sharing, f"{cause}_tokens")
    assert found["paged:host_blocks_used"] == snapshot.host_blocks
    assert found["paged:host_blocks"] == snapshot.engine.num_host_blocks
    assert found["vllm:num_requests_waiting"] == snapshot.queue.length
    statuses = [request.status for request in snapshot.requests]
    assert found["vllm:num_requests_running"] == statuses.count("running")
    assert found["paged:num_requests_held"] == statuses.count("held")
    total = snapshot.engine.num_blocks
    assert found["vllm:kv_cache_usage_perc"] == pytest.approx(1 - (pool.free + pool.cached) / total)


def test_metrics_are_the_engines_totals(http: httpx.Client) -> None:
    for n in (1, 1, 3):
        body = {"prompt": "a prompt of three blocks, the second time found", "max_tokens": 5, "ignore_eos": True}
        body["n"] = n
        http.post("/v1/completions", json=body).raise_for_status()
    snapshot = decode_snapshot(http.get("/engine/snapshot").content)
    sharing = snapshot.sharing
    text = http.get("/metrics").text
    found = samples(text)
    check_metrics(found, snapshot)
    assert found["paged:forks_total"] >= 2
    by_kind = [found[f"paged:preemptions_total/{by}"] for by in ("recompute", "swap")]
    assert sum(by_kind) == snapshot.counters.preemptions
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in text
    finished = snapshot.counters
    ended = finished.stopped + finished.length_capped + finished.aborted
    assert found["vllm:e2e_request_latency_seconds_count"] <= ended
    assert found["vllm:time_to_first_token_seconds_count"] >= finished.stopped + finished.length_capped
    assert found["vllm:inter_token_latency_seconds_count"] == (
        finished.sampled_tokens - found["vllm:time_to_first_token_seconds_count"]
    )
    computed, hit = (found[f"vllm:prompt_tokens_by_source_total/{s}"] for s in ("local_compute", "local_cache_hit"))
    assert computed + hit == found["vllm:prompt_tokens_total"]
    assert 32 <= hit <= found["vllm:prefix_cache_hits_total"]
    assert hit == found["vllm:prompt_tokens_cached_total"]
    assert found["vllm:prompt_tokens_cached_by_source_total/device"] == sharing.found_tokens
    for name in ("prompt_tokens", "params_max_tokens", "num_preemptions", "generation_tokens"):
        assert found[f"vllm:request_{name}_count"] == ended + finished.failed + finished.expired, name
    assert found["vllm:request_num_preemptions_sum"] <= snapshot.counters.preemptions
    answered = found["vllm:time_to_first_token_seconds_count"]
    for name in ("e2e_request_latency_seconds", "request_inference_time_seconds"):
        assert found[f"vllm:{name}_count"] == answered, name
    assert (found["vllm:request_prefill_kv_computed_tokens_count"], computed) == (
        answered,
        found["vllm:request_prefill_kv_computed_tokens_sum"],
    )
    assert found["vllm:engine_sleep_state/awake"] == 1
    assert found["process_start_time_seconds"] > 1e9


def test_a_prompt_that_eight_share_is_counted_once_though_each_ends_at_once(http: httpx.Client) -> None:
    before = samples(http.get("/metrics").text)
    rng = random.Random(7)
    body = {"prompt": [rng.randrange(32, 250) for _ in range(100)], "n": 8, "max_tokens": 1, "prefix_cache": False}
    http.post("/v1/completions", json=body).raise_for_status()
    snapshot = decode_snapshot(http.get("/engine/snapshot").content)
    found = samples(http.get("/metrics").text)
    check_metrics(found, snapshot)
    grown = {name: value - before.get(name, 0) for name, value in found.items()}
    assert grown["vllm:prompt_tokens_total"] == 100
    assert grown["vllm:prompt_tokens_by_source_total/local_compute"] == 100
    assert grown["vllm:prompt_tokens_by_source_total/local_cache_hit"] == 0
    assert grown["vllm:generation_tokens_total"] == 8
    assert grown["vllm:time_to_first_token_seconds_count"] == 8
    assert (grown["paged:forks_total"], grown["paged:forked_tokens_total"]) == (7, 700)
    computed, longest = "vllm:request_prefill_kv_computed_tokens", "vllm:request_max_num_generation_tokens"
    assert (grown[f"{computed}_count"], grown[f"{computed}_sum"]) == (8, 100)
    assert (grown[f"{longest}_count"], grown[f"{longest}_sum"]) == (1, 1)
    assert grown["vllm:request_params_max_tokens_sum"] == 8
    assert found["vllm:num_requests_running"] == 0


@asynccontextmanager
async def small_server(hub: StepHub) -> AsyncIterator[tuple[str, Service, CoreClient]]:
    """The real server in this process, with a ring of its own and small socket buffers."""
    config = EngineConfig(model="tiny", dtype="float32", kv_memory=4 << 20)
    service = Service(ServeSettings(("tiny",)), hub)
    core = CoreProcess(config)
    client = service.client = CoreClient(core, service.on_step)
    running = asyncio.create_task(client.run(service.on_ready))
    assert await load(config, service, client)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    runner = web.AppRunner(make_app(service), handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", service, client
    finally:
        hub.close()
        await runner.cleanup()
        await client.shutdown()
        await running


async def test_a_stopped_reader_loses_records_and_costs_nothing() -> None:
    hub = StepHub(max_records=64)
    async with small_server(hub) as (url, service, _), httpx.AsyncClient(base_url=url, timeout=60) as http:
        host, port = url.removeprefix("http://").split(":")
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (host, int(port)))
        await loop.sock_sendall(connection, b"GET /engine/steps?from=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        body = {"prompt": "a", "max_tokens": 100, "ignore_eos": True, "n": 8}
        for _ in range(4):  # nobody reads the stream meanwhile, and every step is made
            (await http.post("/v1/completions", json=body)).raise_for_status()
        made = decode_snapshot(await service.snapshot()).seq
        assert made >= 400
        assert len(hub) == 64
        assert hub.newest == made

        reader, writer = await asyncio.open_connection(sock=connection)
        covered: list[int] = []
        gaps = 0
        while not covered or covered[-1] < made:
            line = await reader.readline()
            if line.startswith(b"data: "):
                item = decode_item(line.removeprefix(b"data: "))
                if isinstance(item, Gap):
                    gaps += 1
                    covered += range(item.first, item.last + 1)
                else:
                    assert isinstance(item, Record)
                    covered.append(item.seq)
        writer.close()
        assert gaps >= 1
        assert covered == list(range(1, made + 1))


async def test_control_is_what_the_engine_has_even_if_its_caller_left() -> None:
    async with small_server(StepHub()) as (url, service, client), httpx.AsyncClient(base_url=url) as http:
        patch = asyncio.create_task(client.patch_control(lambda control: replace(control, batching="static")))
        for _ in range(5):  # the change is on its way, and the answer is not here
            await asyncio.sleep(0)
        patch.cancel()
        await asyncio.gather(patch, return_exceptions=True)
        assert decode_snapshot(await service.snapshot()).control.batching == "static"
        assert (await http.get("/engine/control")).json()["batching"] == "static"
        assert (await http.patch("/engine/control", json={"max_num_seqs": 7})).json()["batching"] == "static"


async def test_text_with_a_token_that_the_model_lacks_is_refused() -> None:
    async with small_server(StepHub()) as (url, service, _), httpx.AsyncClient(base_url=url, timeout=60) as http:
        assert service.loaded is not None
        service.loaded = service.loaded._replace(vocab_size=256)  # as where tokens were added to the tokenizer alone
        for route, fields, param in (
            ("/v1/completions", {"prompt": "a<|im_end|>"}, "prompt"),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ):
            answer = await http.post(route, json=fields)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param
            assert "not in the vocabulary" in answer.json()["error"]["message"]
        assert (await http.post("/v1/completions", json={"prompt": "a"})).status_code == 200


async def test_metrics_catch_up_after_lost_records() -> None:
    records: list[Record] = []
    async with small_server(StepHub()) as (url, service, client):
        info = client.info
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            body = {"prompt": "a b c d e f g h i j k", "max_tokens": 20, "n": 3}
            (await http.post("/v1/completions", json=body)).raise_for_status()
            middle = decode_snapshot(await service.snapshot())
            (await http.post("/v1/completions", json=body)).raise_for_status()
            end = decode_snapshot(await service.snapshot())
            async for item in events(http, **{"from": 1}):
                assert isinstance(item, Record)
                records.append(item)
                if item.seq == end.seq:
                    break
    assert isinstance(info, EngineInfo)
    metrics = Metrics(info, "tiny")
    for record in records:
        if record.seq not in range(5, 15):
            metrics.observe(record)
        if record.seq == 15:
            assert metrics.lost
            assert samples(metrics.text().decode())["paged:steps_total"] == 4
        if record.seq == middle.seq:
            metrics.resume(middle)
            assert not metrics.lost
            check_metrics(samples(metrics.text().decode()), middle)
    found = samples(metrics.text().decode())
    check_metrics(found, end)
    assert found["paged:lost_records_total"] == middle.seq - 4


def test_metrics_count_restarts_that_come_to_nothing_too() -> None:
    metrics = Metrics(mirror_core().info, "tiny")
    metrics.set_up(False, restarts=3)  # none of them served
    metrics.begin_again()
    metrics.set_up(True, restarts=3)
    assert samples(metrics.text().decode())["paged:engine_restarts_total"] == 3


async def test_metrics_outlast_a_question_that_fails() -> None:
    async with small_server(StepHub()) as (url, service, client), httpx.AsyncClient(base_url=url) as http:

        async def fails() -> Reply:
            raise CallFailedError("the engine could not answer")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "snapshot", fails)
            assert service.metrics is not None
            service.metrics.lost = True
            (await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})).raise_for_status()
            while service._resuming is None:
                await asyncio.sleep(0.01)
            await service._resuming
            assert service.metrics.lost
        (await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})).raise_for_status()
        while service.metrics.lost:
            await asyncio.sleep(0.01)


def test_metrics_add_up_where_the_forward_went() -> None:
    core = mirror_core()
    metrics = Metrics(core.info, "tiny")
    core.add("a", [1, 2, 3], SamplingParams(max_tokens=3))
    parts = (None, Parts(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0), Parts(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5))
    for one in parts:
        _, record = core.step()
        assert record is not None
        metrics.observe(replace(record, parts=one))
    found = samples(metrics.text().decode())
    totals = [found[f"paged:forward_part_seconds_total/{name}"] for name in Parts.__struct_fields__]
    assert totals == [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]
