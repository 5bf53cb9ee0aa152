"""Errors of every kind: their form, what the official client makes of them, and what the log says of them."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from aiohttp import web

from engine.core_client import CallUnansweredError, EngineDiedError
from engine.server.app import make_app
from engine.server.errors import ApiError
from engine.server.events import EventStream
from engine.server.model_routes import ModelRoutes
from engine.server.service import Service
from engine.server.settings import ServeSettings

KINDS = [
    (400, openai.BadRequestError, "invalid_request_error"),
    (401, openai.AuthenticationError, "invalid_request_error"),
    (403, openai.PermissionDeniedError, "invalid_request_error"),
    (404, openai.NotFoundError, "invalid_request_error"),
    (408, openai.APIStatusError, "invalid_request_error"),
    (413, openai.APIStatusError, "invalid_request_error"),
    (429, openai.RateLimitError, "rate_limit_error"),
    (500, openai.InternalServerError, "server_error"),
    (503, openai.InternalServerError, "server_error"),
]


@asynccontextmanager
async def serving(monkeypatch, handler: Callable) -> AsyncIterator[str]:
    """The real application, with one handler for what it cannot be made to do from outside."""

    async def models(self: ModelRoutes, request: web.Request) -> web.StreamResponse:
        return await handler(request)

    monkeypatch.setattr(ModelRoutes, "models", models)
    runner = web.AppRunner(make_app(Service(ServeSettings(("tiny",)))), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def raiser(error: BaseException) -> Callable:
    async def handler(request: web.Request) -> web.StreamResponse:
        raise error

    return handler


@pytest.mark.parametrize(("status", "exception", "kind"), KINDS)
async def test_the_openai_client_raises_its_exception(monkeypatch, status: int, exception, kind: str) -> None:
    error = ApiError("field: it is wrong", status=status, param="field", code="its_code", headers={"X-More": "told"})
    async with (
        serving(monkeypatch, raiser(error)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(exception) as raised:
            await client.models.list()
    told = raised.value
    assert (told.status_code, told.type, told.param, told.code) == (status, kind, "field", "its_code")
    assert "field: it is wrong" in str(told)
    assert told.response.headers["X-More"] == "told"
    assert told.request_id == told.body["request_id"]


@pytest.mark.parametrize("status", [429, 503])
async def test_the_openai_client_comes_again_when_it_is_told_to(monkeypatch, caplog, status: int) -> None:
    asked: list[str] = []

    async def busy_twice(request: web.Request) -> web.Response:
        asked.append(request.headers["X-Stainless-Retry-Count"])
        if len(asked) < 3:
            raise ApiError("busy", status=status, headers={"Retry-After": "0.01"})
        return web.json_response({"object": "list", "data": []})

    caplog.set_level(logging.INFO, "openai._base_client")
    async with (
        serving(monkeypatch, busy_twice) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2) as client,
    ):
        assert (await client.models.list()).data == []
    assert asked == ["0", "1", "2"]
    waits = [message for message in caplog.messages if message.startswith("Retrying")]
    assert len(waits) == 2
    assert all("in 0.010000 seconds" in wait for wait in waits)


async def test_what_nobody_foresaw_is_told_by_its_stack_and_not_its_words(monkeypatch, caplog) -> None:
    async with serving(monkeypatch, raiser(KeyError("a prompt"))) as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.get("/v1/models", headers={"X-Request-Id": "unlucky"})
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["type"], error["request_id"]) == ("server_error", "unlucky")
    assert "prompt" not in error["message"]
    (line,) = [record for record in caplog.records if record.fields["event"] == "request_ended"]
    assert line.levelname == "ERROR"
    assert (line.fields["request"], line.fields["status"], line.fields["ended"]) == ("unlucky", 500, "failed")
    assert line.exc_info[0] is KeyError
    assert line.words is False


@pytest.mark.parametrize("raised", [KeyError("a prompt"), EngineDiedError("died"), ApiError("failed", status=500)])
async def test_a_stream_that_has_begun_ends_with_its_error(monkeypatch, caplog, raised: Exception) -> None:
    async def fails(request: web.Request) -> web.StreamResponse:
        await EventStream(request).data(b"{}")
        raise raised

    caplog.set_level(logging.DEBUG, "engine")
    async with serving(monkeypatch, fails) as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.get("/v1/models", headers={"X-Request-Id": "unlucky"})
        again = await http.get("/v1/models")  # over the same connection
    assert (answer.status_code, again.status_code) == (200, 200)
    first, error, done, *_ = answer.text.split("\n\n")
    assert (first, done) == ("data: {}", "data: [DONE]")
    told = json.loads(error.removeprefix("data: "))["error"]
    assert (told["type"], told["request_id"]) == ("server_error", "unlucky")
    assert "prompt" not in told["message"]
    line = next(record for record in caplog.records if record.fields["event"] == "request_ended")
    assert (line.fields["status"], line.fields["ended"]) == (200, "failed")


async def test_a_flood_of_failures_is_told_so_often_and_no_more(monkeypatch, caplog) -> None:
    async with serving(monkeypatch, raiser(KeyError("x"))) as url, httpx.AsyncClient(base_url=url) as http:
        for _ in range(30):
            assert (await http.get("/v1/models")).status_code == 500
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 10


@pytest.mark.parametrize("raised", [web.HTTPFound("/elsewhere"), web.HTTPConflict(), web.HTTPUnsupportedMediaType()])
async def test_what_aiohttp_raises_has_the_form_of_all_errors(monkeypatch, raised: web.HTTPException) -> None:
    async with serving(monkeypatch, raiser(raised)) as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.get("/v1/models")
    assert answer.status_code == raised.status
    assert answer.json()["error"]["message"] == raised.reason.lower()


def test_a_method_that_a_path_has_not(http) -> None:
    answer = http.put("/v1/models")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert "PUT is not allowed here; allowed: GET, HEAD, OPTIONS" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/health", "GET, HEAD, OPTIONS"),
        ("/v1/completions", "OPTIONS, POST"),
        ("/engine/control", "GET, HEAD, OPTIONS, PATCH"),
        ("/engine/steps", "GET, OPTIONS"),  # it has no end, so there is no HEAD of it
    ],
)
def test_options_tells_what_a_path_has(http, path: str, allowed: str) -> None:
    answer = http.options(path)
    assert (answer.status_code, answer.headers["Allow"], answer.content) == (204, allowed, b"")
    assert http.options("/nowhere").status_code == 404


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/tiny", "/metrics", "/engine/control"])
def test_head_is_get_without_a_body(http, path: str) -> None:
    head, get = http.head(path), http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    assert http.head("/engine/steps").status_code == 405


@pytest.mark.parametrize("path", ["/v1/models/", "//v1/models", "/v1/../v1/models", "/%76%31/models", "/V1/models"])
def test_a_path_is_not_bent_into_another(server, path: str) -> None:
    """An odd path is its route, or none: there are no redirects."""
    with server.http as http:
        assert http.get(httpx.URL(server.url + path)).status_code in (200, 404)
        assert http.get("/nowhere" + "x" * 3000).json()["error"]["message"].startswith("no such route: /nowherexx")
        assert len(http.get("/nowhere" + "x" * 3000).json()["error"]["message"]) < 300


async def test_an_engine_that_does_not_answer_is_named(monkeypatch) -> None:
    silent = "replica-1 has not answered for 5 s"
    async with (
        serving(monkeypatch, raiser(CallUnansweredError(silent))) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        answer = await http.get("/v1/models")
    assert answer.status_code == 503
    assert (answer.json()["error"]["message"], answer.json()["error"]["code"]) == (silent, "engine_silent")
