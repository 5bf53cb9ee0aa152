"""Publishes KV events over ZeroMQ, as vLLM does. No step waits for whoever listens.

Frames are the topic, a sequence number of 8 bytes, and a batch in msgpack. A publishing socket never blocks: ZeroMQ
has its own thread, and a subscriber that reads too slowly misses messages. Who missed some asks for them at the replay
endpoint: an empty frame and the first number wanted, answered by batches in order and an end, number -1.
Imported only where it is asked for.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import zmq

from engine.kv_endpoint import KvPublishing
from engine.kv_events import KvBatch, KvEvent

MAX_UNREAD_BATCHES = 1_000  # that wait for a subscriber; it misses the next ones
KEPT_BATCHES = 10_000  # that can be told again
KEPT_BYTES = 16 << 20  # of these together
END = (-1).to_bytes(8, "big", signed=True)
LONGEST_QUESTION = 4096  # bytes: a subscription or a question
LINGER = 500  # milliseconds that a subscriber has to take the last batches
BIND_PAUSE = 0.05  # seconds between two tries to bind
KEEP_ALIVE_SECONDS = 60  # after which a subscriber that has vanished is looked for
_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode


class CannotPublish(ValueError):
    """An endpoint cannot be bound; the message names the flag."""


class KvPublisher:
    """`publish` is for the thread that made this one. Batches are numbered from 0 on."""

    def __init__(
        self,
        where: KvPublishing,
        patience: float = 0.0,
        clock: Callable[[], float] = time.time,
        *,
        kept_batches: int = KEPT_BATCHES,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """Bind at once; an endpoint in use is tried again for `patience` seconds. Raises CannotPublish."""
        self._clock = clock
        self._topic = where.topic.encode()
        self._sequence = 0
        self._context = zmq.Context()
        until = time.monotonic() + patience
        try:
            self._socket = self._bind(zmq.PUB, where.endpoint, "--kv-events", MAX_UNREAD_BATCHES, until)
            self._replay: _Replay | None = None
            if where.replay:
                # An answer fits whole.
                router = self._bind(zmq.ROUTER, where.replay, "--kv-events-replay", kept_batches + 1, until)
                self._replay = _Replay(router, self._topic, kept_batches, kept_bytes)
        except CannotPublish:
            self._context.destroy(linger=0)
            raise
        # As bound: with the ports that were free.
        replay = "" if self._replay is None else self._replay.endpoint
        self.where = KvPublishing(_bound(self._socket), replay, where.topic)

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send what one step changed."""
        payload = _encode(KvBatch(self._clock(), tuple(events)))
        number = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        if self._replay is not None:  # first, so that nobody who hears it asks in vain
            self._replay.keep(number, payload)
        self._socket.send_multipart((self._topic, number, payload))

    def close(self) -> None:
        """Give subscribers a moment to take the last batches; the endpoints are free then."""
        if self._replay is not None:
            self._replay.close()
        self._context.destroy()

    def _bind(self, kind: int, endpoint: str, flag: str, most: int, until: float) -> zmq.Socket[bytes]:
        """`most`: messages that wait for one who reads too slowly."""
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.IPV6, endpoint.startswith("tcp://["))
        socket.setsockopt(zmq.SNDHWM, most)
        socket.setsockopt(zmq.MAXMSGSIZE, LONGEST_QUESTION)
        socket.setsockopt(zmq.LINGER, LINGER)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEP_ALIVE_SECONDS)
        while True:
            try:
                socket.bind(endpoint)
            except zmq.ZMQError as error:
                if error.errno == errno.EADDRINUSE and time.monotonic() < until:
                    time.sleep(BIND_PAUSE)
                    continue
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise CannotPublish(f"{flag} {endpoint}: cannot listen there: {reason}") from error
            return socket


class _Replay:
    """Keeps the newest batches, and answers questions for them in a thread of its own, to which the socket belongs."""

    def __init__(self, socket: zmq.Socket[bytes], topic: bytes, most: int, most_bytes: int) -> None:
        self.endpoint = _bound(socket)
        self._socket, self._topic = socket, topic
        self._most, self._most_bytes = most, most_bytes
        self._kept: deque[tuple[bytes, bytes]] = deque()  # number and payload
        self._bytes = 0
        self._lock = threading.Lock()
        self._end_read, self._end_write = os.pipe()  # written to at the end
        self._thread = threading.Thread(target=self._run, name="kv-replay", daemon=True)
        self._thread.start()

    def keep(self, number: bytes, payload: bytes) -> None:
        with self._lock:
            self._kept.append((number, payload))
            self._bytes += len(payload)
            while len(self._kept) > self._most or self._bytes > self._most_bytes:
                self._bytes -= len(self._kept.popleft()[1])

    def close(self) -> None:
        if self._thread.is_alive():
            os.write(self._end_write, b"\0")
            self._thread.join()
            os.close(self._end_write)

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            poller.register(self._end_read, zmq.POLLIN)
            poller.register(self._socket, zmq.POLLIN)
            while self._end_read not in (ready := dict(poller.poll())):
                if self._socket in ready:
                    self._answer()
        except Exception:  # events are published all the same
            _log.exception("KV events are told again no more")
        finally:
            self._socket.close()
            os.close(self._end_read)

    def _answer(self) -> None:
        """One question; what is none gets no answer."""
        frames = self._socket.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            _log.debug("a question for KV events has frames of %s bytes", [len(frame) for frame in frames])
            return
        client, _, wanted = frames
        with self._lock:
            batches = list(self._kept)
        for number, payload in batches:
            if number >= wanted:  # bytes in this order are as numbers are
                self._socket.send_multipart((client, b"", self._topic, number, payload))
        self._socket.send_multipart((client, b"", b"", END, b""))


def _bound(socket: zmq.Socket[bytes]) -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
