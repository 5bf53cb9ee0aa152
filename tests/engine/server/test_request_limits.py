"""What one request may ask for: each limit is told with its field and its option, and hostile bodies cost little."""

import contextlib
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from engine.cli import main
from engine.loading.resolve import resolve_model
from engine.server.bodies import ChatBody, CompletionBody
from engine.server.chat_messages import check_variables
from engine.server.errors import ApiError
from engine.server.parsing import MAX_COMMAS, parse
from engine.server.settings import Limits
from engine.tokenizer import Tokenizer
from tests.engine.server.conftest import Server, start

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "4MiB", "--check-invariants")
    limits = ("--max-n", "3", "--max-stop-strings", "2", "--max-logprobs", "4", "--max-prompt-tokens", "50")
    server = start(tmp_path_factory.mktemp("strict"), *options, *limits, "--request-timeout", "0.4")
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.stderr.read_text()


def refused(server: Server, route: str, fields: dict, param: str | None, *words: str) -> None:
    good = {"messages": USER} if route == CHAT else {} if route in ("/tokenize", "/detokenize") else {"prompt": "a"}
    with server.http as http:
        response = http.post(route, content=json.dumps({**good, **fields}))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    for word in words:
        assert word in error["message"], error["message"]
    assert len(response.content) < 1000, "it does not tell back what came"


@pytest.mark.parametrize(
    ("route", "fields", "param", "words"),
    [
        (TEXT, {"n": 4}, "n", "must be from 1 to 3 (--max-n), got 4"),
        (TEXT, {"best_of": 4}, "best_of", "must be from 1 to 3 (--max-n), got 4"),
        (TEXT, {"beam_width": 4, "use_beam_search": True}, "beam_width", "must be from 1 to 3 (--max-n), got 4"),
        (CHAT, {"n": 4}, "n", "must be from 1 to 3 (--max-n), got 4"),
        (CHAT, {"stop": ["a", "b", "c"]}, "stop", "at most 2 strings (--max-stop-strings), got 3"),
        (TEXT, {"logprobs": 5}, "logprobs", "must be from 0 to 4 (--max-logprobs), got 5"),
        (TEXT, {"prompt_logprobs": 5}, "prompt_logprobs", "must be from 0 to 4 (--max-logprobs), got 5"),
        (CHAT, {"logprobs": True, "top_logprobs": 5}, "top_logprobs", "must be from 0 to 4 (--max-logprobs), got 5"),
        (TEXT, {"prompt": "a" * 51}, "prompt", "51 tokens are too many; at most 50 are taken (--max-prompt-tokens)"),
        (TEXT, {"prompt": ["a", "a" * 51]}, "prompt", "prompt[1]: 51 tokens are too many"),
        (TEXT, {"prompt": [1] * 51}, "prompt", "51 tokens are too many"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 60}]}, "messages", "(--max-prompt-tokens)"),
        (TEXT, {"prompt": "a" * 5000}, "prompt", "the 50 tokens that a prompt may have hold at most"),
    ],
)
def test_each_limit_is_told_with_its_option(strict: Server, route: str, fields: dict, param: str, words: str) -> None:
    refused(strict, route, fields, param, words)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 3}, {"best_of": 3}, {"stop": ["a", "b"]}, {"logprobs": 4}, {"prompt": "a" * 50}, {"prompt_logprobs": 4},
        {"n": 3, "use_beam_search": True},
    ],
)  # fmt: skip
def test_what_is_at_the_limit_is_taken(strict: Server, fields: dict) -> None:
    with strict.http as http:
        assert http.post(TEXT, json={"prompt": "a", "max_tokens": 1, **fields}).status_code == 200


@pytest.mark.parametrize("wanted", [None, 60.0])
def test_a_request_ends_in_the_servers_time(strict: Server, wanted: float | None) -> None:
    body = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "timeout": wanted, "n": 3}
    with strict.http as http:
        answer = http.post(TEXT, json=body).raise_for_status().json()
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"deadline"}


def test_a_shorter_time_of_the_clients_own_holds(strict: Server) -> None:
    with strict.http as http:
        response = http.post(TEXT, json={"prompt": "a", "max_tokens": 4000, "timeout": 1e-6})
    assert response.status_code == 504
    assert "timeout" in response.json()["error"]["message"]


def test_of_two_times_the_shorter_holds_and_0_is_none() -> None:
    body = parse(b'{"prompt": "a", "timeout": 5}', CompletionBody)
    plain = parse(b'{"prompt": "a"}', CompletionBody)
    for limit, asked, unasked in ((3.0, 3.0, 3.0), (9.0, 5.0, 9.0), (0.0, 5.0, None)):
        limits = Limits(request_timeout=limit)
        assert body.scheduling("me", limits).timeout == asked
        assert plain.scheduling("me", limits).timeout == unasked
    assert plain.scheduling("me", Limits()).client == "me"


