"""An answer that is not as the document states is found."""

import pytest

from tests.fuzz.stated import Stated

NUMBER = {"application/json": {"schema": {"$ref": "#/components/schemas/N"}}}
EVENTS = {"text/event-stream": {"schema": {"type": "string", "contentSchema": {"$ref": "#/components/schemas/N"}}}}
DOCUMENT = {
    "paths": {
        "/n": {
            "get": {"responses": {"200": {"content": {**NUMBER, **EVENTS}}, "204": {}, "default": {"content": NUMBER}}}
        }
    },
    "components": {"schemas": {"N": {"type": "integer"}}},
}


@pytest.mark.parametrize(
    ("status", "media", "body", "problem"),
    [
        (200, "application/json", b"3", ""),
        (200, "application/json", b'"3"', "not as stated"),
        (200, "text/plain", b"3", "is of 'text/plain'"),
        (200, "text/event-stream", b"data: 3\n\ndata: [DONE]\n\n", ""),
        (200, "text/event-stream", b'data: 3\n\ndata: "x"\n\n', "not as stated"),
        (204, "", b"", ""),
        (204, "application/json", b"3", "none is stated"),
        (404, "application/json", b"3", ""),
        (404, "application/json", b"{}", "not as stated"),
    ],
)
def test_answers_beside_what_is_stated(status: int, media: str, body: bytes, problem: str) -> None:
    found = Stated(DOCUMENT).problem("GET", "/n", status, media, body)
    assert problem in found
    assert bool(found) == bool(problem)
