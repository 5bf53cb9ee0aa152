"""The OpenAPI document: every route and nothing else, valid, and true of what the server answers."""

import json
import re

import httpx
import jsonschema
import pytest
from aiohttp import web
from schemathesis.specs.openapi import definitions

from engine.keys import digest
from engine.server.app import make_app
from engine.server.openapi import OPENAPI, document, path_of
from engine.server.routes import routes
from engine.server.service import Service
from engine.server.settings import Access, ServeSettings
from tests.fuzz.stated import Stated


@pytest.fixture(scope="module")
def service() -> Service:
    return Service(ServeSettings(("tiny",)))


@pytest.fixture(scope="module")
def told(server) -> dict:
    with server.http as http:
        return http.get("/openapi.json").raise_for_status().json()


def test_every_route_of_the_application_is_in_it_and_nothing_else(service) -> None:
    resources = make_app(service).router.resources()
    there = {
        (route.method, resource.canonical)
        for resource in resources
        for route in resource
        if route.method != "HEAD" and isinstance(resource, web.Resource)
    }
    paths = document(routes(service), Access())["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == there
    assert ("GET", "/openapi.json") in there


def test_it_is_valid_by_openapis_own_schema(told) -> None:
    assert told["openapi"] == OPENAPI
    jsonschema.Draft202012Validator(definitions.OPENAPI_31).validate(told)
    for name, schema in told["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        for reference in re.findall(r'"\$ref": ?"#/components/schemas/(\w+)"', json.dumps(schema)):
            assert reference in told["components"]["schemas"], name


@pytest.mark.parametrize(
    ("access", "client", "admin"),
    [
        (Access(), [{"apiKey": []}, {"adminKey": []}, {}], [{"adminKey": []}, {}]),
        (Access(api_keys=(digest("a" * 20),)), [{"apiKey": []}, {"adminKey": []}], [{"adminKey": []}]),
    ],
)
def test_it_says_whose_key_opens_what(service, access: Access, client: list, admin: list) -> None:
    told = document(routes(service), access)
    for route in routes(service):
        operation = told["paths"][path_of(route)][route.method.lower()]
        wanted = {"anyone": None, "client": client, "admin": admin}[route.who]
        assert operation.get("security") == wanted
        assert ("401" in operation["responses"]) == (route.who != "anyone")
    assert "a" * 20 not in json.dumps(told)


def test_bodies_and_parameters_are_told(told) -> None:
    chat = told["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatBody"}
    assert set(told["components"]["schemas"]["ChatBody"]["required"]) == {"messages"}
    [wanted] = told["paths"]["/engine/steps"]["get"]["parameters"]
    assert (wanted["name"], wanted["in"], wanted.get("required", False)) == ("from", "query", False)
    [block] = told["paths"]["/engine/blocks/{block}"]["get"]["parameters"]
    assert (block["name"], block["in"], block["required"]) == ("block", "path", True)


def check(told: dict, path: str, response: httpx.Response) -> None:
    """The answer is one that the document states, with a body as it says."""
    media = response.headers.get("content-type", "").partition(";")[0]
    problem = Stated(told).problem(response.request.method, path, response.status_code, media, response.content)
    assert not problem, problem
    if media == "text/event-stream":
        assert response.content.count(b"data: ") > 1


USER = [{"role": "user", "content": "hi"}]
ASKED = [
    ("POST", "/v1/chat/completions", {"messages": USER, "max_tokens": 2}),
    ("POST", "/v1/chat/completions", {"messages": USER, "max_tokens": 2, "logprobs": True, "top_logprobs": 2, "n": 2}),
    ("POST", "/v1/chat/completions", {"messages": USER, "max_tokens": 2, "prompt_logprobs": 1}),
    ("POST", "/v1/chat/completions", {"messages": USER, "max_tokens": 2, "stream": True, "logprobs": True}),
    ("POST", "/v1/chat/completions", {"messages": []}),
    ("POST", "/v1/completions", {"prompt": "ab", "max_tokens": 2, "logprobs": 1, "echo": True}),
    ("POST", "/v1/completions", {"prompt": ["ab", "c"], "max_tokens": 2, "stream": True}),
    ("POST", "/v1/completions", {"prompt": "ab", "max_tokens": 2, "use_beam_search": True, "n": 2}),
    ("POST", "/v1/completions", {"prompt": "ab", "model": "gpt-9"}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/{name}", "tiny"),
    ("GET", "/v1/models/{name}", "gpt-9"),
    ("POST", "/tokenize", {"prompt": "ab", "return_token_strs": True}),
    ("POST", "/detokenize", {"tokens": [65]}),
    ("GET", "/metrics", None),
    ("GET", "/health", None),
    ("GET", "/version", None),
    ("GET", "/openapi.json", None),
    ("GET", "/engine/snapshot", None),
    ("GET", "/engine/control", None),
    ("PATCH", "/engine/control", {"max_wait": 10.0}),
    ("PATCH", "/engine/control", {"max_wait": "long"}),
    ("POST", "/engine/cache/clear", None),
    ("GET", "/engine/requests", None),
    ("GET", "/engine/requests/{id}", "nobody"),
    ("DELETE", "/engine/requests/{id}", "nobody"),
    ("GET", "/engine/blocks/{block}", "0"),
    ("GET", "/engine/blocks/{block}", "999999"),
    ("GET", "/engine/loads", None),
    ("DELETE", "/engine/loads/{id}", "nobody"),
]


@pytest.mark.parametrize(("method", "path", "sent"), ASKED)
def test_answers_are_as_it_states(http, told, method: str, path: str, sent: object) -> None:
    filled = re.sub(r"\{\w+\}", str(sent), path)
    body = json.dumps(sent) if isinstance(sent, dict) else None
    check(told, path, http.request(method, filled, content=body))


def test_steps_are_as_it_states(http, told) -> None:
    http.post("/v1/completions", json={"prompt": "a", "max_tokens": 3}).raise_for_status()
    schema = told["paths"]["/engine/steps"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    validator = jsonschema.Draft202012Validator({**schema["contentSchema"], "components": told["components"]})
    seen = 0
    with http.stream("GET", "/engine/steps", params={"from": 1}) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: "):
                validator.validate(json.loads(line[6:]))
                seen += 1
            if seen == 3:
                break
    assert seen == 3


def test_a_load_is_put_as_it_states(http, told) -> None:
    latency = {"p50": None, "p99": None, "requests": 0}
    run = {"label": "x", "trace": "y", "elapsed": 0.0, "share": 0.0, "speed": 1.0}
    run |= dict.fromkeys(("ttft", "ttft_scheduled", "tpot", "e2e", "e2e_scheduled"), latency)
    for name in ("sessions", "turns", "due", "queued", "sent", "in_flight", "completed", "failed", "output_tokens"):
        run[name] = 0
    run["sessions_done"] = 0
    check(told, "/engine/loads/{id}", http.put("/engine/loads/mine", json=run))
    check(told, "/engine/loads", http.get("/engine/loads"))
    check(told, "/engine/loads/{id}", http.delete("/engine/loads/mine"))
