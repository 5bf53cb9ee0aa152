"""Steps that fail in a server under load: every request ends with a result or a stated error, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx

REQUESTS = 36


def body(index: int) -> dict[str, Any]:
    """Of all kinds: streamed or not, forked, searched, scored, with prompts that begin alike."""
    asked: dict[str, Any] = {
        "prompt": "The sea is wide and the night is long. " * (1 + index % 3) + str(index % 5),
        "max_tokens": 6 + index % 13,
        "ignore_eos": True,
        "stream": index % 2 == 0,
    }
    match index % 6:
        case 1:
            asked |= {"n": 3, "seed": index}
        case 3:
            asked |= {"use_beam_search": True, "n": 2, "temperature": 0}
        case 4:
            asked |= {"stream": False, "prompt_logprobs": 1, "temperature": 0}
    return asked


async def ask(http: httpx.AsyncClient, index: int) -> str:
    """How it ended: `result`, or the error's message."""
    asked = body(index)
    if not asked["stream"]:
        answer = await http.post("/v1/completions", json=asked)
        if answer.status_code == 200:
            assert all(choice["finish_reason"] == "length" for choice in answer.json()["choices"])
            return "result"
        assert answer.status_code == 500
        return str(answer.json()["error"]["message"])
    async with http.stream("POST", "/v1/completions", json=asked) as response:
        if response.status_code != 200:  # it failed before it had anything to tell
            assert response.status_code == 500
            return str(json.loads(await response.aread())["error"]["message"])
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    errors = [event["error"]["message"] for event in events if "error" in event]
    if errors:
        return str(errors[0])
    assert lines[-1] == "[DONE]"
    assert events[-1]["choices"][0]["finish_reason"] == "length" or not events[-1]["choices"]
    return "result"


async def ask_all(url: str) -> Counter[str]:
    limits = httpx.Limits(max_connections=REQUESTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        return Counter(await asyncio.gather(*(ask(http, index) for index in range(REQUESTS))))


TOLD = (
    "the step that computed this request failed: InjectedError: an error made to happen by --fault step-error%7",
    "the step that moved this request's KV failed: InjectedError: an error made to happen by --fault move-error%9",
    "no token can be chosen: the logits are not finite numbers",
)
FAULTS = ("step-error%7", "move-error%9", "nan%11", "memory=40%5")
OPTIONS = ("--kv-memory", "1MiB", "--swap-space", "4MiB", "--preempt", "swap", "--max-model-len", "256")


def test_every_request_ends_with_a_result_or_a_stated_error(start_server) -> None:
    server = start_server("--model", "tiny", "--check-invariants", *OPTIONS, "--fault", *FAULTS)
    before = server.snapshot()
    ends = asyncio.run(ask_all(server.url))
    with server.control(batching="static", allocation="reserved"):
        ends += asyncio.run(ask_all(server.url))
    assert ends.total() == 2 * REQUESTS
    assert ends["result"] > 0
    errors = {end for end in ends if end != "result"}
    assert any(end.startswith(TOLD[0]) for end in errors)
    assert all(end.startswith(TOLD) for end in errors)
    after = server.snapshot()
    assert after["engine"]["started"] == before["engine"]["started"], "the engine was started again"
    assert after["requests"] == []
    assert after["pool"]["free"] + after["pool"]["cached"] == after["engine"]["num_blocks"]
    assert after["sharing"]["logical_blocks"] == after["host_blocks"] == 0
    assert after["counters"]["failed"] >= ends.total() - ends["result"]
    assert server.stop() == 0
