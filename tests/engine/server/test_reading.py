"""Bodies that are too large, too slow, compressed, or too many at a time, against a real server with small limits."""

import gzip
import json
import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest

from engine.server.bodies import ChatBody, CompletionBody
from engine.server.reading import parsed_bytes
from tests.engine.server.conftest import Server, start
from tests.engine.server.wires import HOST, Answer, Wire, until

KIB = 1 << 10
MOST = 256 * KIB
MEMORY = 769 * KIB  # three bodies with their few values
OPTIONS = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "4MiB", "--body-timeout", "1.5")
POST = b"POST /detokenize HTTP/1.1\r\n" + HOST


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    limits = ("--max-body", f"{MOST // KIB}KiB", "--max-body-memory", f"{MEMORY // KIB}KiB")
    server: Server = start(tmp_path_factory.mktemp("small"), *OPTIONS, *limits)
    yield server.url
    assert server.stop() == 0
    assert server.stderr.read_text() == ""


def body(size: int) -> bytes:
    """A body for /detokenize."""
    return b'{"tokens": [1]' + b" " * (size - 15) + b"}"


def ask(url: str, data: bytes) -> Answer:
    with Wire(url) as wire:
        wire.post(data)
        return wire.answer()


def test_a_body_may_be_as_large_as_is_said_and_no_larger(url: str) -> None:
    assert ask(url, body(MOST)).status == 200
    answer = ask(url, body(MOST + 1))
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert "256 KiB" in answer.error["message"]


def test_of_a_body_that_is_announced_too_large_nothing_is_read(url: str) -> None:
    with Wire(url) as wire:
        wire.send(POST + b"Content-Length: 1000000000\r\n\r\n")
        answer = wire.answer()
        assert answer.status == 413
        assert answer.headers["connection"] == "close"
        sent = 0
        try:
            while sent < 1_000_000_000:
                sent += wire.socket.send(b" " * 65536)
        except ConnectionError:
            pass
        assert sent < 1 << 26
        assert wire.to_end() == b""


def test_chunks_are_counted_while_they_come(url: str) -> None:
    with Wire(url) as wire:
        wire.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
        sent = 0
        try:
            while wire.is_open() and sent < 1_000_000_000:
                sent += wire.socket.send(piece)
        except ConnectionError:
            pass
        assert MOST < sent < 1 << 26
        answer = wire.answer()
        assert answer.status == 413
        assert answer.headers["connection"] == "close"
        assert wire.to_end() == b""


