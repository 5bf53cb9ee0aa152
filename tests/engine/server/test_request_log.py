"""One line for each request that ended, with what it cost; and nothing in any line that a client wrote or was told."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import pytest

from engine.server.request_log import Allowance
from tests.engine.server.conftest import READY, Server, start

SMALL = ("--model", "tiny", "--kv-memory", "4MiB")
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
KEY, ADMIN = "MARKER-api-key", "MARKER-admin-key"
LONG = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True}


class Logged:
    """A server that logs all it can, and the lines about requests that it has written."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.Client(base_url=server.url, timeout=60, headers={"Authorization": f"Bearer {ADMIN}"})

    @property
    def lines(self) -> list[dict]:
        text = self.server.stderr.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def line_of(self, request: str) -> dict:
        """That of a request, once it is written."""
        while not (found := [line for line in self.lines if line.get("request") == request]):
            time.sleep(0.01)
        (line,) = found
        return line


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    options = ("--log-format", "json", "--log-level", "debug", "--log-requests", "--api-key", KEY, "--admin-key", ADMIN)
    logged = Logged(start(tmp_path_factory.mktemp("logged"), *SMALL, *options))
    yield logged
    assert logged.server.stop() == 0
    lines = logged.lines
    assert [line["event"] for line in lines if line["event"] in ("start", "ready", "stop")] == [
        "start",
        "ready",
        "stop",
    ]
    assert lines[-1]["requests"] == sum(line["event"] == "request_ended" for line in lines)


def test_a_whole_answer(logged) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"X-Request-Id": "whole", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    body = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True, "n": 2}
    answer = logged.http.post(TEXT, json=body, headers=headers)
    line = logged.line_of("whole")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert 0 < line.pop("ttft") <= line.pop("seconds")
    assert line.pop("client").startswith("key:")
    assert line == {
        "level": "info",
        "process": "api",
        "event": "request_ended",
        "message": "request ended",
        "request": "whole",
        "method": "POST",
        "route": TEXT,
        "status": 200,
        "bytes": line["bytes"],
        "ended": "complete",
        "trace": trace,
        "answer": "cmpl-whole",
        "prompt_tokens": answer.json()["usage"]["prompt_tokens"],
        "output_tokens": 10,
        "cached_tokens": 0,
        "finish": ["length"],
    }
    assert line["bytes"] >= len(answer.content)


def test_a_stream(logged) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "ignore_eos": True, "stream": True}
    logged.http.post(CHAT, json=body, headers={"X-Request-Id": "stream"})
    line = logged.line_of("stream")
    assert (line["ended"], line["route"], line["output_tokens"], line["finish"]) == ("complete", CHAT, 3, ["length"])


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves(logged, streams: bool) -> None:
    data = json.dumps({**LONG, "stream": streams}).encode()
    host, port = logged.server.url.removeprefix("http://").split(":")
    name = f"leaves-{streams}"
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST {TEXT} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\nX-Request-Id: {name}\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        while not logged.http.get("/engine/requests").json()["requests"]:
            pass
        read = b""
        while streams and len(read) < 400:
            more = connection.recv(4096)
            assert more, read
            read += more
    line = logged.line_of(name)
    assert (line["ended"], line["level"], line["answer"]) == ("left", "info", f"cmpl-{name}")
    assert line["output_tokens"] < 3000
    assert line["status"] == (200 if streams else None)
    assert (line["bytes"] or 0) >= (400 * streams)  # what was sent of the stream
    assert (line["bytes"] is None) == (not streams)


def test_an_answer_that_is_cancelled(logged) -> None:
    with logged.http.stream("POST", TEXT, json={**LONG, "stream": True}, headers={"X-Request-Id": "cancelled"}) as s:
        lines = s.iter_lines()
        next(lines)
        logged.http.delete("/engine/requests/cmpl-cancelled", headers={"X-Request-Id": "canceller"})
        assert list(lines)[-2] == "data: [DONE]"
    line = logged.line_of("cancelled")
    assert (line["ended"], line["finish"]) == ("aborted", ["abort"])
    line = logged.line_of("canceller")
    assert (line["route"], line["level"]) == ("/engine/requests/{id}", "info")


