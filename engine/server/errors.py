"""Errors as OpenAI's API words them, so that its clients raise the right exception."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from aiohttp import web


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

    def body(self) -> bytes:
        """`{"error": {message, type, param, code}}` as JSON."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": kind,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def response(self) -> web.Response:
        return web.Response(status=self.status, body=self.body(), headers=self.headers, content_type="application/json")


def not_supported(param: str, why: str) -> ApiError:
    return ApiError(f"{param}: {why}", param=param, code="unsupported_parameter")
