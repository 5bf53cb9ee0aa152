"""The one log line of a request, and what its handler has to add to it."""

from __future__ import annotations

from typing import Any

from aiohttp import web

_FIELDS: web.RequestKey[dict[str, Any]] = web.RequestKey("log_fields", dict)


def note(request: web.Request, **fields: Any) -> None:
    """Add fields to the request's log line. Never a prompt, an answer or a key; later values replace earlier ones."""
    if _FIELDS not in request:
        request[_FIELDS] = {}
    request[_FIELDS].update(fields)
