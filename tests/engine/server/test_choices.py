"""Several answers to one prompt: `n` siblings over one prefill, `best_of`, and beam search."""

import asyncio
import json
import math
import random
from collections.abc import Iterator

import httpx
import openai
import pytest

LETTERS = {str(i): 100 for i in range(64, 90)}  # lets only letters through: texts that can be compared
BODY = {"model": "tiny", "prompt": "Hello", "max_tokens": 12, "temperature": 1.0, "seed": 3, "logit_bias": LETTERS}


def complete(client: openai.OpenAI, **options) -> openai.types.Completion:
    return client.completions.create(**{**BODY, **options})


def fresh_prompt(seed: int, length: int) -> list[int]:
    """A prompt that no other test has: nothing of it is cached."""
    rng = random.Random(seed)
    return [rng.randrange(32, 250) for _ in range(length)]


def settled(server) -> dict:
    """The state once nothing lives."""
    while (state := server.snapshot())["requests"]:
        pass
    return state


def test_eight_answers_prefill_once_and_are_those_of_eight_seeds(client: openai.OpenAI, server) -> None:
    prompt = fresh_prompt(1, 600)
    before = settled(server)["counters"]
    together = complete(client, prompt=prompt, n=8)
    after = settled(server)["counters"]
    assert after["prefill_tokens"] - before["prefill_tokens"] == 600
    assert after["forks"] - before["forks"] == 7
    assert together.usage.prompt_tokens == 600
    assert together.usage.completion_tokens == 8 * 12
    assert together.usage.prompt_tokens_details.cached_tokens == 0
    alone = [complete(client, prompt=prompt, seed=3 + i).choices[0].text for i in range(8)]
    assert [choice.text for choice in together.choices] == alone
    assert len(set(alone)) == 8


