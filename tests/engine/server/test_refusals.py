"""What the server refuses is counted in /metrics, by code."""

from __future__ import annotations

import re

import httpx

from engine.server.refusals import CODES, Refusals
from tests.engine.server.wires import HOST, Wire, until

OPTIONS = ("--model", "tiny", "--kv-memory", "4MiB", "--max-num-seqs", "1", "--max-queue", "1", "--max-body", "1KiB")
LIMITS = ("--max-step-readers", "1", "--header-timeout", "0.5", "--fault", "slow=0.02%1")  # what runs does not end
TEXT = "/v1/completions"
LONG = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def refused(http: httpx.Client) -> dict[str, int]:
    found = re.findall(r'paged:refused_requests_total\{code="(\w+)",.*\} (\S+)', http.get("/metrics").text)
    return {code: int(float(count)) for code, count in found}


def test_refusals_are_counted(start_server) -> None:
    server = start_server(*OPTIONS, *LIMITS)
    with server.http as http, server.http as running, server.http as reading:
        assert refused(http) == dict.fromkeys(CODES, 0)
        assert http.post(TEXT, json={"prompt": "a", "temperature": -1}).status_code == 400  # no want of anything
        assert http.get("/engine/requests/none").status_code == 404
        assert http.post(TEXT, content=b"x" * 2000).status_code == 413
        with reading.stream("GET", "/engine/steps"):
            assert [http.get("/engine/steps").status_code for _ in range(2)] == [429, 429]
        with running.stream("POST", TEXT, json=LONG) as first:
            lines = first.iter_lines()  # one that is dropped closes the stream
            assert "choices" in next(lines)
            with Wire(server.url) as waiting:
                waiting.post(b'{"prompt": "a", "max_tokens": 4000}', TEXT)
                until(lambda: len(http.get("/engine/requests").json()["requests"]) == 2, "the second waits")
                assert http.post(TEXT, json=LONG).status_code == 429
        with Wire(server.url) as wire:
            wire.send(b"GET /version HTTP/1.1\r\n" + HOST)
            assert wire.answer().status == 408
        with Wire(server.url) as wire:
            wire.send(b"GET /version HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 20_000 + b"\r\n\r\n")
            assert wire.answer().status == 431
        counts = {"body_too_large": 1, "too_many_readers": 2, "queue_full": 1, "headers_too_large": 1}
        assert refused(http) == {**dict.fromkeys(CODES, 0), **counts, "request_timeout": 1}


def test_other_codes_are_not_counted() -> None:
    refusals = Refusals()
    for code in (None, "step_failed", "queue_full"):
        refusals.count(code)
    assert refusals.counts == {**dict.fromkeys(CODES, 0), "queue_full": 1}
