"""Every route, and who may call it: one table, from which the application, the access rules and the OpenAPI document
are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from aiohttp import web

from engine.protocol import LoadRun
from engine.server.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from engine.server.chat import ChatRoutes
from engine.server.cluster_routes import WORKER, ClusterChange, ClusterRoutes, WorkerRoutes
from engine.server.completions import CompletionRoutes
from engine.server.engine_routes import ControlChange, EngineRoutes
from engine.server.load_routes import LoadRoutes
from engine.server.model_routes import ModelRoutes
from engine.server.openapi import OpenAPIRoutes
from engine.server.service import Service
from engine.server.text_routes import TextRoutes

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# anyone: no key is ever needed. client: an API key, where there are any, or an admin key. admin: an admin key.
Who = Literal["anyone", "client", "admin"]


class Route(NamedTuple):
    """`body` is what its JSON body decodes to; None: it takes none."""

    method: str
    path: str
    who: Who
    handler: Handler
    what: str
    body: type[Any] | None = None


def routes(service: Service) -> tuple[Route, ...]:
    chat, completions, model = ChatRoutes(service), CompletionRoutes(service), ModelRoutes(service)
    load, cluster = LoadRoutes(service), ClusterRoutes(service)
    described = OpenAPIRoutes(lambda: table, service.settings.access)
    engine = _of_an_engine(service, load)
    table = (
        Route("POST", "/v1/chat/completions", "client", chat.create, "Answer a chat", ChatBody),
        Route("POST", "/v1/completions", "client", completions.create, "Go on from a prompt", CompletionBody),
        Route("GET", "/v1/models/{name:.+}", "client", model.model, "One of them"),
        Route("POST", "/tokenize", "client", model.tokenize, "Text or a chat to tokens", TokenizeBody),
        Route("POST", "/detokenize", "client", model.detokenize, "Tokens to text", DetokenizeBody),
        Route("GET", "/openapi.json", "anyone", described.document, "This document"),
        *(engine if service.cluster is None else _of_a_cluster(service, cluster, load, engine)),
        Route("PUT", "/engine/loads/{id}", "admin", load.put, "Tell of one's run", LoadRun),
        Route("DELETE", "/engine/loads/{id}", "admin", load.drop, "Its run is over"),
        Route("GET", "/engine/cluster", "admin", cluster.state, "The cluster's whole state"),
        Route("PATCH", "/engine/cluster", "admin", cluster.change, "Change its control", ClusterChange),
        Route("GET", "/engine/cluster/events", "admin", cluster.events, "Its states, as server-sent events"),
    )
    return table


def _of_an_engine(service: Service, load: LoadRoutes) -> tuple[Route, ...]:
    """What one engine tells: that of a server, or a worker of a cluster. Load generators tell the server of theirs."""
    engine, text, model = EngineRoutes(service), TextRoutes(service), ModelRoutes(service)
    return (
        Route("GET", "/v1/models", "client", model.models, "The model, under each of its names"),
        Route("GET", "/metrics", "client", model.metrics, "Prometheus metrics"),
        Route("GET", "/health", "anyone", model.health, "Whether it can serve; 503 with the reason if not"),
        Route("GET", "/version", "anyone", model.version, "Of paged-top"),
        Route("GET", "/engine/snapshot", "admin", engine.snapshot, "The engine's whole state"),
        Route("GET", "/engine/steps", "admin", engine.steps, "Its step records, as server-sent events"),
        Route("GET", "/engine/control", "admin", engine.control, "The settings in force"),
        Route("PATCH", "/engine/control", "admin", engine.change_control, "Change them", ControlChange),
        Route("POST", "/engine/cache/clear", "admin", engine.clear_cache, "Forget every cached prefix"),
        Route("GET", "/engine/requests", "admin", text.requests, "Live requests in short"),
        Route("GET", "/engine/requests/{id}", "admin", text.request, "The tokens and text of one"),
        Route("DELETE", "/engine/requests/{id}", "admin", engine.cancel, "Cancel one"),
        Route("GET", "/engine/blocks/{block}", "admin", text.block, "The tokens and text in a block"),
        Route("GET", "/engine/loads", "admin", load.loads, "Load generators that play now"),
    )


def _of_a_cluster(
    service: Service, cluster: ClusterRoutes, load: LoadRoutes, engine: tuple[Route, ...]
) -> tuple[Route, ...]:
    """Of several engines: each has its own below its path, and at the root is what they have in common."""
    workers = WorkerRoutes(service, lambda one: _of_an_engine(one, load))
    at_root: dict[str, Handler] = dict.fromkeys(
        ("/engine/snapshot", "/engine/steps", "/engine/blocks/{block}"), cluster.of_one_worker
    )
    at_root["/metrics"] = cluster.metrics
    whole = (route._replace(handler=at_root.get(route.path, route.handler)) for route in engine)
    each = (
        route._replace(path=WORKER + route.path, handler=workers.below(route), what=f"Of a worker. {route.what}")
        for route in engine
    )
    return (*whole, *each)