def test_options_past_what_any_request_may_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option, most in (("--max-n", 128), ("--max-stop-strings", 64), ("--max-logprobs", 20)):
        with pytest.raises(SystemExit):
            main(["serve", "--model", "tiny", option, str(most + 1)])
        assert f"to {most}, got" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("route", "fields", "param", "words"),
    [
        (TEXT, {"stop_token_ids": [1] * 1025}, "stop_token_ids", "array of at most 1024, got an array of 1025"),
        (TEXT, {"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024, got an object of 1025"),
        (CHAT, {"messages": USER * 4097}, "messages", "an array of at most 4096, got an array of 4097"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 1025}]},
         "messages[0].content", "a string or an array of at most 1024"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 1024}] * 17},
         "messages", "at most 16,384 content parts in all, got 17,408"),
        (TEXT, {"user": "a" * 1025}, "user", "1024 characters, got 1025 characters"),
        (TEXT, {"model": "a" * 4097}, "model", "4096 characters, got 4097 characters"),
        ("/tokenize", {"model": "a" * 4097, "prompt": "a"}, "model", "4096 characters"),
        ("/detokenize", {"model": "a" * 4097, "tokens": []}, "model", "4096 characters"),
        (TEXT, {"response_format": {"type": "a" * 65}}, "response_format.type", "64 characters"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "a" * 65}]}]}, "messages[0].content[0].type", "64"),
        (CHAT, {"chat_template_kwargs": {"a": "b" * 70_000}}, "chat_template_kwargs", "at most 65,536 bytes of JSON"),
        (CHAT, {"chat_template_kwargs": {"a": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}, "chat_template_kwargs", "16 deep"),
        ("/tokenize", {"messages": USER, "chat_template_kwargs": {"a": "b" * 70_000}}, "chat_template_kwargs", "bytes"),
        (TEXT, {"prompt": [[1] * 1000] * 263}, None, "262,999 commas"),
        (TEXT, {"prompt": ["a" * 3900] * 70}, "prompt", "262,144 tokens together"),
        (TEXT, {"prompt": [1] * MAX_COMMAS}, "prompt", "the model takes 4,096 tokens"),
        (TEXT, {"prompt": "," * (MAX_COMMAS + 1)}, None, "262,145 commas, and at most 262,144"),
        ("/detokenize", {"tokens": [1] * (MAX_COMMAS + 2)}, None, "262,145 commas"),
    ],
)  # fmt: skip
def test_what_no_request_may_have(server: Server, route: str, fields: dict, param: str | None, words: str) -> None:
    refused(server, route, fields, param, words)


def test_template_variables_that_are_small_and_flat_are_taken() -> None:
    check_variables(None)
    deep: dict = {}
    for _ in range(15):
        deep = {"a": deep}
    check_variables(deep)
    with pytest.raises(ApiError, match="16 deep"):
        check_variables({"a": {"a": deep}})
    check_variables({"a": 10**30, "b": "x" * 60_000})


def test_a_large_bad_body_is_told_without_reading_it_again() -> None:
    body = json.dumps({"prompt": "a", "user": 5, "stop_token_ids": [1] * 2000, "x": "y" * 2_000_000}).encode()
    with pytest.raises(ApiError, match=r"user: must be a string of 0 to 1024 characters$"):
        parse(body, CompletionBody)
    body = json.dumps({"prompt": "a", "stop_token_ids": [1] * 2000, "x": "y" * 2_000_000}).encode()
    with pytest.raises(ApiError, match=r"stop_token_ids: must be an array of at most 1024$"):
        parse(body, CompletionBody)


def test_garbage_is_collected_again_after_a_body() -> None:
    assert gc.isenabled()
    for body in (b'{"messages": [{"role": "user", "content": "a"}]}', b"{"):
        with contextlib.suppress(ApiError):
            parse(body, ChatBody)
        assert gc.isenabled()


def turns_beside(work: Callable[[], object]) -> int:
    """How often this thread gets a turn while another works."""
    thread, turns = threading.Thread(target=work), 0
    thread.start()
    while thread.is_alive():
        turns += 1
        time.sleep(0.001)
    return turns


