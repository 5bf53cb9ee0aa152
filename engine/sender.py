"""Writes the core's frames from a thread of its own, so that no step waits for the API process."""

from __future__ import annotations

import socket
import threading
from collections import deque

from engine.framing import frame
from engine.messages import FromCore, Step

MAX_PENDING_STEP_BYTES = 8 * 1024 * 1024


class Sender:
    """Writes frames from a thread of its own, in order.

    Step records that wait are bounded: the oldest are dropped, and the reader sees the missing numbers.
    Everything else is kept: it is bounded by the requests that live.
    """

    def __init__(self, connection: socket.socket, max_step_bytes: int = MAX_PENDING_STEP_BYTES) -> None:
        self._connection = connection
        self._max_step_bytes = max_step_bytes
        self._pending: deque[tuple[bytes, bool]] = deque()  # a frame, and whether it is a step record
        self._step_bytes = 0
        self._closed = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def send(self, message: FromCore) -> None:
        data, is_step = frame(message), isinstance(message, Step)
        with self._news:
            self._pending.append((data, is_step))
            if is_step:
                self._step_bytes += len(data)
                if self._step_bytes > self._max_step_bytes:
                    self._drop_steps()
            self._news.notify()

    def close(self, timeout: float = 2.0) -> None:
        """Write out what waits, for as long as that takes, but at most `timeout` seconds."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(timeout)

    @property
    def pending_step_bytes(self) -> int:
        return self._step_bytes

    def _drop_steps(self) -> None:
        """Drop the older half at once, so that a stopped reader does not cost a pass over all for every step."""
        kept: deque[tuple[bytes, bool]] = deque()
        for data, is_step in self._pending:
            if is_step and self._step_bytes > self._max_step_bytes // 2:
                self._step_bytes -= len(data)
            else:
                kept.append((data, is_step))
        self._pending = kept

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._pending and not self._closed:
                    self._news.wait()
                if not self._pending:
                    return
                data, is_step = self._pending.popleft()
                if is_step:
                    self._step_bytes -= len(data)
            try:
                self._connection.sendall(data)
            except OSError:  # the API process is gone: the reader thread notices too
                return
