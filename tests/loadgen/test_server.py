"""What a server tells of itself, and in which words one that cannot be used is told."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from picky import Picky

from loadgen.access import Access
from loadgen.client import open_http
from loadgen.server import LONGEST_BODY, ServerError, ServerFacts, find_server

SLOT = {"default_generation_settings": {"n_ctx": 2048}, "build_info": "b8681"}
TGI = {"model_id": "x", "max_total_tokens": 1024, "version": "3.3.0", "max_input_tokens": 1000}


async def found(server: Picky, model: str | None = None, key: str | None = None) -> ServerFacts:
    async with server, open_http(Access(key)) as http:
        return await find_server(http, server.url, model)


@pytest.mark.parametrize(
    ("owner", "card", "pages", "facts"),
    [
        ("paged-top", {"max_model_len": 99}, {"/version": {"version": "0.1.0"}}, ("paged-engine", "0.1.0", 99)),
        ("vllm", {"max_model_len": 99}, {"/version": {"version": "0.11.0"}}, ("vllm", "0.11.0", 99)),
        ("sglang", {"max_model_len": 99}, {"/get_server_info": {"version": "0.5"}}, ("sglang", "0.5", 99)),
        ("sglang", {"max_model_len": 99}, {"/server_info": {"version": "0.6"}}, ("sglang", "0.6", 99)),
        ("llamacpp", {"meta": {"n_ctx_train": 8192}}, {"/props": SLOT}, ("llama.cpp", "b8681", 2048)),
        ("tensorrt_llm", {}, {"/version": {"version": "1.0"}}, ("tensorrt-llm", "1.0", None)),
        ("some/model", {}, {"/info": TGI}, ("tgi", "3.3.0", 1024)),
        ("openai", {}, {}, ("unknown", None, None)),
        (None, {"max_model_len": None}, {"/info": {"version": 3}}, ("unknown", None, None)),
    ],
)
async def test_each_server_is_known_by_what_it_tells(
    owner: str | None, card: dict[str, Any], pages: dict[str, Any], facts: tuple[str, str | None, int | None]
) -> None:
    told = await found(Picky(models=[{"id": "a", "owned_by": owner, **card}, {"id": "b"}], pages=pages))
    assert (told.kind, told.version, told.max_model_len) == facts
    assert (told.model, told.models) == ("a", ("a", "b"))


async def test_a_named_model_is_asked_though_it_is_not_listed() -> None:
    """Some servers take aliases; its context is not that of another."""
    told = await found(Picky(), "alias")
    assert (told.model, told.models, told.kind, told.max_model_len) == ("alias", ("m",), "vllm", None)
    assert (await found(Picky(status=404), "alias")).models == ()


async def test_a_model_that_is_not_served() -> None:
    with pytest.raises(ServerError, match=r"--model alias: http.* does not serve it; it lists m"):
        await found(Picky(only="m"), "alias")


@pytest.mark.parametrize(
    ("shape", "tokenizes"),
    [("vllm", True), ("plain", True), ("llama.cpp", True), ("counts only", False), (None, False)],
)
async def test_a_tokenizer_is_one_that_gives_ids(shape: str | None, tokenizes: bool) -> None:
    assert (await found(Picky(tokenize=shape))).tokenizes is tokenizes


@pytest.mark.parametrize(
    ("server", "model", "key", "words"),
    [
        (Picky(key="right"), "m", None, "answered 401: the server wants a key; give it with --api-key"),
        (Picky(key="right"), None, "wrong", "answered 401: the server refuses the key; give its key with --api-key"),
        (Picky(models=[]), None, None, "lists no model; name the model with --model"),
        (Picky(models=None), None, None, "lists no model; name the model with --model"),
        (Picky(status=404), None, None, "answered 404; name the model with --model"),
        (Picky(status=503), "m", None, "answered 503: the model is loading"),
    ],
)
async def test_what_a_person_can_do_is_said(server: Picky, model: str | None, key: str | None, words: str) -> None:
    with pytest.raises(ServerError, match=words):
        await found(server, model, key)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            web.Response(status=307, headers={"Location": "https://other/v1"}),
            "answered 307: it sends to https://other/v1",
        ),
        (web.Response(body=b"x" * (LONGEST_BODY + 1)), "no server at .*: its answer is longer than 16,777,216 bytes"),
    ],
)
async def test_answers_that_are_no_list(answer: web.Response, words: str) -> None:
    class Other(Picky):
        async def _models(self, _: web.Request) -> web.Response:
            return answer

    with pytest.raises(ServerError, match=words):
        await found(Other())


async def test_a_context_that_cannot_be_is_not_known() -> None:
    assert (await found(Picky(models=[{"id": "a", "max_model_len": -5}]))).max_model_len is None


async def test_no_server() -> None:
    async with Picky() as server:
        url = server.url
    async with open_http() as http:
        with pytest.raises(ServerError, match=f"no server at {url}: "):
            await find_server(http, url, None)


def test_answers_without_usage_are_noted() -> None:
    facts = ServerFacts(url="u", model="m")
    assert facts.notes() == []
    (note,) = ServerFacts(url="u", model="m", usage=False).notes()
    assert "no usage" in note
