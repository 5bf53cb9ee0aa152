"""What /openapi.json states of answers, and whether one is so."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs

JSON, EVENTS = "application/json", "text/event-stream"


class Stated:
    """The responses of a document. Every status has a schema: that of `default`, if none of its own."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._validator = cache(self._make_validator)

    def problem(self, method: str, path: str, status: int, media: str, body: bytes) -> str:
        """What the document says otherwise of this answer to an operation; empty where it is as stated."""
        stated = self._document["paths"][path][method.lower()]["responses"]
        key = str(status) if str(status) in stated else "default"
        content = stated[key].get("content")
        if content is None:
            return f"status {status} has a body, and none is stated: {body[:200]!r}" if body else ""
        if media not in content:
            return f"status {status} is of {media!r}, and stated are {', '.join(content)}"
        validator = self._validator(method.lower(), path, key, media)
        for found in _found(media, body):
            if not validator.is_valid(found):
                error = next(validator.iter_errors(found))
                return f"status {status} is not as stated, at {list(error.instance_path)}: {error.message[:300]}"
        return ""

    def _make_validator(self, method: str, path: str, key: str, media: str) -> Any:
        schema = self._document["paths"][path][method]["responses"][key]["content"][media]["schema"]
        schema = schema.get("contentSchema", schema)
        return jsonschema_rs.Draft202012Validator({**schema, "components": self._document["components"]})


def _found(media: str, body: bytes) -> list[Any]:
    """The values that a body holds: of a stream one for each of its events."""
    if media == EVENTS:
        data = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(one) for one in data if one != b"[DONE]"]
    return [json.loads(body) if media == JSON else body.decode()]