def test_other_threads_have_turns_while_a_long_text_is_tokenized(tokenizer: Tokenizer) -> None:
    """The library's call for one text keeps the interpreter's lock: then it was one turn or two in half a second."""
    text = "the quick brown fox 1234567890 " * 20_000
    assert turns_beside(lambda: tokenizer.encode(text)) > 10
    ids = tokenizer.encode(text)
    assert turns_beside(lambda: tokenizer.decode(ids)) > 10
    assert tokenizer.decode(ids) == text


@pytest.fixture
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(resolve_model("tiny").folder)


def test_a_large_answer_is_the_same_as_a_small_ones_parts(server: Server) -> None:
    """It is put together on another thread."""
    with server.http as http:
        body = {"prompt": "abc" * 700, "max_tokens": 2, "echo": True, "logprobs": 3, "temperature": 0, "n": 2}
        answer = http.post(TEXT, json=body).raise_for_status().json()
        chat = http.post(CHAT, json={"messages": [{"role": "user", "content": "abc" * 700}], "max_tokens": 2,
                                     "prompt_logprobs": 5, "temperature": 0}).raise_for_status().json()  # fmt: skip
    assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [2102, 2102]
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_thousands_of_prompts_in_one_request_each_get_their_answer(server: Server) -> None:
    with server.http as http:
        body = {"prompt": [[65 + i % 20] for i in range(300)], "max_tokens": 1, "temperature": 0}
        answer = http.post(TEXT, json=body).raise_for_status().json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(texts) == 300
    assert texts[:20] == texts[20:40] == texts[280:]
    assert answer["usage"]["prompt_tokens"] == 300


def test_the_log_tells_what_became_of_each_request(start_server) -> None:
    server = start_server("--model", "tiny", "--kv-memory", "4MiB", "--log-requests", "--log-format", "json")
    with server.http as http:
        http.post(TEXT, json={"prompt": "abcd", "max_tokens": 3, "ignore_eos": True, "n": 2}).raise_for_status()
        http.post(TEXT, json={"prompt": "abcd", "max_tokens": 2, "use_beam_search": True, "n": 2}).raise_for_status()
        http.post(CHAT, json={"messages": USER, "max_tokens": 2, "stream": True}).raise_for_status()
        with pytest.raises(httpx.ReadTimeout):
            http.post(TEXT, json={"prompt": "abcd", "max_tokens": 4000, "ignore_eos": True}, timeout=0.2)
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.stderr.read_text().splitlines() if line.startswith("{")]
    plain, beams, chat, left = [line for line in lines if "answer" in line]
    assert (plain["prompt_tokens"], plain["output_tokens"], plain["finish"]) == (4, 6, ["length"])
    assert plain["cached_tokens"] == 0
    assert 0 < plain["ttft"] <= plain["seconds"]
    assert (beams["prompt_tokens"], beams["output_tokens"]) == (4, 4)
    assert "ttft" not in beams
    assert chat["answer"].startswith("chatcmpl-")
    assert chat["ttft"] > 0
    assert left["finish"] == ["abort"]
    assert left["ended"] in ("left", "aborted")


@pytest.mark.parametrize(
    ("route", "fields", "param", "count"),
    [
        (CHAT, {"n": 64, "max_tokens": 2400, "logprobs": True, "top_logprobs": 20}, "logprobs", 64 * 2400 * 21),
        (TEXT, {"n": 1, "best_of": 64, "max_tokens": 2400, "logprobs": 20}, "logprobs", 64 * 2400 * 21),
        (TEXT, {"n": 64, "prompt": [65] * 2400, "prompt_logprobs": 20}, "prompt_logprobs", 64 * 2400 * 21),
        (TEXT, {"n": 64, "prompt": [65] * 2400, "logprobs": 20, "echo": True}, "logprobs", 64 * 2416 * 21),
    ],
)
def test_a_whole_answer_tells_so_many_log_probabilities(
    server: Server, route: str, fields: dict, param: str, count: int
) -> None:
    refused(server, route, fields, param, "at most 3,145,728 log-prob", f"have {count:,}", "max_tokens", "(n)")


def test_what_is_streamed_or_told_once_may_be_more(server: Server) -> None:
    good = {"messages": USER, "n": 64, "logprobs": True, "top_logprobs": 20, "stream": True, "max_tokens": 2400}
    with server.http as http:
        with http.stream("POST", CHAT, json=good) as response:
            assert response.status_code == 200
            assert "top_logprobs" in next(response.iter_lines())
        messages = [{"role": "user", "content": "a" * 2400}]  # a chat tells its prompt's once, not 64 times
        once = {"messages": messages, "n": 64, "prompt_logprobs": 20, "max_tokens": 1}
        assert http.post(CHAT, json=once).status_code == 200
