"""Bad requests: a status, OpenAI's body, the field's name, and nothing left behind in the engine."""

import json

import httpx
import openai
import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]

BAD_FIELDS = [
    # route, fields over a good body, the param named, words in the message
    (CHAT, {"messages": []}, "messages", "an array that is not empty, got an empty array"),
    (CHAT, {"messages": "hi"}, "messages", "array"),
    (CHAT, {"messages": None}, "messages", "array"),
    (CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role", "missing"),
    (CHAT, {"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role",
     'must be "assistant", "developer", "system", "tool" or "user", got "robot"'),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "string or an array"),
    (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "a string or an array, got 3"),
    (CHAT, {"messages": [*USER, {"role": "user", "content": [{"type": "image_url"}]}]},
     "messages[1].content[0].type", "only 'text'"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "required"),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 5000}]}, "messages", "4,096"),
    (CHAT, {"max_tokens": 0}, "max_tokens", "at least 1"),
    (CHAT, {"max_tokens": -1}, "max_tokens", "must be from 0 to 2147483647, got -1"),
    (CHAT, {"max_tokens": 4096}, "max_tokens", "4,096 is too large"),
    (CHAT, {"max_completion_tokens": 10**12}, "max_completion_tokens", "to 2147483647, got 1000000000000"),
    (CHAT, {"max_tokens": 1.5}, "max_tokens", "must be an integer from 0 to 2147483647, got 1.5"),
    (CHAT, {"max_tokens": "5"}, "max_tokens", 'got "5"'),
    (CHAT, {"max_tokens": True}, "max_tokens", "got true"),
    (CHAT, {"temperature": -0.1}, "temperature", "from 0 to 100, got -0.1"),
    (CHAT, {"temperature": 1000}, "temperature", "from 0 to 100, got 1000"),
    (CHAT, {"temperature": "hot"}, "temperature", 'a number from 0 to 100, got "hot"'),
    (CHAT, {"top_p": 0}, "top_p", "more than 0 and at most 1, got 0"),
    (CHAT, {"top_p": 1.1}, "top_p", "at most 1, got 1.1"),
    (CHAT, {"top_k": -2}, "top_k", "from -1 to 2147483647, got -2"),
    (CHAT, {"min_p": 1.5}, "min_p", "from 0 to 1, got 1.5"),
    (CHAT, {"n": 0}, "n", "must be from 1 to 128, got 0"),
    (CHAT, {"n": 1000}, "n", "must be from 1 to 128, got 1000"),
    (CHAT, {"seed": 2**63}, "seed", "to 9223372036854775807, got 9223372036854775808"),
    (CHAT, {"seed": 10**40}, "seed", "got one of more than 40 digits"),
    (CHAT, {"presence_penalty": 3}, "presence_penalty", "from -2 to 2, got 3"),
    (CHAT, {"frequency_penalty": -3}, "frequency_penalty", "from -2 to 2, got -3"),
    (CHAT, {"repetition_penalty": 0}, "repetition_penalty", "from 0.01 to 100, got 0"),
    (CHAT, {"repetition_penalty": 1e-39}, "repetition_penalty", "from 0.01 to 100, got 1e-39"),
    (CHAT, {"logit_bias": {"a": 1}}, "logit_bias", "every key must be an integer from 0 to 2147483647"),
    (CHAT, {"logit_bias": {"1": 101}}, "logit_bias", "every value must be a number from -100 to 100"),
    (CHAT, {"logit_bias": {"999": 1}}, "logit_bias", "not in the vocabulary"),
    (CHAT, {"stop": ""}, "stop", "1 to"),
    (CHAT, {"stop": ["a", ""]}, "stop", "stop[1]"),
    (CHAT, {"stop": 5}, "stop", "a string or an array, got 5"),
    (CHAT, {"stop": ["x"] * 100}, "stop", "at most 64"),
    (CHAT, {"stop_token_ids": [-1]}, "stop_token_ids[0]", "from 0 to 2147483647, got -1"),
    (CHAT, {"stop_token_ids": [999]}, "stop_token_ids", "vocabulary"),
    (CHAT, {"min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most max_tokens (8)"),
    (CHAT, {"min_tokens": 1, "stop_token_ids": [*range(259)]}, "stop_token_ids", "half of the 259 tokens"),
    (TEXT, {"min_tokens": 1, "stop_token_ids": [*range(257)]}, "stop_token_ids", "with min_tokens, got 257"),
    (CHAT, {"logprobs": 5}, "logprobs", "true or false, got 5"),
    (CHAT, {"top_logprobs": 5}, "top_logprobs", "logprobs is true"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20, got 21"),
    (CHAT, {"stream": "yes"}, "stream", 'true or false, got "yes"'),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools", "not supported"),
    (CHAT, {"response_format": {"type": "json_object"}}, "response_format", "json_object"),
    (CHAT, {"echo": True}, "echo", "/v1/completions"),
    (CHAT, {"echo": "yes"}, "echo", "true or false"),
    (CHAT, {"early_stopping": 1}, "early_stopping", 'must be true, false or "never", got 1'),
    (CHAT, {"n": 1.5}, "n", "must be an integer from 1 to 128, got 1.5"),
    (CHAT, {"user": 5}, "user", "a string of 0 to 1024 characters, got 5"),
    (CHAT, {"stream_options": {"include_usage": 3}, "stream": True}, "stream_options.include_usage", "true or false"),
    (CHAT, {"truncate_prompt_tokens": "x"}, "truncate_prompt_tokens", "not supported"),
    (CHAT, {"guided_regex": "a"}, "guided_regex", "not supported"),
    (TEXT, {"prompt": None}, "prompt", "a string or an array, got null"),
    (TEXT, {"prompt": ""}, "prompt", "no tokens"),
    (TEXT, {"prompt": []}, "prompt", "empty"),
    (TEXT, {"prompt": ["a", ""]}, "prompt", "prompt[1]"),
    (TEXT, {"prompt": [[1], []]}, "prompt", "prompt[1]"),
    (TEXT, {"prompt": ["a", 1]}, "prompt", "mixture"),
    (TEXT, {"prompt": [1, 2.5]}, "prompt[1]", "a string, an integer or an array, got 2.5"),
    (TEXT, {"prompt": [1, 259]}, "prompt", "0 to 258"),
    (TEXT, {"prompt": [-1]}, "prompt", "0 to 258"),
    (TEXT, {"prompt": [10**30]}, "prompt", "0 to 258"),
    (TEXT, {"prompt": [65] * 4096}, "prompt", "4,096"),
    (TEXT, {"prompt": ["a"] * 4097}, "prompt", "at most 4096 prompts"),
    (TEXT, {"prompt": ["a"] * 4096, "n": 2}, "n", "at most 4096 texts in all"),
    (TEXT, {"max_tokens": 0}, "max_tokens", "echo"),
    (TEXT, {"logprobs": True}, "logprobs", "an integer from 0 to 20, got true"),
    (TEXT, {"logprobs": -1}, "logprobs", "from 0 to 20, got -1"),
    (TEXT, {"echo": 1}, "echo", "true or false, got 1"),
    (TEXT, {"suffix": "x"}, "suffix", "not supported"),
    ("/tokenize", {"prompt": None}, "prompt", "either"),
    ("/tokenize", {"messages": USER}, "prompt", "not both"),
    ("/tokenize", {"prompt": 3}, "prompt", "a string, got 3"),
    ("/detokenize", {"tokens": [999]}, "tokens", "vocabulary"),
    ("/detokenize", {"tokens": "a"}, "tokens", 'an array, got "a"'),
]  # fmt: skip
GOOD = {
    CHAT: {"messages": USER, "max_tokens": 1},
    TEXT: {"prompt": "a", "max_tokens": 1},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
}


def check_error(response: httpx.Response, status: int, param: str | None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert error["request_id"] == response.headers["X-Request-Id"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    return error["message"]


# A bad request is refused with a status of its own, also where a stream was asked for.
BAD_STREAMS = [
    (route, {**fields, "stream": True}, param, words)
    for route, fields, param, words in BAD_FIELDS
    if route in (CHAT, TEXT) and not {"stream", "stream_options"} & set(fields)
]


@pytest.mark.parametrize(("route", "fields", "param", "words"), BAD_FIELDS + BAD_STREAMS)
def test_a_bad_field_is_named(http, route: str, fields: dict, param: str, words: str) -> None:
    body = {**GOOD[route], **fields}
    message = check_error(http.post(route, content=json.dumps(body)), 400, param)
    assert words in message
    assert param.partition("[")[0] in message


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b"\xff\xfe", b"[]", b"3", b'{"prompt": "a", "max_tokens": NaN}',
     b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": "\\ud800"}', b'{"prompt": "a"} x',
     b'{"x": ' + b"[" * 100_000],
)  # fmt: skip
def test_a_body_that_is_not_json(http, body: bytes) -> None:
    assert "body" in check_error(http.post(TEXT, content=body), 400, None)


def test_numbers_that_no_float_holds(http) -> None:
    for field, allowed in (("temperature", "a number from 0 to 100"), ("timeout", "more than 0 and at most 86400")):
        body = b'{"prompt": "a", "%b": 1e400}' % field.encode()
        message = check_error(http.post(TEXT, content=body), 400, field)
        assert message.endswith(allowed)


@pytest.mark.parametrize("place", ["chat_template_kwargs", "tool_choice", "tools"])
@pytest.mark.parametrize("value", ["1e400", '{"a": [1e400]}', "[1e400]"])
def test_numbers_that_no_float_holds_where_anything_may_be(http, place: str, value: str) -> None:
    within = {"chat_template_kwargs": '{"x": %s}', "tool_choice": "%s", "tools": "[%s]"}[place] % value
    body = f'{{"messages": [{{"role": "user", "content": "hi"}}], "{place}": {within}}}'
    response = http.post(CHAT, content=body)
    assert response.status_code == 400, response.text
    assert place in response.json()["error"]["message"]


def test_half_a_surrogate_pair_is_told(http) -> None:
    for text in (rb"\ud800", rb"a\\\uDbFf", rb"\ud800 \ud83d\ude00", rb"\ud800\u0041"):
        message = check_error(http.post(TEXT, content=b'{"prompt": "a", "cache_salt": "%b"}' % text), 400, None)
        assert "surrogate pair" in message
        assert "truncated" not in message
    for text in (rb"\\ud800", rb"\ud83d\ude00"):  # a backslash and letters; a whole pair
        body = b'{"prompt": "a", "max_tokens": 1, "cache_salt": "%b"}' % text
        assert http.post(TEXT, content=body).status_code == 200
    message = check_error(http.post(TEXT, content=rb'{"prompt": "\ud83d\ude00'), 400, None)
    assert "truncated" in message


def test_a_body_that_is_too_large(http) -> None:
    message = check_error(http.post(TEXT, content=b" " * (33 * 1024 * 1024)), 413, None)
    assert "32 MiB" in message


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (TEXT, {"prompt": "a" * 2_000_000}),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 2_000_000}]}),
        ("/tokenize", {"prompt": "a" * 2_000_000}),
    ],
)
def test_a_text_that_cannot_fit_is_not_tokenized(http, route: str, body: dict) -> None:
    message = check_error(http.post(route, json=body), 400, "messages" if route == CHAT else "prompt")
    assert "characters are too many" in message
    assert "4,096 tokens" in message


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_body_that_is_compressed(http, coding: str) -> None:
    response = http.post(TEXT, content=b"nonsense", headers={"Content-Encoding": coding})
    assert coding in check_error(response, 415, None)


