"""A real server with small limits, and clients that speak no HTTP, or none for a while."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from aiohttp import web

from engine.server.connections import ACCEPTED_AT_ONCE, AHEAD_BYTES, MAX_HEAD_BYTES, READ_BYTES, Connections
from engine.server.open_files import SPARE
from engine.server.refusals import Refusals
from engine.server.settings import Limits
from tests.engine.server.conftest import Server, start
from tests.engine.server.wires import HOST, Wire, until

MOST = 8
OPTIONS = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "4MiB", "--max-connections", str(MOST))
TIMES = ("--header-timeout", "0.6", "--keep-alive-timeout", "2", "--write-timeout", "30")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start(tmp_path_factory.mktemp("small"), *OPTIONS, *TIMES)
    yield server
    assert server.stop() == 0
    lines = server.stderr.read_text().splitlines()
    assert all("--max-connections 8 are in use" in line for line in lines), lines


@pytest.fixture
def url(small: Server) -> str:
    """Of the server when nobody is connected."""
    port = int(small.url.rpartition(":")[2])
    process = psutil.Process(small.process.pid)

    def connected() -> list[object]:
        return [c for c in process.net_connections("tcp") if c.laddr.port == port and c.status != psutil.CONN_LISTEN]

    until(lambda: not connected(), "connections of the test before are closed")
    return small.url


def test_who_says_nothing_is_closed_without_a_word(url: str) -> None:
    with Wire(url) as wire:
        assert wire.to_end() == b""


@pytest.mark.parametrize("pause", [0.05, 0.2])
def test_headers_that_dribble_are_ended_with_a_408(url: str, pause: float) -> None:
    with Wire(url) as wire:
        wire.send(b"GET /version HTTP/1.1\r\n")
        wire.socket.settimeout(pause)
        data = None
        while data is None:
            try:
                data = wire.read()
            except TimeoutError:
                wire.send(b"X: y\r\n" if pause == 0.05 else b"X")
        wire.rest = data
        answer = wire.answer()
        assert answer.status == 408
        assert answer.headers["connection"] == "close"
        assert answer.error["code"] == "request_timeout"
        assert wire.to_end() == b""


def test_the_headers_of_a_second_request_have_their_own_time(url: str) -> None:
    with Wire(url) as wire:
        assert wire.get().status == 200
        wire.send(b"GET /version HTTP")
        assert wire.answer().status == 408


def test_a_connection_that_nobody_uses_is_closed(url: str) -> None:
    with Wire(url) as wire:
        for _ in range(3):
            assert wire.get().status == 200
        assert wire.to_end() == b""


def test_the_one_that_rests_longest_makes_room(url: str) -> None:
    wires = [Wire(url) for _ in range(MOST)]
    for wire in wires:
        assert wire.get().status == 200
    assert wires[0].get().status == 200  # now the second has rested longest
    wires[2].send(b"GET /vers")  # to dribble headers is to rest
    for count in (1, 2):
        wire = Wire(url)
        assert wire.get().status == 200
        wires.append(wire)
        until(lambda wire=wires[count]: not wire.is_open(), "room was made")
        assert wires[count].to_end() == b""
    assert all(wire.is_open() for wire in (wires[0], *wires[3:]))
    for wire in wires:
        wire.socket.close()


def test_where_all_work_a_new_one_is_told_to_come_again(url: str) -> None:
    readers = [Wire(url) for _ in range(MOST)]
    for reader in readers:
        reader.send(b"GET /engine/steps HTTP/1.1\r\n" + HOST + b"\r\n")
        assert b"200 OK" in reader.head()
    for _ in range(2):
        with Wire(url) as wire:
            wire.send(b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n")
            answer = wire.answer()
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            assert answer.error["code"] == "too_many_connections"
            assert wire.to_end() == b""
    readers.pop().socket.close()

    def served() -> bool:
        with Wire(url) as wire:
            return wire.get().status == 200

    until(served, "one left, and a new one has its place")
    with Wire(url) as wire:
        counted = re.search(
            rb'refused_requests_total\{code="too_many_connections",[^}]*\} (\S+)', wire.get("/metrics").body
        )
    assert counted is not None
    assert float(counted[1]) >= 2
    for reader in readers:
        assert reader.is_open()
        reader.socket.close()


def test_many_more_than_are_taken_are_turned_away_and_cost_nothing(url: str, small: Server) -> None:
    process = psutil.Process(small.process.pid)
    before = process.num_fds()
    wires = [Wire(url) for _ in range(200)]
    assert wires[-1].get().status == 200
    assert process.num_fds() <= before + MOST + ACCEPTED_AT_ONCE
    for wire in wires:
        wire.socket.close()
    until(lambda: process.num_fds() <= before, "their files are closed")


CHUNKED = b"POST /detokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n"
LENGTH = b"POST /detokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n"
TOO_LARGE = {
    "line": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "header": b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
    "name": b"GET / HTTP/1.1\r\n" + HOST + b"X" * 20_000 + b": a\r\n\r\n",
    "headers": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 300 + b"\r\n",
    "head": b"GET / HTTP/1.1\r\n" + HOST + (b"X: " + b"a" * 5_000 + b"\r\n") * (1 + MAX_HEAD_BYTES // 5_000),
    "nothing": b"\r\n" * MAX_HEAD_BYTES,
}
NO_HTTP = {
    "tls": bytes.fromhex("16030100b0010000ac0303") + b"x" * 100,
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "garbage": b"\xff\xfe\x00hello\r\n\r\n",
    "method": b"FLY /version HTTP/1.1\r\n" + HOST + b"\r\n",
    "nul in the url": b"GET /ver\0sion HTTP/1.1\r\n" + HOST + b"\r\n",
    "nul in a header": b"GET /version HTTP/1.1\r\nX: a\0b\r\n" + HOST + b"\r\n",
    "no text in the url": b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n",
    "no host": b"GET /version HTTP/1.1\r\n\r\n",
    "space in a name": b"GET /version HTTP/1.1\r\nX : a\r\n" + HOST + b"\r\n",
    "folded": b"GET /version HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "line feeds alone": b"GET /version HTTP/1.1\nHost: 127.0.0.1\n\n",
    "length and chunks": LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": LENGTH + b"Content-Length: 3\r\n\r\n{}",
    "the same length twice": LENGTH + b"Content-Length: 2\r\n\r\n{}",
    "negative length": b"POST /detokenize HTTP/1.1\r\n" + HOST + b"Content-Length: -5\r\n\r\n{}",
    "endless length": b"POST /detokenize HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}",
    "chunk without size": CHUNKED + b"\r\nzz\r\n{}\r\n0\r\n\r\n",
    "negative chunk": CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n",
    "endless chunk": CHUNKED + b"\r\n" + b"f" * 40 + b"\r\n{}",
    "chunk longer than it says": CHUNKED + b"\r\n1\r\n{}}}\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("sent", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_head_that_is_too_large_is_refused(url: str, sent: bytes) -> None:
    with Wire(url) as wire:
        wire.send(sent)
        answer = wire.answer()
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
        assert wire.to_end() == b""


@pytest.mark.parametrize("sent", NO_HTTP.values(), ids=NO_HTTP)
def test_what_is_no_http_is_refused_and_nothing_after_it_is_taken(url: str, sent: bytes) -> None:
    with Wire(url) as wire:
        wire.send(sent + b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n")
        answer = wire.answer()
        assert answer.status == 400
        assert answer.error["message"]
        assert "\n" not in answer.error["message"]
        assert wire.to_end() == b""


def test_garbage_without_end_is_answered_and_not_swallowed(url: str) -> None:
    with Wire(url) as wire:
        wire.send(b"\xff" * 8192)
        assert wire.answer().status == 400
        sent = 0
        try:
            while sent < 1 << 30:
                sent += wire.socket.send(b"\xff" * 65536)
        except ConnectionError:
            pass
        assert sent < 1 << 26


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /version HTTP/1.0\r\n\r\n", 200),
        (b"GET http://127.0.0.1/version HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 200),
        (b"GET /version HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n", 200),
        (b"GET /version HTTP/1.1\r\n" + HOST + b"Upgrade: h2c\r\nConnection: Upgrade, close\r\n\r\n", 200),
        (b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n", 404),
        (b"POST /nothing HTTP/1.1\r\n" + HOST + b"Expect: wonders\r\nConnection: close\r\n\r\n", 417),
        (b"POST /detokenize HTTP/1.1\r\n" + HOST + b"Expect: wonders\r\nConnection: close\r\n\r\n", 417),
    ],
)
def test_odd_requests_are_answered_as_others_are(url: str, sent: bytes, status: int) -> None:
    with Wire(url) as wire:
        wire.send(sent)
        answer = wire.answer()
        assert answer.status == status
        assert status == 200 or answer.error["message"]
        assert wire.to_end() == b""


def test_ten_thousand_requests_at_once_are_answered_one_by_one(url: str) -> None:
    request = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
    with Wire(url) as wire, ThreadPoolExecutor(1) as sender:
        sender.submit(wire.send, request * 10_000)
        for _ in range(10_000):
            assert wire.answer().status == 200
        assert wire.is_open()


def test_requests_behind_one_in_work_are_not_read_without_end(url: str, small: Server) -> None:
    memory = psutil.Process(small.process.pid).memory_info
    body = b'{"tokens": [1]}' + b" " * 50_000
    request = b"POST /detokenize HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with Wire(url) as wire:
        wire.send(b"GET /engine/steps HTTP/1.1\r\n" + HOST + b"\r\n")  # it does not end by itself
        assert b"200 OK" in wire.head()
        before = memory().rss
        wire.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            wire.send(request * 1000)
        assert memory().rss - before < 4 * (AHEAD_BYTES + READ_BYTES) + (1 << 20)
        assert wire.is_open()


async def test_there_is_a_sweep_only_while_somebody_is_connected() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text="here")

    loop = asyncio.get_running_loop()
    connections = Connections(web.Server(answer), Limits(keep_alive_timeout=0.1), 4, Refusals())
    server = await loop.create_server(connections, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    assert b"200 OK" in await reader.readline()
    assert connections.is_sweeping
    assert (await reader.read()).endswith(b"here")
    while connections.is_sweeping:
        await asyncio.sleep(0.05)
    writer.close()
    server.close()


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "fit"),
    [(64, 300, 4096, 150), (64, 600, 4096, 344), (64, 2000, 999, 999), (64, 100, 8, 8), (800, 900, 8, 8)],
)
def test_open_files_are_allowed_as_far_as_the_system_lets_it_be(soft: int, hard: int, wanted: int, fit: int) -> None:
    code = (
        "import resource; from engine.server import open_files; from engine.log import configure, flush;"
        f"configure('text', 'info', 'api'); resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        f"print(open_files.allow({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0]); flush()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    taken, raised = map(int, done.stdout.split())
    assert taken == fit
    assert raised == max(soft, min(hard, wanted + SPARE))
    assert ("--max-connections" in done.stderr) == (fit < wanted)
