"""The aiohttp application: routes, and errors as OpenAI's clients expect them."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from engine.core_client import EngineDiedError
from engine.server.access import Gate
from engine.server.errors import ApiError
from engine.server.routes import Handler, routes
from engine.server.service import Service

MAX_BODY_BYTES = 32 * 1024 * 1024
_log = logging.getLogger(__name__)


def make_app(service: Service) -> web.Application:
    table = routes(service)
    gate = Gate(service.settings.access, table)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors, gate.middleware])
    app.add_routes([web.route(route.method, route.path, route.handler) for route in table])
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
