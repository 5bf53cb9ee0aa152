"""A core's main loop with nothing around it but the two ends of a socket."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any

from engine.core_loop import CoreLoop
from engine.faults import Faults
from engine.flight_recorder import FlightRecorder
from engine.framing import FrameSplitter, decode_from_core
from engine.messages import FromCore
from engine.sender import Sender
from engine.watchdog import Watchdog
from tests.engine.mirror import mirror_core


def recorder_of(core: Any = None, **bounds: int) -> FlightRecorder:
    return FlightRecorder((core or mirror_core()).snapshot(), **bounds)


def loop_of(
    core: Any,
    inbox: Any,
    sender: Sender,
    recorder: FlightRecorder | None = None,
    faults: Sequence[str] = (),
    check_every: int = 0,
) -> CoreLoop:
    watchdog = Watchdog(0, lambda age: None)
    return CoreLoop(core, inbox, sender, recorder or recorder_of(), watchdog, Faults(faults), check_every)


class Talk:
    """Messages to a loop, all there before it runs, and what it says to them."""

    def __init__(self, *messages: Any) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for message in messages:
            self.inbox.put(message)
        self._ours, self._theirs = socket.socketpair()
        self.sender = Sender(self._ours)
        self._read = b""
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def told(self) -> list[FromCore]:
        """All that was sent; the talk is over then."""
        self.sender.close()
        self._ours.close()
        self._reader.join()
        return [decode_from_core(body) for body in FrameSplitter().feed(self._read)]

    def _listen(self) -> None:
        with self._theirs:
            while data := self._theirs.recv(1 << 16):
                self._read += data
