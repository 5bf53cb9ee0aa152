"""What a prompt's own tokens were worth: `prompt_logprobs`, and `echo`."""

import httpx
import openai
import pytest

from engine.messages import Output
from engine.plan import ScoredToken
from engine.server.generation import Prompt

HELLO = [{"role": "user", "content": "Hello there"}]
LETTERS = {str(i): 100 for i in range(64, 90)}


def complete(client: openai.OpenAI, **options) -> openai.types.Completion:
    return client.completions.create(
        **{"model": "tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0, **options}
    )


def ids(http: httpx.Client, text: str) -> list[int]:
    return http.post("/tokenize", json={"prompt": text}).json()["tokens"]


def test_a_prompts_logprobs_are_those_its_tokens_had_when_they_were_generated(client, http) -> None:
    told = complete(client, prompt="Hello" * 10, max_tokens=40, logprobs=3, logit_bias=LETTERS).choices[0]
    prompt = ids(http, "Hello" * 10 + told.text)
    assert len(prompt) == 50 + 40
    entries = (
        complete(client, prompt=prompt, max_tokens=1, extra_body={"prompt_logprobs": 3}).choices[0].prompt_logprobs
    )
    assert len(entries) == len(prompt)
    assert entries[0] is None
    for token, entry in zip(prompt[1:], entries[1:], strict=True):
        assert 3 <= len(entry) <= 4
        own = entry[str(token)]
        assert set(own) == {"logprob", "rank", "decoded_token"}
        ranked = sorted(entry.values(), key=lambda one: one["rank"])
        assert [one["rank"] for one in ranked[:3]] == [1, 2, 3]
        assert [one["logprob"] for one in ranked] == sorted((one["logprob"] for one in ranked), reverse=True)
        assert own["logprob"] <= ranked[0]["logprob"] <= 0
    for token, entry, logprob, top in zip(
        prompt[50:], entries[50:], told.logprobs.token_logprobs, told.logprobs.top_logprobs, strict=True
    ):
        assert entry[str(token)]["logprob"] == pytest.approx(logprob, abs=1e-4)
        assert entry[str(token)]["decoded_token"] in top


def test_a_long_prompt_comes_in_chunks_and_never_from_the_cache(client, http) -> None:
    prompt = [65 + i * i % 60 for i in range(1300)]
    whole = [complete(client, prompt=prompt, max_tokens=1, n=2, extra_body={"prompt_logprobs": 0}) for _ in range(2)]
    entries = whole[0].choices[0].prompt_logprobs
    assert len(entries) == 1300
    assert all(len(entry) == 1 for entry in entries[1:])
    for answer in whole:
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        for choice in answer.choices:
            assert [*choice.prompt_logprobs[1]] == [*entries[1]]
            for ours, theirs in zip(choice.prompt_logprobs[1:], entries[1:], strict=True):
                assert [e["logprob"] for e in ours.values()] == pytest.approx(
                    [e["logprob"] for e in theirs.values()], abs=1e-4
                )


def test_chats_have_them_once_for_all_choices(client: openai.OpenAI, http: httpx.Client) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=2, n=2, extra_body={"prompt_logprobs": 1}
    )
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens
    assert answer.prompt_logprobs[0] is None
    prompt = http.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
    assert all(str(token) in entry for token, entry in zip(prompt[1:], answer.prompt_logprobs[1:], strict=True))
    plain = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2)
    assert not hasattr(plain, "prompt_logprobs")


def test_echo_puts_the_prompt_before_the_answer(client: openai.OpenAI, http: httpx.Client) -> None:
    plain = complete(client, prompt=["Hello", "h\u00e9"], logprobs=2)
    echoed = complete(client, prompt=["Hello", "h\u00e9"], logprobs=2, echo=True)
    assert echoed.usage.completion_tokens == plain.usage.completion_tokens
    for prompt, alone, choice in zip(["Hello", "h\u00e9"], plain.choices, echoed.choices, strict=True):
        assert choice.text == prompt + alone.text
        length = len(prompt.encode())  # a byte is a token here
        logprobs = choice.logprobs
        assert len(logprobs.tokens) == length + 8
        assert (logprobs.token_logprobs[0], logprobs.top_logprobs[0]) == (None, None)
        assert all(value < 0 for value in logprobs.token_logprobs[1:])
        assert logprobs.token_logprobs[length:] == pytest.approx(alone.logprobs.token_logprobs, abs=1e-4)
        assert logprobs.text_offset[length:] == [len(prompt) + offset for offset in alone.logprobs.text_offset]
        assert logprobs.text_offset[0] == 0
        for token, logprob, top in zip(
            logprobs.tokens[1:], logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True
        ):
            assert top[token] == logprob
            assert 2 <= len(top) <= 3
    assert complete(client, echo=True).choices[0].logprobs is None
    assert complete(client, prompt=ids(http, "Hello"), echo=True).choices[0].text.startswith("Hello")


def test_echo_of_the_prompt_alone(client: openai.OpenAI) -> None:
    answer = complete(client, max_tokens=0, echo=True, logprobs=0, n=2)
    assert answer.usage.completion_tokens == 0
    assert answer.usage.total_tokens == 5
    for choice in answer.choices:
        assert (choice.text, choice.finish_reason) == ("Hello", "length")
        assert choice.logprobs.tokens == list("Hello")
        assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
        assert len(choice.logprobs.token_logprobs) == 5
    chunks = list(complete(client, max_tokens=0, echo=True, stream=True))
    assert [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in chunks] == [("Hello", "length")]


def test_echo_streams_with_the_first_chunk_of_each_choice(client: openai.OpenAI) -> None:
    whole = complete(client, echo=True, logprobs=1, n=2, seed=5, temperature=1.0)
    chunks = list(complete(client, echo=True, logprobs=1, n=2, seed=5, temperature=1.0, stream=True))
    for choice in whole.choices:
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert own[0].text.startswith("Hello")
        assert "".join(one.text for one in own) == choice.text
        assert [token for one in own for token in one.logprobs.tokens] == choice.logprobs.tokens
        assert [offset for one in own for offset in one.logprobs.text_offset] == choice.logprobs.text_offset


def test_both_at_once_each_with_its_own_count(client: openai.OpenAI) -> None:
    choice = complete(client, echo=True, logprobs=1, extra_body={"prompt_logprobs": 4}).choices[0]
    assert all(4 <= len(entry) <= 5 for entry in choice.prompt_logprobs[1:])
    assert all(len(top) <= 2 for top in choice.logprobs.top_logprobs[1:])


def test_places_that_come_again_after_a_preemption_are_ignored() -> None:
    scores = tuple(ScoredToken(-float(place), place) for place in range(10))
    prompt = Prompt("r", (), range(10))
    for start, end in ((1, 5), (5, 6), (1, 4), (4, 9), (9, 10)):
        prompt.take(Output("r", prompt_start=start, prompt_logprobs=scores[start:end]))
    assert tuple(prompt.scores) == scores[1:]
    with pytest.raises(ValueError, match="hole of 2 places"):
        Prompt("r", (), range(10)).take(Output("r", prompt_start=3, prompt_logprobs=scores[3:]))


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs", "0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "0 to 20"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream is false"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens", "at most max_tokens (0)"),
    ],
)
def test_bad_fields(http: httpx.Client, fields: dict, param: str, words: str) -> None:
    answer = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert words in answer.json()["error"]["message"]
