"""The id of an HTTP request: its client's X-Request-Id, or a new one. It is in logs, errors, answers and records."""

from __future__ import annotations

import re
import secrets

from aiohttp import web

HEADER = "X-Request-Id"
_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,64}")
# W3C Trace Context: version, trace, parent, flags. A trace of zeros alone is none; version ff is not allowed.
_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def request_id(request: web.BaseRequest) -> str:
    """The same for the request's whole life. What is ill-formed, or given twice, is replaced."""
    if _ID not in request:
        given = request.headers.getall(HEADER, []) if request.headers else []  # a plain dict where it is no HTTP
        taken = len(given) == 1 and _WELL_FORMED.fullmatch(given[0]) is not None
        request[_ID] = given[0] if taken else new_id()
    return request[_ID]


def new_id() -> str:
    return secrets.token_hex(8)


def answer_id(kind: str, request: web.BaseRequest) -> str:
    """An answer's id as OpenAI's begin (`chatcmpl-`, `cmpl-`); short, for every step record names it."""
    return f"{kind}-{request_id(request)}"


def trace_id(request: web.BaseRequest) -> str | None:
    """The trace that the client's `traceparent` header names, if it is well-formed."""
    found = _TRACE_PARENT.fullmatch(request.headers.get("traceparent", ""))
    return None if found is None else found[1]