def test_an_unknown_model_tells_the_served_ones(client: openai.OpenAI, http) -> None:
    with pytest.raises(openai.NotFoundError, match="served: tiny") as error:
        client.chat.completions.create(model="gpt-9", messages=USER)
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    assert http.get("/v1/models/gpt-9").status_code == 404


def test_openai_client_raises_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", prompt="a", temperature=-1)
    assert error.value.param == "temperature"


def test_unknown_routes_and_methods(http) -> None:
    assert "/v2/nothing" in check_error(http.get("/v2/nothing"), 404, None)
    response = http.get(CHAT)
    assert "POST" in check_error(response, 405, None)
    assert response.headers["allow"] == "OPTIONS, POST"


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"batching": "magic"}, "batching", 'must be "continuous" or "static", got "magic"'),
        ({"allocation": 1}, "allocation", '"paged" or "reserved", got 1'),
        ({"prefix_cache": "yes"}, "prefix_cache", "true or false"),
        ({"max_num_seqs": 0}, "max_num_seqs", "max_num_seqs: must be from 1 to 4096, got 0"),
        ({"max_num_seqs": 4097}, "max_num_seqs", "max_num_seqs: must be from 1 to 4096, got 4097"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens", "must be from 1 to 1048576, got 0"),
        ({"max_num_batched_tokens": 1048577}, "max_num_batched_tokens", "must be from 1 to 1048576, got 1048577"),
        ({"max_num_batched_tokens": 10**30}, "max_num_batched_tokens", "must be from 1 to 1048576"),
        ({"max_num_batched_tokens": None}, "max_num_batched_tokens", "an integer from 1 to 1048576, got null"),
        ({"max_prefill_chunk": -1}, "max_prefill_chunk", "0 to 1048576"),
        ({"max_prefill_chunk": 1048577}, "max_prefill_chunk", "0 to 1048576"),
        ({"max_wait": -1}, "max_wait", "from 0 to 86400, got -1"),
        ({"max_wait": 1e9}, "max_wait", "from 0 to 86400"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy", '"fcfs", "priority" or "shortest_prefill"'),
        ({"reserved_fit": "worst"}, "reserved_fit", '"best" or "first"'),
        ({"preempt": "never"}, "preempt", '"auto", "recompute" or "swap", got "never"'),
        ({"preempt": None}, "preempt", '"auto", "recompute" or "swap", got null'),
        ({"preempt": "swap"}, "preempt", "swap"),  # this engine has no swap space
        ({"speed": 1}, "speed", "allowed: batching, allocation"),
        ({"batching": "static", "speed": 1}, "speed", "unknown field"),
    ],
)
def test_bad_control(http, change: dict, param: str, words: str) -> None:
    before = http.get("/engine/control").json()
    assert words in check_error(http.patch("/engine/control", json=change), 400, param)
    assert http.get("/engine/control").json() == before


@pytest.mark.parametrize("first", ["x", "-1", "1.5", "", "9" * 30, "99999999", "\u0663"])
def test_bad_first_step(http, first: str) -> None:
    assert "from" in check_error(http.get("/engine/steps", params={"from": first}), 400, "from")


def test_nothing_of_it_reached_the_engine(server) -> None:
    assert server.snapshot()["requests"] == []
    assert server.snapshot()["counters"]["failed"] == 0
