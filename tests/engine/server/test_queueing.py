"""How a request is queued and cached: priority, timeout, cancelling, salts, opting out, and clearing the cache."""

import asyncio
import json
import time

import httpx
import pytest

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


async def test_cancelling_any_beam_ends_its_search(server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        task = asyncio.create_task(
            post(http, prompt="a", max_tokens=900, ignore_eos=True, use_beam_search=True, beam_width=3, n=2)
        )
        while len(requests := (await http.get("/engine/snapshot")).json()["requests"]) < 3:
            await asyncio.sleep(0.01)
        assert (await http.delete(f"/engine/requests/{requests[-1]['request']}")).status_code == 200
        answer = (await task).json()
        assert [(c["text"], c["finish_reason"]) for c in answer["choices"]] == [("", "abort")] * 2
        await wait_for(http, 0)


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
        ({"priority": 1.5}, "priority", "got float"),
        ({"timeout": 0}, "timeout", "more than 0, at most 86400"),
        ({"timeout": -1}, "timeout", "more than 0, at most 86400"),
        ({"timeout": 86401}, "timeout", "more than 0, at most 86400"),
        ({"cache_salt": ""}, "cache_salt", "1 to 1024"),
        ({"cache_salt": "x" * 1025}, "cache_salt", "1 to 1024"),
        ({"cache_salt": 5}, "cache_salt", "got int"),
        ({"prefix_cache": "no"}, "prefix_cache", "bool"),
    ],
)
def test_bad_fields(http: httpx.Client, fields: dict, param: str, words: str) -> None:
    answer = http.post("/v1/completions", json={"prompt": "a", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert words in answer.json()["error"]["message"]
