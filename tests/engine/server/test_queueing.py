"""How a request is queued and cached: priority, timeout, cancelling, salts, opting out, and clearing the cache."""

import asyncio
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from engine.protocol import decode_item

LONG = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True}


def ask(http: httpx.Client, **fields) -> dict:
    body = {"prompt": "x" * 40, "max_tokens": 2, "temperature": 0, **fields}
    return http.post("/v1/completions", json=body).raise_for_status().json()


def cached(http: httpx.Client, **fields) -> int:
    return ask(http, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_equal_prompts_under_different_salts_share_nothing(http: httpx.Client) -> None:
    prompt = "%salted prompt " * 5
    assert cached(http, prompt=prompt, cache_salt="one") == 0
    assert cached(http, prompt=prompt, cache_salt="two") == 0
    assert cached(http, prompt=prompt) == 0
    assert cached(http, prompt=prompt, cache_salt="one") >= 64
    assert cached(http, prompt=prompt) >= 64


def test_a_request_that_opts_out_finds_nothing_and_leaves_nothing(http: httpx.Client) -> None:
    prompt = "~secret prompt " * 5  # no other prompt begins so: not even one token is found
    assert cached(http, prompt=prompt, prefix_cache=False) == 0
    assert cached(http, prompt=prompt) == 0
    assert cached(http, prompt=prompt, prefix_cache=False) == 0
    assert cached(http, prompt=prompt, prefix_cache=True) >= 64


def test_clearing_the_cache(http: httpx.Client, server) -> None:
    prompt = "#to be forgotten " * 5
    ask(http, prompt=prompt)
    held = server.snapshot()["pool"]["cached"]
    assert held >= 5
    answer = http.post("/engine/cache/clear").raise_for_status().json()
    assert answer["cleared_blocks"] == held
    state = server.snapshot()
    assert (state["pool"]["cached"], state["seq"]) == (0, answer["step"])
    with http.stream("GET", "/engine/steps", params={"from": answer["step"]}) as response:
        record = next(line for line in response.iter_lines() if line.startswith("data: "))
    assert json.loads(record.removeprefix("data: "))["cleared"] == held
    assert cached(http, prompt=prompt) == 0
    assert http.get("/engine/cache/clear").status_code == 405


async def wait_for(http: httpx.AsyncClient, count: int) -> list[dict]:
    """The live requests, once there are `count`."""
    while len(requests := (await http.get("/engine/snapshot")).json()["requests"]) != count:
        await asyncio.sleep(0.01)
    return requests


async def post(http: httpx.AsyncClient, **fields) -> httpx.Response:
    return await http.post("/v1/completions", json={"prompt": "x" * 40, "max_tokens": 2, **fields})


async def test_a_lower_priority_number_goes_first(server) -> None:
    order: list[int] = []

    async def one(http: httpx.AsyncClient, priority: int) -> None:
        (await post(http, priority=priority, max_tokens=1)).raise_for_status()
        order.append(priority)

    with server.control(max_num_seqs=1, scheduling_policy="priority"):
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            running = asyncio.create_task(post(http, **LONG))
            await wait_for(http, 1)
            waiting = []
            for i, priority in enumerate((7, 2, 2**31 - 1, 0)):
                waiting.append(asyncio.create_task(one(http, priority)))
                await wait_for(http, 2 + i)
            running.cancel()
            await asyncio.gather(*waiting)
    assert order == [0, 2, 7, 2**31 - 1]


def test_a_deadline_ends_an_answer_with_what_it_has(http: httpx.Client, client) -> None:
    begun = time.monotonic()
    answer = ask(http, **LONG, timeout=0.4, n=2)
    assert time.monotonic() - begun < 5
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "deadline"
        assert choice["text"]
    assert answer["usage"]["completion_tokens"] > 2
    chunks = list(
        client.completions.create(
            model="tiny", prompt="a", max_tokens=4000, stream=True, extra_body={"ignore_eos": True, "timeout": 0.4}
        )
    )
    assert chunks[-1].choices[0].finish_reason == "deadline"
    assert len(chunks) > 2


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 2}, {"use_beam_search": True, "beam_width": 2}])
async def test_a_deadline_that_passes_in_the_queue_is_a_504(server, fields: dict) -> None:
    before = server.snapshot()["counters"]["expired"]
    with server.control(max_num_seqs=2, batching="static"):
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            running = asyncio.create_task(post(http, **LONG))
            await wait_for(http, 1)
            answer = await post(http, timeout=0.2, **fields)
            assert answer.status_code == 504
            error = answer.json()["error"]
            assert (error["param"], error["code"]) == ("timeout", "deadline_exceeded")
            assert "0.2 s passed" in error["message"]
            await wait_for(http, 1)
            running.cancel()
            await wait_for(http, 0)
    assert server.snapshot()["counters"]["expired"] > before


