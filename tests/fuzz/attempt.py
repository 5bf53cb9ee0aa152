"""One client's connection, as bytes: what is sent, in which pieces, and how it ends. And what came back."""

from __future__ import annotations

import http.client
import io
import select
import socket
import struct
import time
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

End = Literal["read", "try", "leave", "cut", "half"]
ENDLESS = "/engine/steps"  # of whose stream the beginning is enough
PATIENCE = 0.4  # seconds
MAX_READ = 32 << 20  # bytes of one answer


class Attempt(msgspec.Struct, frozen=True):
    """`operation`: of the API, as (method, path), where it was drawn for one.

    `end`: read the answer; try to, but for `PATIENCE` alone, as the server may await more of the request; leave
    without it; cut the connection by a reset; or say, half closed, that no more comes, and then read.

    `whole`: it is one request to its end, so that there must be an answer. `allowed` are statuses of 500 and more that
    it may bring about.
    """

    label: str
    pieces: tuple[bytes, ...]
    end: End = "read"
    whole: bool = True
    method: str = "GET"
    pause: float = 0.0  # seconds between two pieces
    allowed: tuple[int, ...] = ()
    operation: tuple[str, str] | None = None

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))

    @staticmethod
    def load(path: Path) -> Attempt:
        return msgspec.json.decode(path.read_bytes(), type=Attempt)


class Answer(NamedTuple):
    """`status` 0: there was none, for the reason in `problem`."""

    status: int
    media: str = ""
    body: bytes = b""
    problem: str = ""
    seconds: float = 0.0


class Hangs(Exception):
    """No whole answer in time."""


def make(attempt: Attempt, address: tuple[str, int], limit: float) -> Answer:
    """Connect, send, and read what comes within `limit` seconds. Raises Hangs."""
    began = time.monotonic()
    sender = socket.create_connection(address, timeout=limit)
    try:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        problem = _send(sender, attempt)
        if attempt.end in ("leave", "cut"):
            if attempt.end == "cut":
                sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return Answer(0, problem="left")
        if attempt.end == "try" and not select.select([sender], [], [], PATIENCE)[0]:
            return Answer(0, problem="left")
        answer = _read(sender, attempt, began + limit)
        if answer.problem and problem:
            answer = answer._replace(problem=f"{problem}, then {answer.problem}")
        answer = answer._replace(seconds=time.monotonic() - began)
        if answer.seconds > limit:
            raise TimeoutError
        return answer
    except TimeoutError:
        raise Hangs(f"no whole answer in {limit:g} s") from None
    finally:
        sender.close()


def _send(sender: socket.socket, attempt: Attempt) -> str:
    """What went wrong with it; the server may have answered and closed before all was sent."""
    try:
        for piece in attempt.pieces:
            sender.sendall(piece)
            if attempt.pause:
                time.sleep(attempt.pause)
        if attempt.end == "half":
            sender.shutdown(socket.SHUT_WR)
    except (BrokenPipeError, ConnectionResetError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
        return f"sending: {type(error).__name__}"
    return ""


class _Until(io.RawIOBase):
    """A socket's bytes, until a moment. Raises TimeoutError."""

    def __init__(self, receiver: socket.socket, moment: float) -> None:
        self._receiver, self._moment = receiver, moment

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = self._moment - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._receiver.settimeout(left)
        return self._receiver.recv_into(buffer)


class _Socket:
    """What http.client wants of a socket."""

    def __init__(self, receiver: socket.socket, moment: float) -> None:
        self._file = io.BufferedReader(_Until(receiver, moment))

    def makefile(self, mode: str) -> io.BufferedReader:
        return self._file


def _read(receiver: socket.socket, attempt: Attempt, moment: float) -> Answer:
    response = http.client.HTTPResponse(_Socket(receiver, moment), method=attempt.method)  # type: ignore[arg-type]
    try:
        response.begin()
        media = response.headers.get("Content-Type", "").partition(";")[0]
        endless = media == "text/event-stream" and ENDLESS.encode() in attempt.pieces[0][:300]
        body = b"" if endless else response.read(MAX_READ)
        return Answer(response.status, media, body)
    except TimeoutError:
        raise
    except (http.client.HTTPException, OSError, ValueError) as error:
        return Answer(0, problem=f"{type(error).__name__}: {error}"[:200])
