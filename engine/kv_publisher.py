"""Publishes KV events over ZeroMQ, as vLLM does, from a thread of its own: no step waits for whoever listens.

Frames are the topic, a sequence number of 8 bytes, and a batch in msgpack. Who missed some asks for them again at the
replay endpoint: an empty frame and the first number wanted, answered by batches in order and an end, number -1.
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

MAX_PENDING_BYTES = 8 << 20  # of batches that the thread has not sent yet
KEPT_BATCHES = 10_000  # that can be told again
KEPT_BYTES = 16 << 20  # of these together
END = (-1).to_bytes(8, "big", signed=True)
MAX_UNREAD_BATCHES = 1_000  # of a subscriber that reads too slowly; it misses the next ones, and can ask for them
LONGEST_QUESTION = 4096  # bytes: a subscription or a question
LINGER = 500  # milliseconds that a subscriber has to take the last batches
BIND_PAUSE = 0.05  # seconds between two tries to bind
KEEP_ALIVE_SECONDS = 60  # after which a subscriber that has vanished is looked for
_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode


class CannotPublish(ValueError):
    """An endpoint cannot be bound; the message names the flag."""


class KvPublisher:
    """`publish` may be called by one thread. Batches are numbered from 0 on.

    Those that wait to be sent are bounded: the oldest are dropped, and subscribers see that numbers are missing.
    """

    def __init__(
        self,
        where: KvPublishing,
        patience: float = 0.0,
        clock: Callable[[], float] = time.time,
        *,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        kept_batches: int = KEPT_BATCHES,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        """Bind at once; an endpoint in use is tried again for `patience` seconds. Raises CannotPublish."""
        self._clock = clock
        self._max_pending_bytes = max_pending_bytes
        self._kept_batches, self._kept_bytes = kept_batches, kept_bytes
        self._topic = where.topic.encode()
        self._pending: deque[tuple[int, bytes]] = deque()
        self._pending_bytes = 0
        self._sequence = 0
        self._woken = self._closed = False
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, bytes]] = deque()  # the thread's alone, as are the sockets
        self._all_kept_bytes = 0
        self._context = zmq.Context()
        try:
            until = time.monotonic() + patience
            self._socket = self._bind(zmq.PUB, where.endpoint, "--kv-events", until)
            self._replay = self._bind(zmq.ROUTER, where.replay, "--kv-events-replay", until) if where.replay else None
        except CannotPublish:
            self._context.destroy(linger=0)
            raise
        # As bound: with the ports that were free.
        self.where = KvPublishing(
            _bound(self._socket), "" if self._replay is None else _bound(self._replay), where.topic
        )
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="kv-publisher", daemon=True)
        self._thread.start()

    def publish(self, events: Sequence[KvEvent]) -> None:
        """Send what one step changed. Never waits for a subscriber."""
        payload = _encode(KvBatch(self._clock(), tuple(events)))
        with self._lock:
            self._pending.append((self._sequence, payload))
            self._sequence += 1
            self._pending_bytes += len(payload)
            while self._pending_bytes > self._max_pending_bytes:
                self._pending_bytes -= len(self._pending.popleft()[1])
            self._wake()

    def close(self, timeout: float = 2.0) -> None:
        """Send what waits, for at most `timeout` seconds; the endpoints are free then."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake()
        self._thread.join(timeout)
        if not self._thread.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            os.write(self._wake_write, b"\0")

    def _bind(self, kind: int, endpoint: str, flag: str, until: float) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.IPV6, endpoint.startswith("tcp://["))
        # An answer to a question fits whole.
        socket.setsockopt(zmq.SNDHWM, MAX_UNREAD_BATCHES if kind == zmq.PUB else self._kept_batches + 1)
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

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            poller.register(self._wake_read, zmq.POLLIN)
            if self._replay is not None:
                poller.register(self._replay, zmq.POLLIN)
            while True:
                ready = dict(poller.poll())
                if self._wake_read in ready:
                    os.read(self._wake_read, 1)
                    with self._lock:
                        self._woken = False
                while (batch := self._next()) is not None:
                    self._send(*batch)
                if self._closed and not self._pending:
                    return
                if self._replay is not None and self._replay in ready:
                    self._answer(self._replay)
        except Exception:  # the engine goes on without it
            _log.exception("KV events are published no more")
        finally:
            self._context.destroy()

    def _next(self) -> tuple[int, bytes] | None:
        with self._lock:
            if not self._pending:
                return None
            sequence, payload = self._pending.popleft()
            self._pending_bytes -= len(payload)
            return sequence, payload

    def _send(self, sequence: int, payload: bytes) -> None:
        self._socket.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload))
        if self._replay is None:
            return
        self._kept.append((sequence, payload))
        self._all_kept_bytes += len(payload)
        while len(self._kept) > self._kept_batches or self._all_kept_bytes > self._kept_bytes:
            self._all_kept_bytes -= len(self._kept.popleft()[1])

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        """One question; what is none gets no answer."""
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            _log.debug("a question for KV events has frames of %s bytes", [len(frame) for frame in frames])
            return
        client, _, first = frames
        wanted = int.from_bytes(first, "big")
        for sequence, payload in self._kept:
            if sequence >= wanted:
                replay.send_multipart((client, b"", self._topic, sequence.to_bytes(8, "big"), payload))
        replay.send_multipart((client, b"", b"", END, b""))


def _bound(socket: zmq.Socket[bytes]) -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
