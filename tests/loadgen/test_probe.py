"""A trial request finds what a server cannot do, and says which flag asks for less."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from picky import TEMPLATE_AFTER, TEMPLATE_BEFORE, Picky

from loadgen.access import Access
from loadgen.asking import Asker
from loadgen.client import open_http
from loadgen.needs import Needs
from loadgen.probe import probe
from loadgen.server import ServerError, ServerFacts, find_server
from loadgen.settings import Settings
from loadgen.text.tokenizer import ServerTokenizer
from loadgen.text.vocabulary import Endpoint, Vocabulary, find_vocabulary
from loadgen.traces.model import FORMAT, VERSION, Asked, Header, Session, Turn

CHAT, COMPLETIONS = Endpoint.CHAT.path, Endpoint.COMPLETIONS.path
TEXT = Turn(user="Hi", output_tokens=3)
LENGTH = Turn(input_tokens=100, output_tokens=3)
WRITTEN = Turn(request=Asked(CHAT, {"model": "m", "messages": []}))


def session(*turns: Turn) -> Session:
    return Session(session="s", arrival=0.0, turns=turns)


async def tried(
    server: Picky, *turns: Turn, key: str | None = None, model: str | None = None, **settings: Any
) -> tuple[ServerFacts, Vocabulary | None]:
    asked = Settings(file="t", **settings)
    needs = Needs(asked)
    needs.add(session(*turns))
    async with server, open_http(Access(key)) as http:
        facts = await find_server(http, server.url, model)
        tokenizer = ServerTokenizer(http, server.url, facts.model)
        vocabulary = await find_vocabulary(tokenizer) if needs.vocabulary else None
        facts, vocabulary = await probe(http, facts, asked, needs, vocabulary)
        if vocabulary is not None:
            await prove(http, facts, asked, vocabulary, server)
        return facts, vocabulary


async def prove(http: Any, facts: ServerFacts, settings: Settings, vocabulary: Vocabulary, server: Picky) -> None:
    """What would be sent then has the tokens that are asked for."""
    payload = Asker(Header(FORMAT, VERSION), facts, settings, vocabulary).payload(session(LENGTH), 0, 0, {})
    body = msgspec.json.decode(payload.body)
    text = body["prompt"] if "prompt" in body else TEMPLATE_BEFORE + body["messages"][0]["content"] + TEMPLATE_AFTER
    counted = len(server.begin + text if "prompt" in body else text) * server.factor
    assert counted == payload.asked_input == LENGTH.input_tokens


async def test_one_request_is_enough_for_a_good_server() -> None:
    server = Picky()
    facts, _ = await tried(server, TEXT, model="m")
    assert (facts.chat, facts.completions, facts.usage) == (True, None, True)
    (body,) = server.bodies(CHAT)
    assert not server.bodies(COMPLETIONS)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 2,
        "ignore_eos": True,
        "temperature": 0.0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_texts_and_lengths_try_both_endpoints() -> None:
    facts, vocabulary = await tried(Picky(), TEXT, LENGTH)
    assert (facts.chat, facts.completions) == (True, True)
    assert vocabulary is not None
    assert vocabulary.frames[Endpoint.COMPLETIONS].tokens == 0


async def test_without_completions_lengths_are_asked_as_chats() -> None:
    facts, vocabulary = await tried(Picky(endpoints=(CHAT,)), LENGTH)
    assert (facts.chat, facts.completions) == (True, False)
    assert vocabulary is not None
    frame = vocabulary.frames[Endpoint.CHAT]
    assert (frame.before, frame.after) == (len(TEMPLATE_BEFORE), len(TEMPLATE_AFTER))


async def test_a_template_that_no_tokenizer_tells_is_measured() -> None:
    server = Picky(endpoints=(CHAT,), tokenize="plain")
    _, vocabulary = await tried(server, LENGTH)
    assert vocabulary is not None
    frame = vocabulary.frames[Endpoint.CHAT]
    assert frame.tokens == len(TEMPLATE_BEFORE + TEMPLATE_AFTER + frame.opening)


async def test_a_begin_that_the_tokenizer_does_not_tell_is_measured() -> None:
    _, vocabulary = await tried(Picky(begin="!"), LENGTH)
    assert vocabulary is not None
    assert vocabulary.frames[Endpoint.COMPLETIONS].before == 1


async def test_the_trial_shares_no_text_with_the_run() -> None:
    server = Picky()
    facts, vocabulary = await tried(server, LENGTH)
    trials = {body["prompt"][:16] for body in server.bodies(COMPLETIONS)}
    asker = Asker(Header(FORMAT, VERSION), facts, Settings(file="t"), vocabulary)
    for index in range(200):
        prompt = json.loads(asker.payload(session(LENGTH), index, 0, {}).body)["prompt"]
        assert prompt[:16] not in trials


async def test_usage_that_does_not_come_is_known() -> None:
    assert (await tried(Picky(usage=False), TEXT))[0].usage is False
    facts, vocabulary = await tried(Picky(usage=False), TEXT, LENGTH)
    assert facts.usage is False
    assert vocabulary is not None, "the tokenizer tells"


@pytest.mark.parametrize(
    ("refuses", "facts"),
    [
        ({"stream_options": "Unrecognized request argument: stream_options"}, {"takes_stream_options": False}),
        (
            {"max_tokens": "Unsupported parameter: use 'max_completion_tokens' instead."},
            {"length_field": "max_completion_tokens"},
        ),
    ],
)
async def test_what_a_server_calls_otherwise_is_asked_otherwise(refuses: dict[str, str], facts: dict[str, Any]) -> None:
    server = Picky(refuses=refuses)
    found, _ = await tried(server, TEXT)
    assert {name: getattr(found, name) for name in facts} == facts
    assert found.chat
    assert not set(refuses) & set(server.bodies(CHAT)[-1])


@pytest.mark.parametrize(
    ("server", "turn", "settings", "words"),
    [
        (Picky(refuses={"ignore_eos": "extra field: ignore_eos"}), TEXT, {}, "--no-ignore-eos leaves it out"),
        (Picky(refuses={"ignore_eos": "bad request"}), TEXT, {}, "bad request; .* --no-ignore-eos leaves it out"),
        (Picky(refuses={"stream": "not here"}), TEXT, {}, "not here; .* --no-stream asks for none"),
        (Picky(streams=False), TEXT, {}, "not text/event-stream; .* --no-stream"),
        (Picky(refuses={"top_k": "what is top_k?"}), TEXT, {"extra_body": {"top_k": 3}}, "top_k is from --extra-body"),
        (Picky(refuses={"messages": "no chat template"}), TEXT, {}, "--endpoint completions asks without a template"),
        (Picky(endpoints=(COMPLETIONS,)), TEXT, {}, f"no http.*{CHAT}; --endpoint completions asks the other"),
        (Picky(endpoints=(CHAT,)), LENGTH, {"endpoint": "completions"}, f"no http.*{COMPLETIONS}; --endpoint chat"),
        (Picky(endpoints=()), LENGTH, {}, f"no http.*{CHAT}"),
        (Picky(endpoints=(COMPLETIONS,)), WRITTEN, {}, f"no http.*{CHAT}$"),
        (Picky(endpoints=(CHAT,), tokenize="plain", usage=False), LENGTH, {}, "--endpoint completions asks without"),
        (Picky(refuses={"temperature": "too warm"}), TEXT, {}, "POST http.*: 400: too warm$"),
        (Picky(factor=2), LENGTH, {}, "by the server's /tokenize a prompt has .* it is not the tokenizer of m; --tok"),
    ],
)
async def test_a_refusal_names_the_flag_that_helps(
    server: Picky, turn: Turn, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ServerError, match=words):
        await tried(server, turn, **settings)


async def test_another_model_is_named() -> None:
    with pytest.raises(ServerError, match=r"`alias` does not exist\.; it lists m; --model names another model"):
        await tried(Picky(only="m", tokenize=None), TEXT, model="alias")


async def test_a_key_that_only_answers_need() -> None:
    """Some proxies list models to everybody."""
    server = Picky(refuses={})
    async with server, open_http(Access("wrong")) as http:
        facts = await find_server(http, server.url, None)
        server.key = "right"
        needs = Needs(Settings(file="t"))
        needs.add(session(TEXT))
        with pytest.raises(ServerError, match="401: no such key: the server refuses the key; give its key with --api-"):
            await probe(http, facts, Settings(file="t"), needs)


@pytest.mark.parametrize(
    ("server", "settings"),
    [
        (Picky(refuses={"ignore_eos": "no"}), {"ignore_eos": False}),
        (Picky(streams=False), {"stream": False}),
        (Picky(refuses={"stream": "no"}), {"stream": False}),
        (Picky(endpoints=(COMPLETIONS,)), {"endpoint": "completions"}),
        (Picky(refuses={"temperature": "no", "seed": "no"}), {"extra_body": {"temperature": None, "seed": None}}),
    ],
)
async def test_with_the_flag_it_is_served(server: Picky, settings: dict[str, Any]) -> None:
    facts, _ = await tried(server, TEXT, **settings)
    assert facts.chat or facts.completions
    assert facts.usage


async def test_a_field_that_a_model_does_not_take_is_left_out_and_told() -> None:
    server = Picky(refuses={"temperature": "Unsupported value: 'temperature' does not support 0."})
    facts, _ = await tried(server, TEXT)
    assert list(facts.left_out) == ["temperature"]
    assert "temperature" not in server.bodies(CHAT)[-1]
    (note,) = (note for note in facts.notes() if note.startswith("temperature was left out of all requests"))
    assert "does not support 0" in note
    payload = Asker(Header(FORMAT, VERSION), facts, Settings(file="t")).payload(session(TEXT), 0, 0, {})
    body = msgspec.json.decode(payload.body)
    assert ("temperature" in body, body["seed"], body["stream"]) == (False, 0, True)


async def test_requests_as_written_do_not_need_what_loadgen_would_add() -> None:
    facts, _ = await tried(Picky(refuses={"ignore_eos": "no"}), WRITTEN)
    assert facts.chat


async def test_nobody_there_any_more() -> None:
    async with Picky() as server, open_http() as http:
        facts = await find_server(http, server.url, None)
    async with open_http() as http:
        needs = Needs(Settings(file="t"))
        needs.add(session(TEXT))
        with pytest.raises(ServerError, match=r"[Cc]annot connect|refused"):
            await probe(http, facts, Settings(file="t", timeout=1), needs)
