"""Every route, and who may call it: one table, from which the application, the access rules and the OpenAPI document
are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from aiohttp import web

from engine.protocol import LoadRun
from engine.server.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from engine.server.chat import ChatRoutes
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
    chat, completions, load = ChatRoutes(service), CompletionRoutes(service), LoadRoutes(service)
    engine, text, model = EngineRoutes(service), TextRoutes(service), ModelRoutes(service)
    described = OpenAPIRoutes(lambda: table, service.settings.access)
    table = (
        Route("POST", "/v1/chat/completions", "client", chat.create, "Answer a chat", ChatBody),
        Route("POST", "/v1/completions", "client", completions.create, "Go on from a prompt", CompletionBody),
        Route("GET", "/v1/models", "client", model.models, "The model, under each of its names"),
        Route("GET", "/v1/models/{name:.+}", "client", model.model, "One of them"),
        Route("POST", "/tokenize", "client", model.tokenize, "Text or a chat to tokens", TokenizeBody),
        Route("POST", "/detokenize", "client", model.detokenize, "Tokens to text", DetokenizeBody),
        Route("GET", "/metrics", "client", model.metrics, "Prometheus metrics"),
        Route("GET", "/health", "anyone", model.health, "Whether it can serve; 503 with the reason if not"),
        Route("GET", "/version", "anyone", model.version, "Of paged-top"),
        Route("GET", "/openapi.json", "anyone", described.document, "This document"),
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
        Route("PUT", "/engine/loads/{id}", "admin", load.put, "Tell of one's run", LoadRun),
        Route("DELETE", "/engine/loads/{id}", "admin", load.drop, "Its run is over"),
    )
    return table