def test_choices_stream_side_by_side(client: openai.OpenAI) -> None:
    whole = [choice.text for choice in complete(client, n=4).choices]
    texts = [""] * 4
    for chunk in complete(client, n=4, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == whole


def test_a_stop_string_ends_its_own_choice_alone(client: openai.OpenAI, server) -> None:
    whole = [choice.text for choice in complete(client, n=4).choices]
    stop = whole[0][3:6]
    assert not any(stop in text for text in whole[1:])
    answer = complete(client, n=4, stop=stop)
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length", "length", "length"]
    assert [choice.text for choice in answer.choices] == [whole[0][:3], *whole[1:]]
    assert answer.usage.completion_tokens == 6 + 3 * 12
    settled(server)


@pytest.mark.parametrize("options", [{"n": 8}, {"n": 2, "best_of": 4}, {"use_beam_search": True, "beam_width": 4}])
async def test_a_client_that_leaves_ends_every_sibling(server, options: dict) -> None:
    body = {"prompt": fresh_prompt(2, 100), "max_tokens": 900, "ignore_eos": True, **options}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        task = asyncio.create_task(http.post("/v1/completions", json=body))
        while True:
            requests = (await http.get("/engine/snapshot")).json()["requests"]
            if any(request["num_tokens"] > 105 for request in requests):
                break
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while (state := (await http.get("/engine/snapshot")).json())["requests"]:
            await asyncio.sleep(0.01)
    assert state["pool"]["free"] + state["pool"]["cached"] == state["engine"]["num_blocks"]


def test_best_of_answers_the_most_probable_per_token(client: openai.OpenAI) -> None:
    texts = [choice.text for choice in complete(client, n=6).choices]
    ends = {"stop": [texts[1][3:6], texts[4][5:8]]}  # so that lengths differ
    every = complete(client, n=6, logprobs=0, **ends).choices
    means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in every]
    assert len({len(c.logprobs.tokens) for c in every}) > 1
    ranked = sorted(range(6), key=lambda i: -means[i])
    best = complete(client, n=2, best_of=6, **ends)
    assert [choice.text for choice in best.choices] == [every[i].text for i in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.choices[0].logprobs is None
    assert best.usage.completion_tokens == sum(len(c.logprobs.tokens) for c in every)
    all_six = complete(client, n=6, best_of=6, **ends)
    assert [choice.text for choice in all_six.choices] == [choice.text for choice in every]


def test_best_of_in_chats_and_for_each_of_several_prompts(client: openai.OpenAI) -> None:
    options = {"model": "tiny", "seed": 3, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
    every = client.chat.completions.create(**options, n=4, logprobs=True).choices
    best = max(every, key=lambda c: sum(token.logprob for token in c.logprobs.content) / len(c.logprobs.content))
    answer = client.chat.completions.create(**options, extra_body={"best_of": 4})
    assert [choice.message.content for choice in answer.choices] == [best.message.content]
    both = complete(client, prompt=["Hello", "Good day"], best_of=4)
    singles = [complete(client, prompt=prompt, best_of=4).choices[0].text for prompt in ("Hello", "Good day")]
    assert [choice.text for choice in both.choices] == singles


def beams(http: httpx.Client, **options) -> dict:
    body = {"prompt": "Hello", "max_tokens": 6, "use_beam_search": True, **options}
    return http.post("/v1/completions", json=body).raise_for_status().json()


def test_beams_of_one_token_are_the_likeliest_tokens(http: httpx.Client) -> None:
    top = http.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 1, "logprobs": 4, "temperature": 0})
    likeliest = sorted(top.json()["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
    answer = beams(http, n=4, max_tokens=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    found = [choice["cumulative_logprob"] for choice in answer["choices"]]
    assert found == pytest.approx(likeliest[:4], abs=1e-5)
    assert [choice["score"] for choice in answer["choices"]] == found
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["prompt_tokens"] == 5


def test_beams_come_best_first_and_n_of_them(http: httpx.Client, server) -> None:
    wide = beams(http, n=4, ignore_eos=True, length_penalty=2.0)["choices"]
    scores = [choice["score"] for choice in wide]
    assert scores == sorted(scores, reverse=True)
    assert len({choice["cumulative_logprob"] for choice in wide}) == 4
    for choice in wide:
        assert choice["finish_reason"] == "length"
        assert choice["score"] == pytest.approx(choice["cumulative_logprob"] / 6**2.0)
    two = beams(http, n=2, beam_width=4, ignore_eos=True, length_penalty=2.0)["choices"]
    assert two == wide[:2]
    assert beams(http, n=1, best_of=4, ignore_eos=True, length_penalty=2.0)["choices"] == wide[:1]
    settled(server)


def test_a_search_finds_what_is_at_least_as_likely_as_the_greedy_text(http: httpx.Client, client) -> None:
    greedy = complete(client, temperature=0, logit_bias={}, logprobs=0, extra_body={"ignore_eos": True})
    found = beams(http, n=8, max_tokens=12, ignore_eos=True)["choices"][0]
    assert found["cumulative_logprob"] >= sum(greedy.choices[0].logprobs.token_logprobs) - 1e-4
    one = beams(http, n=1, max_tokens=12, ignore_eos=True)["choices"][0]
    assert one["text"] == greedy.choices[0].text
    assert one["cumulative_logprob"] == pytest.approx(sum(greedy.choices[0].logprobs.token_logprobs), abs=1e-4)


def test_beams_in_chats_over_several_prompts_and_with_stop_tokens(http: httpx.Client) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "use_beam_search": True, "n": 3}
    choices = http.post("/v1/chat/completions", json=chat).raise_for_status().json()["choices"]
    assert [choice["message"]["role"] for choice in choices] == ["assistant"] * 3
    assert all(choice["score"] <= 0 for choice in choices)
    both = beams(http, prompt=["Hello", "Good day"], n=2)["choices"]
    assert [choice["index"] for choice in both] == [0, 1, 2, 3]
    assert [c["score"] for c in both[:2]] == [c["score"] for c in beams(http, n=2)["choices"]]
    ends = range(64, 128)  # the tokens of letters, as many as a search may have
    stopped = beams(http, n=2, stop_token_ids=list(ends), max_tokens=60, early_stopping=True)["choices"]
    for choice in stopped:
        assert (choice["finish_reason"], choice["stop_reason"] in ends) == ("stop", True)
        assert not any(ord(letter) in ends for letter in choice["text"])


BAD = [
    ({"n": 129}, "n", "1 to 128"),
    ({"best_of": 129}, "best_of", "1 to 128"),
    ({"n": 3, "best_of": 2}, "best_of", "n (3) to 128"),
    ({"best_of": 2, "stream": True}, "best_of", "must be n (1) when stream is true"),
    ({"n": 100}, "n", "1 to 64 (max_num_seqs)"),
    ({"best_of": 100, "n": 2}, "best_of", "1 to 64 (max_num_seqs)"),
    ({"beam_width": 2}, "beam_width", "use_beam_search"),
    ({"length_penalty": 2}, "length_penalty", "use_beam_search"),
    ({"early_stopping": True}, "early_stopping", "use_beam_search"),
    ({"early_stopping": "never"}, "early_stopping", "use_beam_search"),
]
BAD_BEAMS = [
    ({"n": 33}, "n", "1 to 32"),
    ({"beam_width": 33}, "beam_width", "1 to 32"),
    ({"n": 3, "beam_width": 2}, "beam_width", "n (3) to 32"),
    ({"n": 1, "best_of": 40}, "best_of", "n (1) to 32"),
    ({"beam_width": 4, "best_of": 3}, "best_of", "beam_width (4)"),
    ({"stream": True}, "stream", "false"),
    ({"temperature": 0.7}, "temperature", "0 or 1"),
    ({"top_p": 0.5}, "top_p", "must be 1"),
    ({"top_k": 3}, "top_k", "0 or -1"),
    ({"min_p": 0.5}, "min_p", "must be 0"),
    ({"presence_penalty": 1}, "presence_penalty", "must be 0"),
    ({"frequency_penalty": 1}, "frequency_penalty", "must be 0"),
    ({"repetition_penalty": 1.1}, "repetition_penalty", "must be 1"),
    ({"logit_bias": {"1": 1}}, "logit_bias", "empty"),
    ({"stop": "a"}, "stop", "stop_token_ids"),
    ({"logprobs": 0}, "logprobs", "left out"),
    ({"prompt_logprobs": 0}, "prompt_logprobs", "left out"),
    ({"length_penalty": 11}, "length_penalty", "-10 to 10"),
    ({"early_stopping": "soon"}, "early_stopping", 'true, false or "never", got "soon"'),
    ({"stop_token_ids": list(range(65))}, "stop_token_ids", "at most 64"),
    ({"echo": True, "max_tokens": 0}, "max_tokens", "at least 1"),
    ({"beam_width": 8, "max_tokens": 3000}, "beam_width", "at most 2 beams"),
]


def bad_cases() -> Iterator[tuple[dict, str, str]]:
    yield from BAD
    yield from (({**fields, "use_beam_search": True}, param, words) for fields, param, words in BAD_BEAMS)


@pytest.mark.parametrize(("fields", "param", "words"), bad_cases())
def test_what_cannot_be_honoured_is_refused(http: httpx.Client, fields: dict, param: str, words: str) -> None:
    answer = http.post("/v1/completions", content=json.dumps({"prompt": "a", "max_tokens": 1, **fields}))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert words in error["message"]


def test_fields_that_ask_for_nothing_are_taken(http: httpx.Client) -> None:
    plain = {"length_penalty": 1.0, "early_stopping": False, "use_beam_search": False, "best_of": 1}
    assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, **plain}).status_code == 200
    neutral = {"temperature": 1, "top_p": 1, "top_k": -1, "min_p": 0, "stop": [], "logit_bias": {}, "seed": 4}
    assert math.isfinite(beams(http, n=2, **neutral)["choices"][0]["score"])
