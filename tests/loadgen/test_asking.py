"""What is sent for a turn: bodies as they are written, and what they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.asking import Asker, Payload
from loadgen.server import ServerFacts
from loadgen.settings import Settings
from loadgen.text.vocabulary import Endpoint, Frame, Vocabulary
from loadgen.traces.model import FORMAT, VERSION, Asked, Header, Session, TraceError, Turn

FACTS = ServerFacts(url="http://x", model="m", models=("m", "other"))
LETTERS = Vocabulary(
    tuple("abcdefghijklmnop"), {Endpoint.COMPLETIONS: Frame(before=1), Endpoint.CHAT: Frame(before=5, after=3)}
)
HEADER = Header(FORMAT, VERSION, {"main": "Be kind."}, 0.7, block_size=16)
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
SAMPLING = {"temperature": 0.7, "seed": 4, **STREAM}


def ask(
    *turns: Turn,
    turn: int = 0,
    index: int = 0,
    replies: Mapping[int, str] | None = None,
    system: str | None = None,
    header: Header = HEADER,
    facts: ServerFacts = FACTS,
    vocabulary: Vocabulary | None = LETTERS,
    **settings: Any,
) -> tuple[Payload, dict[str, Any]]:
    session = Session(session="s", arrival=0.0, system=system, turns=turns)
    payload = Asker(header, facts, Settings(file="t", **settings), vocabulary).payload(
        session, index, turn, replies or {}
    )
    return payload, msgspec.json.decode(payload.body)


def test_a_message_is_a_chat() -> None:
    payload, body = ask(Turn(user="Hi", output_tokens=9, seed=4), system="main")
    assert (payload.path, payload.asked_input, payload.asked_output) == ("/v1/chat/completions", None, 9)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert body == {"model": "m", "messages": messages, "max_tokens": 9, "ignore_eos": True, **SAMPLING}


def test_a_branch_carries_the_real_answers() -> None:
    turns = (
        Turn(user="one", output_tokens=1),
        Turn(user="two", output_tokens=1),
        Turn(user="else", parent=0, output_tokens=1),
        Turn(regenerates=2, output_tokens=1, seed=8),
        Turn(user="alone", parent=None, output_tokens=1),
    )
    replies = {0: "first", 1: "second", 2: "third", 3: "fourth"}

    def contents(turn: int) -> list[str]:
        return [message["content"] for message in ask(*turns, turn=turn, replies=replies)[1]["messages"]]

    assert contents(1) == ["one", "first", "two"]
    assert contents(2) == contents(3) == ["one", "first", "else"]
    assert contents(4) == ["alone"]
    roles = [message["role"] for message in ask(*turns, turn=1, replies=replies)[1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_a_chat_as_plain_text() -> None:
    """An answer goes on where its prompt ended, so that its tokens are found in the cache again."""
    turns = (Turn(user="one", output_tokens=1), Turn(user="two", output_tokens=2))
    payload, body = ask(*turns, turn=1, replies={0: " and so on"}, system="main", endpoint="completions")
    assert payload.path == "/v1/completions"
    assert body["prompt"] == "Be kind.\n\none and so on\n\ntwo"
    assert (body["max_tokens"], "messages" in body) == (2, False)
    first, _ = ask(*turns, system="main", endpoint="completions")
    assert body["prompt"].startswith(msgspec.json.decode(first.body)["prompt"])


def test_without_a_recorded_length_the_server_decides() -> None:
    payload, body = ask(Turn(user="Hi", seed=4))
    assert payload.asked_output is None
    assert body == {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **SAMPLING}


def test_an_answer_that_nobody_has_counted() -> None:
    with pytest.raises(TraceError, match=r"session s: turns\[0\]\.output_tokens: .* --tokenizer"):
        ask(Turn(user="Hi", reply="Hello you"))


def test_settings_leave_out_what_a_server_does_not_take() -> None:
    turn = Turn(user="Hi", output_tokens=9, seed=4)
    _, body = ask(turn, ignore_eos=False, stream=False)
    assert not {"ignore_eos", "stream", "stream_options"} & set(body)
    facts = msgspec.structs.replace(FACTS, takes_stream_options=False, length_field="max_completion_tokens")
    payload, body = ask(turn, facts=facts)
    assert (body["stream"], body["max_completion_tokens"], payload.asked_output) == (True, 9, 9)
    assert not {"stream_options", "max_tokens"} & set(body)
    _, body = ask(turn, facts=facts, endpoint="completions")
    assert body["max_tokens"] == 9, "only chats have the newer field"


def test_fields_that_a_server_does_not_take_are_left_out() -> None:
    facts = msgspec.structs.replace(FACTS, left_out={"ignore_eos": "", "temperature": "not here"})
    _, body = ask(Turn(user="Hi", output_tokens=9, seed=4), facts=facts)
    assert not {"ignore_eos", "temperature"} & set(body)
    assert (body["seed"], body["max_tokens"], body["stream"]) == (4, 9, True)
    _, body = ask(Turn(user="Hi", output_tokens=9, seed=4), facts=facts, extra_body={"temperature": 0.5})
    assert body["temperature"] == 0.5


def test_an_extra_body_has_the_last_word() -> None:
    turn = Turn(user="Hi", output_tokens=9, seed=4)
    payload, body = ask(turn, extra_body={"top_k": 5, "temperature": 0.1, "seed": None, "n": 2, "max_tokens": 7})
    assert (body["top_k"], body["temperature"], body["max_tokens"], "seed" in body) == (5, 0.1, 7, False)
    assert payload.asked_output == 14, "two answers of seven tokens"


@pytest.mark.parametrize(
    ("name", "hint"), [("model", "--model"), ("stream", "--no-stream"), ("messages", "trace"), ("prompt", "trace")]
)
def test_an_extra_body_leaves_alone_what_is_decided_here(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: not allowed in an extra body; .*{hint}"):
        ask(Turn(user="Hi"), extra_body={name: 1})


def test_a_written_request_is_streamed_with_usage() -> None:
    body = {"model": "other", "prompt": "x", "max_tokens": 3, "stream": False, "top_p": 0.5}
    payload, sent = ask(Turn(request=Asked("/v1/completions", body), output_tokens=5))
    assert payload == Payload("/v1/completions", payload.body, None, None)
    assert sent == {**body, **STREAM}
    assert body["stream"] is False, "the trace's own body stays as it was"
    payload, _ = ask(Turn(request=Asked("/v1/completions", {**body, "ignore_eos": True})))
    assert payload.asked_output == 3, "here the length is sure"
    _, sent = ask(Turn(request=Asked("/v1/completions", {**body, "stream": True})), stream=False)
    assert "stream" not in sent


@pytest.mark.parametrize(
    ("own", "named", "asked"), [("gpt-9", None, "m"), ("other", None, "other"), ("other", "m", "m"), (None, None, "m")]
)
def test_a_written_request_goes_to_a_model_that_is_there(own: str | None, named: str | None, asked: str) -> None:
    body = {"prompt": "x"} if own is None else {"prompt": "x", "model": own}
    assert ask(Turn(request=Asked("/v1/completions", body)), model=named)[1]["model"] == asked


def test_a_written_request_to_elsewhere() -> None:
    with pytest.raises(TraceError, match=r"turns\[0\]\.request\.path: only .* got '/v1/embeddings'"):
        ask(Turn(request=Asked("/v1/embeddings", {})))


def test_a_length_is_a_completion_of_so_many_tokens() -> None:
    payload, body = ask(Turn(input_tokens=20, output_tokens=9, seed=4))
    assert (payload.path, payload.asked_input, payload.asked_output) == ("/v1/completions", 20, 9)
    assert len(body.pop("prompt")) == 19, "the server puts one token before it"
    assert body == {"model": "m", "max_tokens": 9, "ignore_eos": True, **SAMPLING}


@pytest.mark.parametrize("way", [{"endpoint": "chat"}, {"facts": msgspec.structs.replace(FACTS, completions=False)}])
def test_a_length_as_a_chat(way: dict[str, Any]) -> None:
    payload, body = ask(Turn(input_tokens=20, output_tokens=9), system="main", **way)
    assert (payload.path, payload.asked_input) == ("/v1/chat/completions", 20)
    (message,) = body["messages"]
    assert (message["role"], len(message["content"])) == ("user", 12)


@given(st.integers(1, 3000), st.booleans())
def test_every_length_is_exact(tokens: int, chat: bool) -> None:
    frame = LETTERS.frames[Endpoint.CHAT if chat else Endpoint.COMPLETIONS]
    payload, body = ask(Turn(input_tokens=tokens), endpoint="chat" if chat else "completions")
    text = body["messages"][0]["content"] if chat else body["prompt"]
    assert len(text) + frame.tokens == max(tokens, frame.least)
    assert payload.asked_input == tokens


def test_blocks_are_shared_by_hash_ids_alone() -> None:
    def prompt(turn: Turn, **more: Any) -> str:
        return str(ask(turn, **more)[1]["prompt"])

    one = prompt(Turn(input_tokens=40, hash_ids=(7, 8, 9)), index=1)
    two = prompt(Turn(input_tokens=48, hash_ids=(7, 8, 10)), index=2)
    assert one[:31] == two[:31]
    assert one[31] != two[31]
    assert prompt(Turn(input_tokens=40, hash_ids=(7, 8, 9)), index=1, seed=5)[:15] != one[:15]
    alone = [prompt(Turn(input_tokens=40), index=index) for index in range(5)]
    assert len({text[:15] for text in [*alone, one]}) == 6
    assert prompt(Turn(input_tokens=40), index=3) == alone[3], "the same each time"
    second = Turn(input_tokens=40), Turn(input_tokens=40)
    assert ask(*second, turn=1, index=3)[1]["prompt"][:15] != alone[3][:15]


def test_a_length_without_a_tokenizer() -> None:
    with pytest.raises(TraceError, match=r"session s: turns\[0\]\.input_tokens: .* --tokenizer"):
        ask(Turn(input_tokens=20), vocabulary=None)


def test_a_frame_that_nobody_measured() -> None:
    completions_only = Vocabulary(LETTERS.pieces, {Endpoint.COMPLETIONS: Frame()})
    with pytest.raises(TraceError, match="nothing tells how many tokens surround a prompt of /v1/chat/completions"):
        ask(Turn(input_tokens=20), vocabulary=completions_only, endpoint="chat")


def test_hash_ids_need_a_block_size() -> None:
    with pytest.raises(TraceError, match="hash_ids: the header has no block_size"):
        ask(Turn(input_tokens=20, hash_ids=(1, 2)), header=Header(FORMAT, VERSION))
