"""Errors as OpenAI's API words them, so that its clients raise the right exception."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import hdrs, web

from engine.server.request_ids import HEADER, request_id

SERVER = "paged-engine"  # and not which libraries it is made of


class ApiError(Exception):
    """A request that cannot be answered; `param` names the field that is to blame, `headers` go with the response."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def type(self) -> str:
        """OpenAI's word for this kind of error: also a wrong key is an `invalid_request_error`, told by its code."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self, request: str) -> bytes:
        """`{"error": {message, type, param, code, request_id}}` as JSON, for the request with this id."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
            "request_id": request,
        }
        return msgspec.json.encode({"error": error})

    def response(self, request: web.BaseRequest) -> web.Response:
        response = web.Response(
            status=self.status,
            body=self.body(request_id(request)),
            headers=self.headers,
            content_type="application/json",
        )
        stamp(request, response)  # what is no HTTP is answered outside the application, which does this
        return response


def stamp(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """The headers of every response."""
    response.headers[HEADER] = request_id(request)
    response.headers[hdrs.SERVER] = SERVER


def not_supported(param: str, why: str) -> ApiError:
    return ApiError(f"{param}: {why}", param=param, code="unsupported_parameter")
