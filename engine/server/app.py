"""The aiohttp application: its routes, and what every answer has. From the outside in: the request's id and log line,
errors as OpenAI's clients expect them, who may pass, the handler."""

from __future__ import annotations

import os

from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestPayloadError

from engine import log
from engine.core_client import CallUnansweredError, EngineDiedError
from engine.server.access import Gate, client_name
from engine.server.connections import on_prepare
from engine.server.errors import ApiError, stamp
from engine.server.events import take_stream
from engine.server.reading import on_expect
from engine.server.refusals import Refusals
from engine.server.request_log import RequestLog, is_watching, note_error, note_unforeseen
from engine.server.routes import Handler, Route, routes
from engine.server.service import Service

MAX_TOLD_PATH = 200  # characters
ENDLESS = ("/engine/steps", "/engine/cluster/events")  # at the end of a path: there is no HEAD of it


def make_app(service: Service) -> web.Application:
    settings = service.settings
    table = routes(service)
    gate = Gate(settings.access, table)
    request_log = RequestLog(client_name, every=settings.logging.requests)
    app = web.Application(
        client_max_size=settings.limits.max_body,  # of bodies that are not read through `Bodies`: there are none
        middlewares=[
            request_log.middleware,
            Errors(service.refusals).middleware,
            gate.middleware,
            service.bodies.middleware,
        ],
    )
    app.add_routes([_defined(route) for route in table])
    app.on_response_prepare.append(_stamp)
    app.on_response_prepare.append(request_log.on_prepare)
    app.on_response_prepare.append(on_prepare)
    app.on_response_prepare.append(gate.add_headers)

    async def tell_start(app: web.Application) -> None:
        log.milestone("start", "the server has started", models=list(settings.names), pid=os.getpid())

    async def tell_end(app: web.Application) -> None:
        log.milestone("stop", "the server has ended", requests=request_log.num_ended)

    app.on_startup.append(tell_start)
    app.on_cleanup.append(tell_end)
    return app


def _defined(route: Route) -> web.RouteDef:
    if route.method == hdrs.METH_GET:
        return web.get(route.path, route.handler, allow_head=not route.path.endswith(ENDLESS), expect_handler=on_expect)
    return web.route(route.method, route.path, route.handler, expect_handler=on_expect)


async def _stamp(request: web.Request, response: web.StreamResponse) -> None:
    stamp(request, response)


class Errors:
    """Every error is a JSON body with a message, or the last event of a stream that has begun; what nobody foresaw is
    a 500 and a stack in the log. What is refused for want of something is counted."""

    def __init__(self, refusals: Refusals) -> None:
        self._refusals = refusals

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as refused:
            if request.method == hdrs.METH_OPTIONS:
                return web.Response(status=204, headers={hdrs.ALLOW: _allowed(refused)})
            error = _of_http(request, refused)
        except Exception as raised:
            if isinstance(raised, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                raise  # the client left
            error = _of(request, raised)
        finally:
            stream = take_stream(request)
        note_error(request, error)
        if stream is None:
            if not (error.status == 503 and is_watching(request)):
                self._refusals.count(error.code)
            return error.response(request)
        await stream.fail(error)
        return stream.response


def _of(request: web.Request, raised: Exception) -> ApiError:
    match raised:
        case ApiError():
            return raised
        case EngineDiedError():
            return ApiError(str(raised), status=503, code="engine_not_ready", headers={hdrs.RETRY_AFTER: "1"})
        case CallUnansweredError():
            return ApiError(str(raised), status=503, code="engine_silent")
        case web.HTTPException():
            return _of_http(request, raised)
        case RequestPayloadError():
            return ApiError(f"the body cannot be read: {' '.join(str(raised).split())}")
    note_unforeseen(request, raised)
    return ApiError("the server failed on this request; its log says more, under the request's id", status=500)


def _of_http(request: web.Request, raised: web.HTTPException) -> ApiError:
    """What aiohttp itself refuses."""
    match raised:
        case web.HTTPNotFound():
            return ApiError(f"no such route: {request.path[:MAX_TOLD_PATH]}", status=404)
        case web.HTTPMethodNotAllowed():
            allowed = _allowed(raised)
            message = f"{request.method[:MAX_TOLD_PATH]} is not allowed here; allowed: {allowed}"
            return ApiError(message, status=405, headers={hdrs.ALLOW: allowed})
        case web.HTTPRequestEntityTooLarge():
            return ApiError("the body is too large", status=413, code="body_too_large")
    return ApiError(raised.reason.lower(), status=raised.status)


def _allowed(refused: web.HTTPMethodNotAllowed) -> str:
    return ", ".join(sorted({*refused.allowed_methods, hdrs.METH_OPTIONS}))