def test_many_small_chunks_are_one_body(url: str) -> None:
    with Wire(url) as wire:
        data = json.dumps({"tokens": [7] * 100}).encode()
        chunks = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in data)
        wire.send(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert wire.answer().status == 200
        assert wire.get().status == 200


def test_a_small_rest_of_a_refused_body_does_not_cost_the_connection(url: str) -> None:
    with Wire(url) as wire:
        wire.post(b"[" * 20_000, "/nothing")
        assert wire.answer().status == 404
        wire.post(body(MOST + 100))
        assert wire.answer().status == 413
        assert wire.get().status == 200


def test_who_asks_first_is_told_before_sending(url: str) -> None:
    expect = b"Expect: 100-continue\r\n"
    with Wire(url) as wire:
        wire.send(POST + expect + b"Content-Length: 1000000000\r\n\r\n")
        assert wire.answer().status == 413
    with Wire(url) as wire:
        data = body(1000)
        wire.send(POST + expect + b"Content-Length: 1000\r\n\r\n")
        assert wire.head() == b"HTTP/1.1 100 Continue"
        wire.send(data)
        assert wire.answer().status == 200
        wire.send(POST + b"Expect: more\r\nContent-Length: 1000\r\n\r\n" + data)
        assert wire.answer().status == 417
        assert wire.get().status == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP, identity", "rot13"])
def test_a_compressed_body_is_refused(url: str, encoding: str) -> None:
    bomb = gzip.compress(b" " * (64 << 20))
    with Wire(url) as wire:
        wire.send(POST + f"Content-Encoding: {encoding}\r\nContent-Length: {len(bomb)}\r\n\r\n".encode() + bomb)
        answer = wire.answer()
        assert answer.status == 415
        assert "Content-Encoding" in answer.error["message"]
        assert wire.get().status == 200
        wire.send(POST + b"Content-Encoding: identity\r\nContent-Length: 30\r\n\r\n" + body(30))
        assert wire.answer().status == 200


@pytest.mark.parametrize("begin", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{"])
def test_a_body_that_does_not_come_is_given_up(url: str, begin: bytes) -> None:
    with Wire(url) as wire:
        wire.send(POST + begin)
        answer = wire.answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.headers["connection"] == "close"
        assert wire.to_end() == b""


def test_all_bodies_together_have_so_much_memory_and_give_it_back(url: str) -> None:
    holders = [Wire(url) for _ in range(3)]
    for holder in holders:
        holder.send(POST + b"Content-Length: %d\r\n\r\n" % MOST + body(MOST)[:-1])
    with Wire(url) as wire:

        def refused() -> bool:
            wire.post(body(1000))
            answer = wire.answer()
            if answer.status == 200:
                return False
            assert answer.status == 429
            assert answer.headers["retry-after"] == "1"
            assert answer.error["code"] == "too_many_bodies"
            return True

        until(refused, "the holders' bodies have come")
        holders[0].socket.close()  # it vanishes
        until(lambda: not refused(), "its memory is given back")
        holders[1].send(b"}")  # it is served
        assert holders[1].answer().status == 200
        assert holders[2].answer().status == 408  # it is given up
        wire.post(body(MOST))
        assert wire.answer().status == 200


def test_no_memory_is_lost_whatever_becomes_of_a_body(url: str) -> None:
    for i in range(40):
        with Wire(url) as wire:
            kind = i % 5
            if kind == 0:
                wire.send(POST + b"Content-Length: %d\r\n\r\n" % MOST + body(MOST)[:-1])  # and leaves
            elif kind == 1:
                wire.post(b"{" * 100_000)
                assert wire.answer().status in (400, 413)
            elif kind == 2:
                wire.send(POST + b"Transfer-Encoding: chunked\r\n\r\n4000\r\n" + b" " * 0x4000 + b"\r\nzz\r\n")
                assert wire.answer().status == 400
            elif kind == 3:
                wire.post(body(MOST))
                assert wire.answer().status == 200
            else:
                wire.post(body(MOST - 1))  # and leaves before the answer
    whole = [Wire(url) for _ in range(2)]
    for wire in whole:  # nothing is held: together with the next they have all that there is
        wire.send(POST + b"Content-Length: %d\r\n\r\n" % MOST + body(MOST)[:-1])
    assert ask(url, body(MOST - 3000)).status in (200, 429)
    until(lambda: ask(url, body(MOST - 3000)).status == 200, "there is room for a third")
    for wire in whole:
        wire.socket.close()


@pytest.mark.parametrize("value", [b"[],", b"{},", b"300,", b'"a",'])
def test_a_body_of_very_many_values_is_refused_before_they_are_made(url: str, value: bytes) -> None:
    data = b'{"tokens": [' + value * ((MOST - 100) // len(value)) + b"1]}"
    answer = ask(url, data)
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert "once it is parsed" in answer.error["message"]


OBJECTS = b'{"messages": [{"role": "user", "content": ""}], "chat_template_kwargs": {"x": %b}}'
GROWING = {
    "numbers": (b'{"prompt": [' + b"300," * 100_000 + b"1]}", CompletionBody),
    "empty arrays": (b'{"prompt": [' + b"[]," * 100_000 + b"[1]]}", CompletionBody),
    "arrays": (b'{"prompt": [' + b"[300]," * 100_000 + b"[1]]}", CompletionBody),
    "text": (b'{"prompt": "' + b"word, " * 100_000 + b'"}', CompletionBody),
    "text with one more": (b'{"prompt": "' + b"word  " * 100_000 + "\u00fc\u20ac".encode() + b'"}', CompletionBody),
    "text with an emoji": (b'{"prompt": "' + b"word  " * 100_000 + "\U0001f600".encode() + b'"}', CompletionBody),
    "text with an escape": (b'{"prompt": "' + b"word  " * 100_000 + b'\\ud83d\\ude00"}', CompletionBody),
    "strings": (OBJECTS % (b"[" + b'"ab",' * 100_000 + b"1]"), ChatBody),
    "empty objects": (OBJECTS % (b"[" + b"{}," * 100_000 + b"1]"), ChatBody),
    "objects": (OBJECTS % (b"[" + b'{"a":300},' * 100_000 + b"1]"), ChatBody),
    "one object": (OBJECTS % (b"{" + b",".join(b'"%06d":300' % i for i in range(100_000)) + b"}"), ChatBody),
    "messages": (b'{"messages": [' + b'{"role":"user","content":"a"},' * 4000 + b'{"role":"user"}]}', ChatBody),
}


@pytest.mark.parametrize(("data", "kind"), GROWING.values(), ids=GROWING)
def test_no_body_takes_more_memory_than_it_is_charged_with(data: bytes, kind: type) -> None:
    tracemalloc.start()
    try:
        parsed = msgspec.json.decode(data, type=kind)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parsed is not None
    assert taken <= parsed_bytes(data) < 12 * taken
