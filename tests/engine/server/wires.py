"""Raw connections to a server, for what no HTTP client would send."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

PATIENCE = 20.0  # seconds, after which a test that waits fails
HOST = b"Host: 127.0.0.1\r\n"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, str]:
        assert self.headers["content-type"].startswith("application/json"), self
        return json.loads(self.body)["error"]


class Wire:
    """One connection; `receive` bytes of the kernel's buffer, where the client is to be seen not to read."""

    def __init__(self, url: str, receive: int | None = None) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        if receive is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((host, int(port)))
        self.rest = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def port(self) -> int:
        return self.socket.getsockname()[1]

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def get(self, path: str = "/version", headers: bytes = b"") -> Answer:
        self.send(f"GET {path} HTTP/1.1\r\n".encode() + HOST + headers + b"\r\n")
        return self.answer()

    def post(self, body: bytes, path: str = "/detokenize") -> None:
        self.send(f"POST {path} HTTP/1.1\r\n".encode() + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def read(self, size: int = 65536) -> bytes:
        """What is there next; nothing at the end."""
        try:
            return self.socket.recv(size)
        except ConnectionError:
            return b""

    def head(self) -> bytes:
        """Through the next empty line."""
        while b"\r\n\r\n" not in self.rest:
            data = self.read()
            assert data, f"it was closed after {self.rest!r}"
            self.rest += data
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        return head

    def answer(self) -> Answer:
        """The next whole answer, which has a length."""
        first, *lines = self.head().decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        while len(self.rest) < int(headers["content-length"]):
            data = self.read()
            assert data, "it was closed within an answer"
            self.rest += data
        body, self.rest = self.rest[: int(headers["content-length"])], self.rest[int(headers["content-length"]) :]
        return Answer(int(first.split()[1]), headers, body)

    def to_end(self) -> bytes:
        """All that comes until the server closes."""
        while data := self.read():
            self.rest += data
        return self.rest

    def is_open(self) -> bool:
        """Whether the server keeps it, and has said nothing more."""
        return not select.select([self.socket], [], [], 0)[0]


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what is to come."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:g} s"
        time.sleep(0.02)
