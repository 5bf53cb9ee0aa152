"""The OpenAPI document of this server, made from its routes and the structs that they decode."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from aiohttp import web

from engine.cluster.protocol import ClusterState
from engine.protocol import BlockText, Gap, LiveLoads, LiveRequests, Record, RequestText, Snapshot
from engine.server import answer_shapes as shapes
from engine.server.settings import Access

if TYPE_CHECKING:
    from engine.server.routes import Route, Who

Json = dict[str, Any]
OPENAPI = "3.1.0"
_REFERENCE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(?P<name>\w+)(?::[^}]*)?\}")
_JSON, _EVENTS, _PLAIN = "application/json", "text/event-stream", "text/plain"


class Answer(NamedTuple):
    """What one route gives when all is well. `events` are the data of server-sent events; None: it streams nothing.

    `statuses` are what it can fail with besides what every route of its kind can.
    """

    body: Any = None  # None: no content
    events: Any = None
    media: str = _JSON  # of the body
    statuses: tuple[int, ...] = ()
    query: Mapping[str, Json] = {}


_STEP: Json = {"type": "integer", "minimum": 1, "maximum": 10**18 - 1}
_PLACE: Json = {"type": "integer", "minimum": 0, "maximum": 10**9 - 1, "default": 0}
_GENERATES = (404, 429, 500, 504)  # no such model, too many wait, a step failed, its time is over
ANSWERS: Mapping[tuple[str, str], Answer] = {
    ("POST", "/v1/chat/completions"): Answer(shapes.ChatCompletion, shapes.ChatChunk, statuses=_GENERATES),
    ("POST", "/v1/completions"): Answer(shapes.Completion, shapes.Completion, statuses=_GENERATES),
    ("GET", "/v1/models"): Answer(shapes.ModelCards),
    ("GET", "/v1/models/{name}"): Answer(shapes.ModelCard),
    ("POST", "/tokenize"): Answer(shapes.Tokens, statuses=(404,)),
    ("POST", "/detokenize"): Answer(shapes.Text, statuses=(404,)),
    ("GET", "/metrics"): Answer(str, media=_PLAIN),
    ("GET", "/health"): Answer(shapes.Health),
    ("GET", "/version"): Answer(shapes.Version),
    ("GET", "/openapi.json"): Answer(dict[str, Any]),
    ("GET", "/engine/snapshot"): Answer(Snapshot),
    ("GET", "/engine/steps"): Answer(None, Record | Gap, statuses=(400, 429), query={"from": _STEP}),
    ("GET", "/engine/control"): Answer(shapes.ControlAnswer),
    ("PATCH", "/engine/control"): Answer(shapes.ControlAnswer),
    ("POST", "/engine/cache/clear"): Answer(shapes.Cleared),
    ("GET", "/engine/requests"): Answer(LiveRequests),
    ("GET", "/engine/requests/{id}"): Answer(RequestText, query={"from": _PLACE}),
    ("DELETE", "/engine/requests/{id}"): Answer(shapes.Cancelled),
    ("GET", "/engine/blocks/{block}"): Answer(BlockText),
    ("GET", "/engine/loads"): Answer(LiveLoads),
    ("PUT", "/engine/loads/{id}"): Answer(statuses=(429,)),
    ("DELETE", "/engine/loads/{id}"): Answer(),
    ("GET", "/engine/cluster"): Answer(ClusterState, statuses=(404,)),
    ("PATCH", "/engine/cluster"): Answer(ClusterState, statuses=(404,)),
    ("GET", "/engine/cluster/events"): Answer(None, ClusterState, statuses=(404, 429)),
}
_WORKER = "/workers/{name}"  # below it each worker of a cluster tells what one engine does
_PARAMETERS: Mapping[str, Json] = {
    "block": {"type": "integer", "minimum": 0, "maximum": 10**9 - 1},
    "id": {"type": "string", "minLength": 1},
    "name": {"type": "string", "minLength": 1},
}
_LOAD_ID: Json = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"}
_READS = (400, 408, 413, 415, 429)  # what a route that takes a body fails with
_WHY: Mapping[int, str] = {
    400: "What was sent is not as it must be",
    401: "No key, or a wrong one",
    403: "The key, the Host or the Origin does not allow it",
    404: "There is no such thing",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "The body is in a coding that is not taken",
    429: "Too much at once: ask again later",
    500: "The step that worked on it failed",
    503: "The engine cannot serve now",
    504: "Its time was over before it had a token",
}
_KEYS: Mapping[Who, tuple[str, ...]] = {"anyone": (), "client": ("apiKey", "adminKey"), "admin": ("adminKey",)}


class OpenAPIRoutes:
    """`GET /openapi.json`. The document is made when it is first asked for, of the table that there is then."""

    def __init__(self, table: Callable[[], Sequence[Route]], access: Access) -> None:
        self._table = table
        self._access = access

    @cached_property
    def _body(self) -> bytes:
        return msgspec.json.encode(document(self._table(), self._access))

    async def document(self, request: web.Request) -> web.Response:
        return web.Response(body=self._body, content_type=_JSON)


def document(table: Sequence[Route], access: Access) -> Json:
    """The OpenAPI document of these routes. Raises KeyError for a route of whose answer nothing is known."""
    described = [(route, ANSWERS[route.method, path_of(route).removeprefix(_WORKER)]) for route in table]
    kinds: list[Any] = [shapes.ErrorAnswer, shapes.Health]
    for route, answer in described:
        kinds += [kind for kind in (route.body, answer.body, answer.events) if kind is not None]
    found, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    schemas = dict(zip(map(repr, kinds), found, strict=True))
    paths: dict[str, Json] = {}
    for route, answer in described:
        operation = _operation(route, answer, access, lambda kind: schemas[repr(kind)])
        paths.setdefault(path_of(route), {})[route.method.lower()] = operation
    return {
        "openapi": OPENAPI,
        "info": {"title": "paged-engine", "version": version("paged-top"), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "apiKey": {"type": "http", "scheme": "bearer", "description": "One of --api-key"},
                "adminKey": {"type": "http", "scheme": "bearer", "description": "One of --admin-key"},
            },
        },
    }


def path_of(route: Route) -> str:
    """Its path as OpenAPI has it: parameters by their names alone."""
    return _PARAMETER.sub(r"{\g<name>}", route.path)


def _operation(route: Route, answer: Answer, access: Access, schema: Callable[[Any], Json]) -> Json:
    operation: Json = {"summary": route.what, "operationId": _name(route)}
    if parameters := _parameters(route, answer):
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema(route.body)}}}
    operation["responses"] = _responses(route, answer, schema)
    if keys := _KEYS[route.who]:
        free: list[Json] = [] if access.api_keys or access.admin_keys else [{}]  # without keys none is asked for
        operation["security"] = [{key: []} for key in keys] + free
    return operation


def _name(route: Route) -> str:
    return re.sub(r"\W+", "_", f"{route.method.lower()}{path_of(route)}").strip("_")


def _parameters(route: Route, answer: Answer) -> list[Json]:
    found: list[Json] = []
    for match in _PARAMETER.finditer(route.path):
        name = match["name"]
        schema = _LOAD_ID if name == "id" and route.path.startswith("/engine/loads") else _PARAMETERS[name]
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    found += [{"name": name, "in": "query", "schema": schema} for name, schema in answer.query.items()]
    return found


def _responses(route: Route, answer: Answer, schema: Callable[[Any], Json]) -> Json:
    content: Json = {}
    if answer.body is not None:
        content[answer.media] = {"schema": schema(answer.body)}
    if answer.events is not None:
        content[_EVENTS] = {
            "schema": {
                "type": "string",
                "contentMediaType": _JSON,
                "contentSchema": schema(answer.events),
                "description": "Server-sent events, each with such an object as its data; [DONE] ends an answer",
            }
        }
    done: Json = {"description": "Done"} | ({"content": content} if content else {})
    responses: Json = {"200" if content else "204": done}
    for status in sorted(_failures(route, answer)):
        responses[str(status)] = _failure(_WHY[status], schema(shapes.ErrorAnswer), waits=status in (429, 503))
    if (route.method, route.path.removeprefix(_WORKER)) == ("GET", "/health"):
        responses["503"] = {"description": _WHY[503], "content": {_JSON: {"schema": schema(shapes.Health)}}}
    responses["default"] = _failure(
        f"Any other error, as {HTTPStatus.METHOD_NOT_ALLOWED.value} for a method that the path does not have",
        schema(shapes.ErrorAnswer),
    )
    return responses


def _failures(route: Route, answer: Answer) -> set[int]:
    """The statuses that a route can fail with."""
    found = {400, 403, *answer.statuses}  # a Host or an Origin that is not allowed is told to anyone
    if route.who != "anyone":
        found |= {401, 503}
    if route.body is not None:
        found.update(_READS)
    if "{" in route.path:
        found.add(404)
    return found


def _failure(why: str, schema: Json, *, waits: bool = False) -> Json:
    failure: Json = {"description": why, "content": {_JSON: {"schema": schema}}}
    if waits:
        failure["headers"] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
    return failure
