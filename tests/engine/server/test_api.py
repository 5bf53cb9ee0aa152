"""The API through OpenAI's own client, against a real server."""

import asyncio
import json
import random

import httpx
import openai
import pytest

MODEL = "tiny"
HELLO = [{"role": "user", "content": "Hello there"}]


def chat(client: openai.OpenAI, **options):
    return client.chat.completions.create(
        **{"model": MODEL, "messages": HELLO, "max_tokens": 8, "temperature": 0, **options}
    )


def complete(client: openai.OpenAI, **options):
    return client.completions.create(
        **{"model": MODEL, "prompt": "Hello", "max_tokens": 8, "temperature": 0, **options}
    )


def test_chat(client: openai.OpenAI, http: httpx.Client) -> None:
    answer = chat(client)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    prompt = http.post("/tokenize", json={"messages": HELLO}).json()
    assert answer.usage.prompt_tokens == prompt["count"]
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == prompt["count"] + 8
    again = chat(client)
    assert again.choices[0].message.content == choice.message.content
    assert again.usage.prompt_tokens_details.cached_tokens == prompt["count"] - 1  # the last one gives the logits


def test_chat_stream_is_the_same_text_in_one_chunk_per_token(client: openai.OpenAI) -> None:
    whole = chat(client)
    chunks = list(chat(client, stream=True))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == whole.choices[0].message.content
    assert len(chunks) == 8
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * 7
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 7 + ["length"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_on_the_wire(http: httpx.Client) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 3, "stream": True, "stop": None, "n": 1}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)


def test_usage_in_streams_only_when_asked_for(client: openai.OpenAI) -> None:
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * 8
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(client, stream=True, stream_options=options))
    assert [chunk.usage.completion_tokens for chunk in chunks] == [*range(1, 9), 8]


def test_continuous_usage_is_that_of_a_choice_and_its_own_prompt(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(complete(client, prompt=["ab", "cdefg"], stream=True, stream_options=options))
    found = {(chunk.choices[0].index, chunk.usage.prompt_tokens) for chunk in chunks[:-1]}
    assert found == {(0, 2), (1, 5)}
    assert chunks[-1].usage.prompt_tokens == 7


def test_content_parts_are_text(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    joined = chat(client, messages=[{"role": "user", "content": "Hello\nthere"}])
    split = chat(client, messages=[{"role": "user", "content": parts}])
    assert split.choices[0].message.content == joined.choices[0].message.content
    assert split.usage.prompt_tokens == joined.usage.prompt_tokens


def test_max_completion_tokens_and_the_default(client: openai.OpenAI, http: httpx.Client) -> None:
    assert chat(client, max_tokens=None, max_completion_tokens=1).usage.completion_tokens == 1
    assert complete(client, max_tokens=None, extra_body={"ignore_eos": True}).usage.completion_tokens == 16
    limit = http.get("/v1/models").json()["data"][0]["max_model_len"]
    prompt = [random.Random(1).randrange(256) for _ in range(limit - 20)]
    text = http.post("/detokenize", json={"tokens": [65] * len(prompt)}).json()["prompt"]
    assert len(text) == len(prompt)
    answer = chat(
        client,
        max_tokens=None,
        messages=[{"role": "user", "content": "a" * (limit - 60)}],
        extra_body={"ignore_eos": True},
    )
    assert answer.usage.total_tokens == limit
    assert answer.choices[0].finish_reason == "length"


def test_several_prompts_and_choices(client: openai.OpenAI) -> None:
    prompts = ["Hello", "Good morning", "abc"]
    alone = [complete(client, prompt=prompt).choices[0].text for prompt in prompts]
    together = complete(client, prompt=prompts, n=2)
    assert [choice.index for choice in together.choices] == list(range(6))
    assert [choice.text for choice in together.choices] == [text for text in alone for _ in range(2)]
    assert together.usage.prompt_tokens == sum(map(len, prompts))
    assert together.usage.completion_tokens == 6 * 8
    texts = [""] * 6
    for chunk in complete(client, prompt=prompts, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in together.choices]


def test_prompts_as_token_ids(client: openai.OpenAI, http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"prompt": "Hello"}).json()["tokens"]
    text = complete(client).choices[0].text
    assert complete(client, prompt=ids).choices[0].text == text
    assert [choice.text for choice in complete(client, prompt=[ids, ids]).choices] == [text, text]


def test_seeds(client: openai.OpenAI) -> None:
    hot = {"temperature": 1.5, "max_tokens": 16}
    first, again, other = (complete(client, seed=seed, **hot).choices[0].text for seed in (5, 5, 6))
    assert first == again
    assert first != other
    both = complete(client, seed=5, n=2, **hot)
    assert [choice.text for choice in both.choices] == [first, other]  # child i has seed + i
    assert complete(client, seed=-3, **hot).choices[0].text == complete(client, seed=-3, **hot).choices[0].text


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == 8
    assert b"".join(bytes(token.bytes) for token in content).decode(errors="replace") == (
        answer.choices[0].message.content
    )
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(top.logprob for top in token.top_logprobs)  # greedy
        assert token.logprob <= 0
    streamed = [
        token
        for chunk in chat(client, logprobs=True, top_logprobs=3, stream=True)
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.bytes for token in streamed] == [token.bytes for token in content]
    assert chat(client).choices[0].logprobs is None
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_completion_logprobs(client: openai.OpenAI) -> None:
    choice = complete(client, logprobs=2).choices[0]
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 8
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values())