async def test_cancelling_a_request_answers_its_client(server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        task = asyncio.create_task(post(http, **LONG, n=2))
        requests = await wait_for(http, 2)
        while not all(request["num_tokens"] > 5 for request in requests):
            requests = await wait_for(http, 2)
        second = requests[1]["request"]
        assert (await http.delete(f"/engine/requests/{second}")).json() == {"cancelled": [second]}
        await asyncio.sleep(0.05)
        (first,) = await wait_for(http, 1)
        gone = await http.delete(f"/engine/requests/{second}")
        assert gone.status_code == 404
        assert second in gone.json()["error"]["message"]
        assert (await http.delete(f"/engine/requests/{first['request']}")).status_code == 200
        answer = (await task).json()
        assert [choice["finish_reason"] for choice in answer["choices"]] == ["abort", "abort"]
        assert len(answer["choices"][0]["text"]) > 0
        await wait_for(http, 0)


async def test_cancelling_a_stream(server) -> None:
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60) as http,
        http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response,
    ):
        chunks = []
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line.removeprefix("data: ")))
                if len(chunks) == 3:
                    assert (await http.delete(f"/engine/requests/{chunks[0]['id']}")).status_code == 200
    assert chunks[-1]["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("fields", [{"n": 3}, {"use_beam_search": True, "beam_width": 3}])
async def test_cancelling_before_the_prompt_is_computed_ends_the_siblings(server, fields: dict) -> None:
    with server.control(max_num_seqs=3, batching="static"):
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            running = asyncio.create_task(post(http, **LONG))
            await wait_for(http, 1)
            task = asyncio.create_task(post(http, **fields))
            while not (waiting := (await http.get("/engine/snapshot")).json()["requests"][1:]):
                await asyncio.sleep(0.01)
            ended = await http.delete(f"/engine/requests/{waiting[0]['request']}")
            assert waiting[0]["request"] in ended.json()["cancelled"]
            answer = (await task).json()
            assert {choice["finish_reason"] for choice in answer["choices"]} == {"abort"}
            await wait_for(http, 1)
            running.cancel()
            await wait_for(http, 0)


SEARCH = {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "use_beam_search": True, "beam_width": 3, "n": 2}


async def cancel_beams(server, which: int, **fields) -> dict:
    """The answer to a search of which that beam (-1: the last) is cancelled once it has a few tokens."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        task = asyncio.create_task(post(http, **{**SEARCH, **fields}))
        requests: list[dict] = []
        while len(requests) < 3 or requests[0]["num_tokens"] < 8:
            requests = (await http.get("/engine/snapshot")).json()["requests"]
        assert (await http.delete(f"/engine/requests/{requests[which]['request']}")).status_code == 200
        answer = (await asyncio.wait_for(task, 20)).raise_for_status().json()
        await wait_for(http, 0)
    return answer


@pytest.mark.parametrize("which", [0, -1])
async def test_a_cancelled_search_answers_the_beams_it_was_at(server, which: int) -> None:
    answer = await cancel_beams(server, which)
    choices = answer["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["abort"] * 2
    assert choices[0]["text"] != choices[1]["text"]
    assert choices[0]["score"] >= choices[1]["score"]
    length, odd = divmod(answer["usage"]["completion_tokens"], 3)  # of three beams, equally long
    assert (length >= 7, odd) == (True, 0)
    for choice in choices:
        assert choice["score"] == pytest.approx(choice["cumulative_logprob"] / length)
    assert answer["usage"]["prompt_tokens"] == 1


async def test_a_cancelled_search_answers_finished_sequences_first(server) -> None:
    ends = list(range(64))  # some beams end soon; with "never" the search goes on
    options = {"ignore_eos": True, "stop_token_ids": ends, "early_stopping": "never", "length_penalty": 10.0}
    answer = await cancel_beams(server, 0, **options, n=3)
    reasons = [choice["finish_reason"] for choice in answer["choices"]]
    assert "stop" in reasons
    assert reasons == sorted(reasons, reverse=True)  # "stop" comes before "abort"


def test_a_search_whose_time_is_over_answers_what_it_has(http: httpx.Client) -> None:
    answer = ask(http, **{**SEARCH, "beam_width": 2, "max_tokens": 3000}, timeout=0.4)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["deadline"] * 2
    assert all(choice["text"] and choice["score"] < 0 for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] > 2
    assert answer["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize("fields", [{"n": 3}, {"prompt": ["a", "b"], "n": 2}, {"best_of": 3}, SEARCH])
async def test_the_clients_own_id_cancels_all_of_its_answer(server, fields: dict) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        other = asyncio.create_task(post(http, **LONG))
        (kept,) = await wait_for(http, 1)
        task = asyncio.create_task(post(http, **{**LONG, "max_tokens": 900, **fields}))
        requests = await wait_for(http, 1 + 3 + ("prompt" in fields and isinstance(fields["prompt"], list)))
        mine = [request["request"] for request in requests if request["request"] != kept["request"]]
        (own,) = {name.rpartition("-")[0] for name in mine}
        for name in (own[:-1], own.partition("-")[0], f"{own}-9", f"{own}-"):
            assert (await http.delete(f"/engine/requests/{name}")).status_code == 404
        ended = (await http.delete(f"/engine/requests/{own}")).raise_for_status().json()["cancelled"]
        assert sorted(ended) == (mine[:1] if "use_beam_search" in fields else sorted(mine))
        answer = (await asyncio.wait_for(task, 20)).raise_for_status().json()
        assert answer["id"] == own
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"abort"}
        assert await wait_for(http, 1)
        assert (await http.delete(f"/engine/requests/{own}")).status_code == 404
        other.cancel()
        await wait_for(http, 0)


async def test_candidates_that_were_cut_short_come_after_whole_ones(server) -> None:
    letters = {str(i): 100 for i in range(64, 90)}  # other letters, other log-probabilities
    body = {"prompt": "q", "max_tokens": 900, "ignore_eos": True, "seed": 5, "logit_bias": letters}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        every = (await post(http, **body, n=4, logprobs=0)).json()["choices"]
        rows = [choice["logprobs"]["token_logprobs"] for choice in every]
        worst = min(range(4), key=lambda i: sum(rows[i]) / len(rows[i]))
        task = asyncio.create_task(post(http, **body, best_of=4))
        requests = await wait_for(http, 4)
        while not all(request["num_tokens"] > 20 for request in requests):
            requests = await wait_for(http, 4)
        names = sorted(request["request"] for request in requests)
        for i, name in enumerate(names):
            if i != worst:
                assert (await http.delete(f"/engine/requests/{name}")).status_code == 200
        (answer,) = (await task).raise_for_status().json()["choices"]
    assert answer["finish_reason"] == "length"
    assert answer["text"] == every[worst]["text"]


def test_an_unknown_request_cannot_be_cancelled(http: httpx.Client) -> None:
    answer = http.delete("/engine/requests/cmpl-nonsense")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"


async def test_swapped_requests_answer_as_undisturbed_ones_and_are_counted(start_server) -> None:
    options = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "64KiB", "--check-invariants")
    server = start_server(*options, "--swap-space", "64KiB", "--preempt", "swap")  # 8 blocks, and 8 of the host's
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        bodies = [{"prompt": letter * 30, "max_tokens": 60, "ignore_eos": True, "temperature": 0} for letter in "pqr"]
        alone = [(await post(http, **body)).json()["choices"][0]["text"] for body in bodies]
        answers = await asyncio.gather(*(post(http, **body) for body in bodies))
        assert [answer.json()["choices"][0]["text"] for answer in answers] == alone
        state = (await http.get("/engine/snapshot")).json()
        metrics = (await http.get("/metrics")).text
    counters, labels = state["counters"], 'engine="0",model_name="tiny"'
    assert state["engine"]["num_host_blocks"] == 8
    assert counters["preemptions"] >= 1
    assert counters["swapped_in_blocks"] >= 1
    assert f'paged:preemptions_total{{by="swap",{labels}}} {counters["preemptions"]:.1f}' in metrics
    assert f"paged:swapped_in_blocks_total{{{labels}}} {counters['swapped_in_blocks']:.1f}" in metrics
    assert server.stop() == 0
    assert server.stderr.read_text() == ""


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"priority": -1}, "priority", "0 to 2147483647"),
        ({"priority": 2**31}, "priority", "0 to 2147483647"),
        ({"priority": 1.5}, "priority", "an integer from 0 to 2147483647, got 1.5"),
        ({"priority": "high"}, "priority", 'an integer from 0 to 2147483647, got "high"'),
        ({"timeout": 0}, "timeout", "more than 0 and at most 86400"),
        ({"timeout": -1}, "timeout", "more than 0 and at most 86400"),
        ({"timeout": "1"}, "timeout", 'a number more than 0 and at most 86400, got "1"'),
        ({"timeout": 86401}, "timeout", "more than 0 and at most 86400"),
        ({"cache_salt": ""}, "cache_salt", "1 to 1024"),
        ({"cache_salt": "x" * 1025}, "cache_salt", "1 to 1024 characters, got 1025 characters"),
        ({"cache_salt": 5}, "cache_salt", "a string of 1 to 1024 characters, got 5"),
        ({"prefix_cache": "no"}, "prefix_cache", 'true or false, got "no"'),
    ],
)
def test_bad_fields(http: httpx.Client, fields: dict, param: str, words: str) -> None:
    answer = http.post("/v1/completions", json={"prompt": "a", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert words in answer.json()["error"]["message"]


def test_what_a_request_waits_for_the_engine_to_look_up_counts(server) -> None:
    """The core is stopped, as if in a long step: a request that comes meanwhile has come then, not when it is read."""
    (core,) = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    seen = server.snapshot()["seq"]
    os.kill(int(core), signal.SIGSTOP)
    try:
        with ThreadPoolExecutor() as pool:
            body = {"prompt": "meanwhile", "max_tokens": 1}
            answer = pool.submit(lambda: server.http.post("/v1/completions", json=body).raise_for_status())
            time.sleep(0.6)
            os.kill(int(core), signal.SIGCONT)
            answer.result(30)
    finally:
        os.kill(int(core), signal.SIGCONT)
    with server.http.stream("GET", "/engine/steps", params={"from": seen + 1}) as stream:
        items = (decode_item(line[6:].encode()) for line in stream.iter_lines() if line.startswith("data: "))
        record = next(item for item in items if item.arrived)
    assert record.time - record.arrived[0].time >= 0.5
