"""Clients that ask and do not read, or read slowly: a real server with a short --write-timeout."""

import json
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from engine.messages import Output
from engine.protocol import Gap, Record, decode_item, decode_snapshot
from engine.server import engine_routes
from engine.server.admission import Admission
from engine.server.errors import ApiError
from engine.server.generation import ALTERNATIVE_BYTES, MOST_UNREAD, OUTPUT_BYTES, News
from engine.server.hub import StepHub
from engine.server.settings import Limits
from tests.engine.server.conftest import Server, start
from tests.engine.server.test_stream import small_server
from tests.engine.server.wires import HOST, Wire, until

OPTIONS = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "8MiB", "--write-timeout", "1.5")
READERS = 2
LONG = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "n": 8, "logprobs": 5}
LARGE = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "n": 8, "logprobs": 5}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start(tmp_path_factory.mktemp("slow"), *OPTIONS, "--max-step-readers", str(READERS))
    yield server
    assert server.stop() == 0
    assert server.stderr.read_text() == ""


def post(fields: dict[str, object]) -> bytes:
    body = json.dumps(fields).encode()
    return b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body


def is_served(server: Server, wire: Wire) -> bool:
    """Whether the server has the other end of it still."""
    ends = psutil.Process(server.process.pid).net_connections("tcp")
    return any(end.raddr and end.raddr.port == wire.port for end in ends)


def test_a_stream_that_nobody_reads_is_cut_and_its_requests_are_aborted(slow: Server) -> None:
    before = decode_snapshot(slow.http.get("/engine/snapshot").content).counters
    with Wire(slow.url, receive=4096) as wire:
        wire.send(post({**LONG, "stream": True}))
        assert b"200 OK" in wire.head()
        until(lambda: not is_served(slow, wire), "the connection is cut")
        until(lambda: not slow.snapshot()["requests"], "its requests are aborted")
        after = decode_snapshot(slow.http.get("/engine/snapshot").content).counters
        assert after.aborted - before.aborted == LONG["n"]
        assert not wire.to_end().endswith(b"[DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("path", ["/v1/completions", "/engine/snapshot"])
def test_a_whole_answer_that_nobody_reads_is_cut(slow: Server, path: str) -> None:
    with Wire(slow.url, receive=4096) as wire:
        if path == "/engine/snapshot":
            wire.send((b"GET /engine/snapshot HTTP/1.1\r\n" + HOST + b"\r\n") * 20)
        else:
            wire.send(post(LARGE))
        head = wire.head().lower()
        until(lambda: not is_served(slow, wire), "the connection is cut")
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert len(wire.to_end()) < length * (20 if path == "/engine/snapshot" else 1)


def test_who_reads_slowly_but_steadily_gets_all(slow: Server) -> None:
    with Wire(slow.url, receive=4096) as wire:
        wire.send(post({**LARGE, "max_tokens": 150}))
        began = time.monotonic()
        head = wire.head()
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        received, wire.rest = len(wire.rest), b""
        share = length // 16  # so that it takes about four times as long as a reader may be silent
        while received < length:
            wanted = min(share, length - received)
            while wanted:
                data = wire.read(wanted)
                assert data, f"it was cut after {received} of {length} bytes"
                received, wanted = received + len(data), wanted - len(data)
            time.sleep(0.25)
        assert time.monotonic() - began > 2.5
        assert wire.get("/health").status == 200


def test_readers_of_steps_are_so_many_at_most(slow: Server) -> None:
    with httpx.Client(base_url=slow.url, timeout=20) as http:
        readers = [Wire(slow.url) for _ in range(READERS)]
        for reader in readers:
            reader.send(b"GET /engine/steps HTTP/1.1\r\n" + HOST + b"\r\n")
            assert b"200 OK" in reader.head()
        answer = http.get("/engine/steps")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "5"
        assert answer.json()["error"]["code"] == "too_many_readers"
        readers[0].socket.close()

        def taken() -> bool:
            with http.stream("GET", "/engine/steps") as response:
                return response.status_code == 200

        until(taken, "one left, and another has its place")
        readers[1].socket.close()


def test_a_reader_of_steps_that_stops_is_cut_and_comes_back_where_it_was(slow: Server) -> None:
    with slow.http as http:
        first = slow.snapshot()["seq"] + 1
        wire = Wire(slow.url, receive=16384)  # of a record's size: some are to arrive
        wire.send(f"GET /engine/steps?from={first} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        assert b"200 OK" in wire.head()
        while is_served(slow, wire):
            http.post("/v1/completions", json={**LARGE, "logprobs": None, "max_tokens": 100}).raise_for_status()
        covered: list[int] = []
        for line in wire.to_end().split(b"\n"):
            if line.startswith(b"data: {") and line.endswith(b"}"):
                take(covered, line)
        last = slow.snapshot()["seq"]
        assert covered[0] == first
        assert covered[-1] < last
        with http.stream("GET", "/engine/steps", params={"from": covered[-1] + 1}) as response:
            for text in response.iter_lines():
                if text.startswith("data: "):
                    take(covered, text.encode())
                    if covered[-1] >= last:
                        break
        assert covered == list(range(first, covered[-1] + 1))
        wire.socket.close()


def take(covered: list[int], line: bytes) -> None:
    item = decode_item(line.removeprefix(b"data: "))
    assert isinstance(item, Record | Gap)
    covered += [item.seq] if isinstance(item, Record) else range(item.first, item.last + 1)


async def test_a_silent_stream_of_steps_tells_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_routes, "KEEP_ALIVE_SECONDS", 0.05)
    async with small_server(StepHub()) as (url, _, _), httpx.AsyncClient(base_url=url, timeout=20) as http:
        lines: list[str] = []
        async with http.stream("GET", "/engine/steps") as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": keep-alive") == 3:
                    (await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})).raise_for_status()
                if line.startswith("data: "):
                    break
        assert lines.count(": keep-alive") >= 3
        assert all(line in (": keep-alive", "") for line in lines[:6])


async def test_of_an_answer_that_is_read_too_slowly_no_more_waits_than_is_allowed() -> None:
    admission, given_up = Admission(Limits()), []
    news = News(admission.enter("client", {"a": 1}, "n"), lambda: given_up.append("a"))
    token = Output("a", token_id=1, top=((1, -1.0),) * 20)
    for _ in range(MOST_UNREAD // (OUTPUT_BYTES + 20 * ALTERNATIVE_BYTES)):
        news.put(token)
    assert await news.get() is token
    assert not given_up
    for _ in range(3):
        news.put(token)
    assert given_up == ["a"]
    with pytest.raises(ApiError, match=r"read too slowly: more than 32 MiB") as raised:
        await news.get()
    assert raised.value.code == "read_too_slowly"
    assert admission.waiting == 0
