"""The aiohttp application: routes, and errors as OpenAI's clients expect them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from engine.core_client import EngineDiedError
from engine.server.chat import ChatRoutes
from engine.server.completions import CompletionRoutes
from engine.server.engine_routes import EngineRoutes
from engine.server.errors import ApiError
from engine.server.load_routes import LoadRoutes
from engine.server.model_routes import ModelRoutes
from engine.server.service import Service
from engine.server.text_routes import TextRoutes

MAX_BODY_BYTES = 32 * 1024 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


def make_app(service: Service) -> web.Application:
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
    chat, completions = ChatRoutes(service), CompletionRoutes(service)
    engine, text, model = EngineRoutes(service), TextRoutes(service), ModelRoutes(service)
    load = LoadRoutes(service)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat.create),
            web.post("/v1/completions", completions.create),
            web.get("/v1/models", model.models),
            web.get("/v1/models/{name:.+}", model.model),
            web.get("/health", model.health),
            web.get("/version", model.version),
            web.get("/metrics", model.metrics),
            web.post("/tokenize", model.tokenize),
            web.post("/detokenize", model.detokenize),
            web.get("/engine/snapshot", engine.snapshot),
            web.get("/engine/steps", engine.steps),
            web.get("/engine/control", engine.control),
            web.patch("/engine/control", engine.change_control),
            web.post("/engine/cache/clear", engine.clear_cache),
            web.get("/engine/requests", text.requests),
            web.get("/engine/requests/{id}", text.request),
            web.delete("/engine/requests/{id}", engine.cancel),
            web.get("/engine/blocks/{block}", text.block),
            web.get("/engine/loads", load.loads),
            web.put("/engine/loads/{id}", load.put),
            web.delete("/engine/loads/{id}", load.drop),
        ]
    )
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error is a JSON body with a message; what nobody foresaw is a 500 and a line in the log."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except EngineDiedError as error:
        return ApiError(str(error), status=503, code="engine_not_ready").response()
    except web.HTTPRequestEntityTooLarge:
        limit = MAX_BODY_BYTES // 1024**2
        return ApiError(f"the body is too large; at most {limit} MiB are taken", status=413).response()
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = ApiError(f"{request.method} is not allowed here; allowed: {allowed}", status=405).response()
        response.headers["Allow"] = allowed
        return response
    except web.HTTPNotFound:
        return ApiError(f"no such route: {request.path}", status=404).response()
    except web.HTTPException:
        raise
    except RequestPayloadError as error:
        return ApiError(f"the body cannot be read: {' '.join(str(error).split())}").response()
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return ApiError("the server failed on this request; its log says more", status=500).response()
