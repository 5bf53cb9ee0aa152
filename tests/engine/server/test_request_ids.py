"""Every response has an id: the client's own or a new one; answers, records and errors have the same."""

import json
import re
import socket

import openai
import pytest

NEW = re.compile(r"[0-9a-f]{16}")
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
REQUESTS = [
    ("GET", "/health", None, 200),
    ("HEAD", "/health", None, 200),
    ("OPTIONS", "/health", None, 204),
    ("GET", "/v1/models", None, 200),
    ("GET", "/metrics", None, 200),
    ("POST", TEXT, {"prompt": "a", "max_tokens": 1}, 200),
    ("POST", TEXT, {"prompt": "a", "max_tokens": 2, "stream": True}, 200),
    ("POST", TEXT, {"prompt": "a", "max_tokens": -1}, 400),
    ("POST", TEXT, {"model": "other", "prompt": "a"}, 404),
    ("GET", "/nowhere", None, 404),
    ("PUT", TEXT, None, 405),
    ("DELETE", "/engine/requests/nobody", None, 404),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), REQUESTS)
def test_every_response_has_an_id(http, method: str, path: str, body, status: int) -> None:
    for given in (None, "a.client's", "a-client.s_OWN-1"):
        headers = {} if given is None else {"X-Request-Id": given}
        answer = http.request(method, path, json=body, headers=headers)
        assert answer.status_code == status
        told = answer.headers["X-Request-Id"]
        assert told == given if given == "a-client.s_OWN-1" else NEW.fullmatch(told)
        if status >= 400:
            assert answer.json()["error"]["request_id"] == told


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a/b", "é", "a\tb", "../x", "<b>", "a,b"])
def test_an_ill_formed_id_is_replaced(http, given: str) -> None:
    told = http.get("/version", headers=[(b"X-Request-Id", given.encode())]).headers["X-Request-Id"]
    assert NEW.fullmatch(told)


def test_two_ids_are_none(http) -> None:
    told = http.get("/version", headers=[("X-Request-Id", "one"), ("X-Request-Id", "two")]).headers["X-Request-Id"]
    assert NEW.fullmatch(told)


def test_the_longest_id_is_taken(http) -> None:
    assert http.get("/version", headers={"X-Request-Id": "x" * 64}).headers["X-Request-Id"] == "x" * 64


def exchange(server, data: bytes) -> tuple[str, dict[str, str], dict]:
    """What comes back on a connection of its own: the status line, the headers and the body."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(data)
        got = b""
        while (more := connection.recv(1 << 16)) and not (b"\r\n\r\n" in got + more and (got + more).endswith(b"}")):
            got += more
        got += more
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), json.loads(body)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: a miracle\r\nContent-Length: 1\r\n\r\nx", 417),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: much\r\nContent-Length: 1\r\n\r\nx", 417),
    ],
)
def test_errors_before_a_handler_have_ids_and_form(server, data: bytes, status: int) -> None:
    first, headers, body = exchange(server, data)
    assert re.match(rf"HTTP/1\.[01] {status} ", first)
    assert headers["X-Request-Id"] == body["error"]["request_id"]
    assert NEW.fullmatch(headers["X-Request-Id"])
    assert headers["Server"] == "paged-engine"
    assert headers["Content-Type"].startswith("application/json")


def test_answers_and_records_have_the_id(server, http) -> None:
    answer = http.post(TEXT, json={"prompt": "a", "max_tokens": 1}, headers={"X-Request-Id": "of-a-text"}).json()
    assert answer["id"] == "cmpl-of-a-text"
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    assert http.post(CHAT, json=body, headers={"X-Request-Id": "of-a-chat"}).json()["id"] == "chatcmpl-of-a-chat"
    newest = server.snapshot()["seq"]
    with http.stream("POST", TEXT, json=LONG, headers={"X-Request-Id": "of-a-stream"}) as stream:
        assert stream.headers["X-Request-Id"] == "of-a-stream"
        chunk = next(line for line in stream.iter_lines() if line)
        assert json.loads(chunk.removeprefix("data: "))["id"] == "cmpl-of-a-stream"
    with http.stream("GET", f"/engine/steps?from={newest + 1}") as steps:
        record = next(line for line in steps.iter_lines() if line.startswith("data: "))
        assert "cmpl-of-a-stream" in record


def test_the_openai_client_tells_the_id(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=1)
    assert answer.id == f"cmpl-{answer._request_id}"
    with pytest.raises(openai.NotFoundError) as raised:
        client.completions.create(model="other", prompt="a", extra_headers={"X-Request-Id": "mine"})
    assert raised.value.request_id == "mine"
    assert raised.value.body["request_id"] == "mine"


def test_no_answer_says_of_which_libraries_the_server_is_made(http) -> None:
    for answer in (http.get("/health"), http.get("/nowhere"), http.post(TEXT, json={"prompt": "a", "stream": True})):
        assert answer.headers["Server"] == "paged-engine"
        assert not re.search("python|aiohttp", str(answer.headers), re.I)


def test_a_failing_stream_has_the_id_in_its_last_event(start_server) -> None:
    server = start_server("--model", "tiny", "--kv-memory", "4MiB", "--fault", "step-error@40")
    events: list[str] = []
    with (
        server.http as http,
        http.stream("POST", TEXT, json=LONG, headers={"X-Request-Id": "dies"}) as stream,
    ):
        events += [line for line in stream.iter_lines() if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["error"]["request_id"] == "dies"
