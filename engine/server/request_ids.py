"""The id of an HTTP request: its client's X-Request-Id, or a new one. It is in logs, errors, answers and records."""

from __future__ import annotations

import secrets

from aiohttp import web

HEADER = "X-Request-Id"
_KEY = "request_id"


def request_id(request: web.Request) -> str:
    """The same for the request's whole life."""
    if _KEY not in request:
        request[_KEY] = secrets.token_hex(8)
    found: str = request[_KEY]
    return found


def answer_id(kind: str, request: web.Request) -> str:
    """An answer's id as OpenAI's begin (`chatcmpl-`, `cmpl-`); short, for every step record names it."""
    return f"{kind}-{request_id(request)}"