def readable(client: openai.OpenAI, **options) -> str:
    """A text of letters: only their tokens are let through."""
    letters = {str(i): 100 for i in range(64, 90)}  # ids of tiny are in the order of its alphabet
    return complete(client, logit_bias=letters, seed=1, temperature=1.0, **options)


def test_logit_bias(client: openai.OpenAI) -> None:
    text = readable(client, max_tokens=30).choices[0].text
    assert text.isascii()
    assert len(set(text)) > 3


def test_stop_strings(client: openai.OpenAI) -> None:
    whole = readable(client, max_tokens=30).choices[0].text
    stop = whole[10:14]
    end = whole.find(stop)
    answer = readable(client, max_tokens=30, stop=[stop, "zzzzzzzzzz"])
    assert answer.choices[0].text == whole[:end]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == stop
    assert answer.usage.completion_tokens == end + len(stop)  # a letter is a token
    chunks = list(readable(client, max_tokens=30, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole[:end]
    assert chunks[-1].choices[0].finish_reason == "stop"
    kept = readable(client, max_tokens=30, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == whole[: end + len(stop)]
    late = readable(client, max_tokens=30, stop=stop, extra_body={"min_tokens": 20})
    assert late.usage.completion_tokens >= 20
    assert late.choices[0].text.startswith(whole[:20])


def test_a_stop_string_ends_the_request_in_the_core(client: openai.OpenAI, server) -> None:
    whole = readable(client, max_tokens=30).choices[0].text
    before = server.snapshot()["counters"]
    readable(client, max_tokens=3000, stop=whole[5:9])
    state = server.snapshot()
    assert state["requests"] == []
    assert state["counters"]["stopped"] == before["stopped"] + 1
    assert state["counters"]["aborted"] == before["aborted"]
    assert state["counters"]["sampled_tokens"] < before["sampled_tokens"] + 3000


def test_a_stop_string_on_the_last_token_is_a_stop_not_a_length(client: openai.OpenAI) -> None:
    whole = readable(client, max_tokens=12).choices[0].text
    assert readable(client, max_tokens=12, stop=whole[-2:]).choices[0].finish_reason == "stop"


def test_stop_token_ids(client: openai.OpenAI, http: httpx.Client) -> None:
    whole = readable(client, max_tokens=30).choices[0].text
    token = http.post("/tokenize", json={"prompt": whole[9]}).json()["tokens"][0]
    end = whole.find(whole[9])
    answer = readable(client, max_tokens=30, extra_body={"stop_token_ids": [token]})
    assert answer.choices[0].text == whole[:end]
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", token)
    assert answer.usage.completion_tokens == end + 1


def test_the_end_of_text_ends_and_can_be_ignored(client: openai.OpenAI) -> None:
    end = {"logit_bias": {"258": 100}, "max_tokens": 4}
    answer = complete(client, **end)
    assert (answer.choices[0].finish_reason, answer.choices[0].text) == ("stop", "")
    assert answer.usage.completion_tokens == 1
    chunks = list(chat(client, stream=True, **end))
    assert [(c.choices[0].delta.role, c.choices[0].finish_reason) for c in chunks] == [("assistant", "stop")]
    assert complete(client, extra_body={"ignore_eos": True}, **end).usage.completion_tokens == 4


def test_models_health_version(client: openai.OpenAI, http: httpx.Client) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert http.get("/v1/models").json()["data"][0]["max_model_len"] == 4096
    assert client.models.retrieve(MODEL).id == MODEL
    assert http.get("/health").status_code == 200
    assert http.get("/version").json()["version"]


def test_tokenize_and_detokenize(http: httpx.Client) -> None:
    body = http.post("/tokenize", json={"prompt": "h\u00e9", "return_token_strs": True}).json()
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"]) == 3
    assert body["max_model_len"] == 4096
    assert http.post("/detokenize", json={"tokens": body["tokens"]}).json() == {"prompt": "h\u00e9"}


def test_unknown_fields_are_ignored_and_the_model_may_be_left_out(http: httpx.Client) -> None:
    body = {"prompt": "a", "max_tokens": 1, "mystery": [1], "user": "me", "best_of": 1, "stop": None}
    assert http.post("/v1/completions", json=body).status_code == 200


async def test_many_at_once(server) -> None:
    """Each gets the answer it would get alone."""
    async with server.async_client as client:

        async def ask(i: int) -> str:
            text = ""
            async for chunk in await client.completions.create(
                model=MODEL, prompt=f"Number {i % 8}", max_tokens=20, temperature=0, stream=True
            ):
                text += chunk.choices[0].text
            return text

        alone = [await ask(i) for i in range(8)]
        together = await asyncio.gather(*(ask(i) for i in range(48)))
    assert together == [alone[i % 8] for i in range(48)]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_blocks(server, stream: bool) -> None:
    body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": stream, "n": 2}
    before = server.snapshot()["counters"]["aborted"]
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        task = asyncio.create_task(leave_early(http, body))
        while not any(request["table"] for request in (await snapshot(http))["requests"]):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while (state := await snapshot(http))["requests"]:
            await asyncio.sleep(0.01)
    assert state["counters"]["aborted"] == before + 2
    assert state["pool"]["free"] + state["pool"]["cached"] == state["engine"]["num_blocks"]


async def snapshot(http: httpx.AsyncClient) -> dict:
    return (await http.get("/engine/snapshot")).json()


async def leave_early(http: httpx.AsyncClient, body: dict) -> None:
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for _ in response.aiter_lines():
            pass