def test_who_only_watches_is_told_of_at_debug(logged) -> None:
    run = {"url": 1}
    for number, (method, path, level) in enumerate(
        [
            ("GET", "/health", "debug"),
            ("GET", "/metrics", "debug"),
            ("HEAD", "/engine/control", "debug"),
            ("GET", "/engine/loads", "debug"),
            ("GET", "/version", "info"),
            ("GET", "/v1/models", "info"),
            ("POST", "/engine/cache/clear", "info"),
            ("PUT", "/engine/loads/bad", "info"),  # refused
            ("GET", "/engine/requests/none", "info"),
        ]
    ):
        body = run if method == "PUT" else None
        logged.http.request(method, path, json=body, headers={"X-Request-Id": f"watches-{number}"})
        line = logged.line_of(f"watches-{number}")
        assert (line["method"], line["level"]) == (method, level), path
    with logged.http.stream("GET", "/engine/steps", headers={"X-Request-Id": "watches"}):
        pass
    line = logged.line_of("watches")
    assert (line["ended"], line["status"], line["level"]) == ("left", 200, "debug")


def test_requests_that_are_refused(logged) -> None:
    for name, method, path, status in (("lost", "GET", "/nowhere", 404), ("wrong", "PROPFIND", TEXT, 405)):
        assert logged.http.request(method, path, headers={"X-Request-Id": name}).status_code == status
        line = logged.line_of(name)
        assert (line["status"], line["route"], line["ended"], line["level"]) == (status, None, "refused", "info")
    assert logged.line_of("wrong")["method"] == "other"
    logged.http.get("/engine/snapshot", headers={"Authorization": "Bearer no", "X-Request-Id": "stranger"})
    line = logged.line_of("stranger")
    assert (line["status"], line["code"], line["client"]) == (401, "invalid_api_key", "127.0.0.1")


MARKER = "MARKER"
EVERYTHING = [
    ("POST", TEXT, {"prompt": "MARKER of a prompt", "max_tokens": 4}),
    ("POST", TEXT, {"prompt": "MARKER", "max_tokens": 4, "stream": True, "stop": "MARKER", "cache_salt": "MARKER"}),
    ("POST", TEXT, {"prompt": "MARKER", "max_tokens": 4, "echo": True, "logprobs": 2, "user": "MARKER"}),
    ("POST", TEXT, {"prompt": "MARKER", "use_beam_search": True, "beam_width": 2, "max_tokens": 3}),
    ("POST", TEXT, {"prompt": "MARKER" * 2000}),
    ("POST", TEXT, {"prompt": ["MARKER", 3]}),
    ("POST", TEXT, {"prompt": "a", "model": "MARKER"}),
    ("POST", TEXT, {"prompt": "a", "logit_bias": {"MARKER": 1}}),
    ("POST", TEXT, {"prompt": "a", "temperature": "MARKER", "MARKER": 1}),
    ("POST", TEXT, {"prompt": "MARKER", "timeout": 1e-9, "max_tokens": 9}),
    ("POST", CHAT, {"messages": [{"role": "user", "content": "MARKER of a chat"}], "max_tokens": 4}),
    ("POST", CHAT, {"messages": [{"role": "MARKER", "content": "a"}]}),
    ("POST", CHAT, {"messages": [{"role": "assistant", "content": "MARKER"}], "chat_template_kwargs": {"MARKER": 1}}),
    ("POST", "/tokenize", {"prompt": "MARKER"}),
    ("POST", "/detokenize", {"tokens": [ord(c) for c in MARKER]}),
    ("PATCH", "/engine/control", {"MARKER": "MARKER"}),
    ("PATCH", "/engine/control", {"batching": "MARKER"}),
    ("PUT", "/engine/loads/MARKER", {"MARKER": "MARKER"}),
    ("GET", "/engine/requests/MARKER?from=MARKER", None),
    ("GET", "/engine/steps?from=MARKER", None),
    ("DELETE", "/engine/requests/MARKER", None),
    ("GET", "/engine/blocks/MARKER", None),
    ("GET", "/v1/models/MARKER", None),
    ("GET", "/MARKER/MARKER?MARKER=MARKER", None),
    ("MARKER", TEXT, None),
]
HEADERS = [
    {"Authorization": "Bearer MARKER-of-no-one"},
    {"Authorization": "MARKER"},
    {"Host": "MARKER.example"},
    {"Origin": "https://MARKER.example"},
    {"Expect": "MARKER"},
    {"Content-Encoding": "MARKER"},
    {"Content-Type": "MARKER"},
    {"X-Request-Id": "MARKER is no id"},
    {"traceparent": "00-MARKER-00f067aa0ba902b7-01"},
    {"User-Agent": "MARKER", "Referer": "MARKER", "Cookie": "MARKER", "X-Forwarded-For": "MARKER"},
]
RAW = [
    b"MARKER\r\n\r\n",
    b"GET /health HTTP/1.1\r\nMARKER\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: MARKER\x01MARKER\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"MARKER" * 4000 + b"\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nMARKER\r\nMARKER\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nMARKER",
]


def test_no_line_has_anything_of_what_clients_write_or_are_told(logged) -> None:
    """At `debug`, of all kinds of requests, good and bad; also not of the keys, which have the marker too."""
    http, texts = logged.http, []
    for method, path, body in EVERYTHING:
        answer = http.request(method, path, json=body)
        if answer.status_code == 200 and path in (TEXT, CHAT):
            texts += re.findall(r'"(?:text|content)":"((?:[^"\\]|\\.)+)"', answer.text)
    for headers in HEADERS:
        http.post(TEXT, json={"prompt": "MARKER", "max_tokens": 1}, headers=headers)
    for body in (b"MARKER", b'{"prompt": "MARKER', b"\xff MARKER", b'{"prompt": "MARKER \\ud800"}', b"[" * 99_999):
        assert http.post(TEXT, content=body).status_code == 400
    host, port = logged.server.url.removeprefix("http://").split(":")
    for data in RAW:
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    http.get("/health", headers={"X-Request-Id": "the-last"})
    logged.line_of("the-last")
    log = logged.server.stderr.read_text()
    assert MARKER.lower() not in log.lower()
    assert any(len(text) > 5 for text in texts)
    assert not [text for text in texts if len(text) > 5 and text in log]
    assert "Traceback" not in log


def test_a_persons_lines(start_server) -> None:
    server = start_server(*SMALL, "--log-requests")
    with server.http as http:
        http.get("/version", headers={"X-Request-Id": "mine"})
    assert server.stop() == 0
    (line,) = server.stderr.read_text().splitlines()
    assert re.fullmatch(
        r"paged-engine: request ended request=mine client=127\.0\.0\.1 method=GET route=/version status=200 "
        r"seconds=[\d.e-]+ bytes=\d+ ended=complete",
        line,
    )


def test_a_server_whose_log_nobody_reads_serves_on_and_ends(tmp_path) -> None:
    options = (*SMALL, "--log-format", "json", "--log-requests", "--log-level", "debug")
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        match = READY.match(process.stdout.readline())
        with httpx.Client(base_url=match[2], timeout=60) as http:
            written = 0
            while written < 200_000:  # of a pipe that holds 65,536 bytes
                assert http.get("/nowhere").status_code == 404
                written += 250
            body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}
            assert http.post(TEXT, json=body).json()["usage"]["completion_tokens"] == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        os.set_blocking(process.stderr.fileno(), False)
        lines = process.stderr.read().splitlines()
        assert len(lines) > 50
        assert all(json.loads(line)["process"] for line in lines[:-1])
    finally:
        process.kill()
        process.wait()


def test_a_server_without_standard_error_serves(tmp_path) -> None:
    command = [sys.executable, "-m", "engine.cli", "serve", "--port", "0", *SMALL, "--log-requests"]
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        match = READY.match(process.stdout.readline())
        assert httpx.get(f"{match[2]}/health", timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_an_allowance_is_so_many_in_so_many_seconds() -> None:
    allowance = Allowance(2, 60)
    assert [allowance.take(now) for now in (0, 1, 2, 59.9, 60, 61, 62)] == [0, 0, None, None, 2, 0, None]
    assert allowance.take(1000) == 1
