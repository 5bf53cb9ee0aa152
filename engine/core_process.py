"""The engine core's own process: `python -m engine.core_process --fd N`, over an inherited socket.

One thread reads frames into a queue, one writes them out, and the main thread steps the engine and waits for
neither: a slow API process costs it nothing. The socket's end is this process's end, so none is left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.contents import block_tokens, live_requests, request_tokens
from engine.framing import FrameSplitter, decode_to_core, frame
from engine.garbage import look_rarely
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.messages import (
    Abort,
    Add,
    BlockTokens,
    ClearCache,
    Fatal,
    FromCore,
    GetBlockTokens,
    GetRequestTokens,
    GetSnapshot,
    ListRequests,
    Located,
    Output,
    Outputs,
    Ready,
    Reply,
    RequestTokens,
    SetControl,
    Shutdown,
    Start,
    Step,
    ToCore,
)
from engine.protocol import LiveRequests, Record, encode
from engine.threads import set_threads

if TYPE_CHECKING:
    from engine.core import EngineCore

MAX_PENDING_STEP_BYTES = 8 * 1024 * 1024
IDLE_SECONDS = 0.05  # requests wait but none can run: look again


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


class CoreLoop:
    """Frames in, steps, frames out. `inbox` gives None when the API process is gone."""

    def __init__(self, core: EngineCore, inbox: queue.SimpleQueue[ToCore | None], sender: Sender) -> None:
        self._core = core
        self._inbox = inbox
        self._sender = sender
        self._running = True
        self._idle = True  # the last step did nothing: wait for a frame

    def run(self) -> None:
        while self._running:
            self._drain()
            if self._running:
                self._step()

    def _drain(self) -> None:
        """Take what has come; wait only if there is nothing to step."""
        if self._idle:
            timeout = IDLE_SECONDS if self._core.has_work else None
            with contextlib.suppress(queue.Empty):
                self._handle(self._inbox.get(timeout=timeout))
        while self._running:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _step(self) -> None:
        outputs, record = self._core.step()
        if outputs:
            self._sender.send(Outputs(outputs))
        self._tell(record)
        self._idle = not outputs and record is None

    def _tell(self, record: Record | None) -> None:
        if record is not None:
            self._sender.send(Step(record.seq, encode(record)))

    def _reply(self, call: int, found: LiveRequests | RequestTokens | BlockTokens | None) -> None:
        """What there is after the last record, which the caller has told; None: there is no such thing."""
        error = "nothing has that name" if found is None else None
        self._sender.send(Reply(call, self._core.seq, encode(found), error))

    def _handle(self, message: ToCore | None) -> None:
        match message:
            case Add(request, prompt, sampling, scheduling, siblings, arrived):
                try:
                    self._core.add(request, prompt, sampling, scheduling, siblings, arrived=arrived)
                except ValueError as error:  # RequestTooLarge: it could never run
                    reporting = (request, *(() if sampling.beam else siblings))
                    refused = (Output(one, finished="error", error=str(error), refused=True) for one in reporting)
                    self._sender.send(Outputs(tuple(refused)))
            case Abort(requests, reason):
                for request in requests:
                    self._core.abort(request, reason)
            case SetControl(call, control):
                try:
                    seq = self._core.set_control(control)
                except ValueError as error:  # ControlError
                    self._sender.send(Reply(call, 0, error=str(error)))
                else:
                    self._sender.send(Reply(call, seq, encode(self._core.control)))
            case GetSnapshot(call):
                self._tell(self._core.flush())
                snapshot = self._core.snapshot()
                self._sender.send(Reply(call, snapshot.seq, encode(snapshot)))
            case ListRequests(call):
                self._tell(self._core.flush())
                self._reply(call, live_requests(self._core.scheduler, self._core.seq))
            case GetRequestTokens(call, request, first, before):
                self._tell(self._core.flush())
                self._reply(call, request_tokens(self._core.scheduler, request, first, before))
            case GetBlockTokens(call, block, before):
                self._tell(self._core.flush())
                self._reply(call, block_tokens(self._core.scheduler, block, before))
            case ClearCache(call):
                cleared = self._core.clear_cache()
                self._tell(self._core.flush())
                self._sender.send(Reply(call, self._core.seq, encode(cleared)))
            case Shutdown() | None:
                self._running = False
            case Start():
                raise RuntimeError("the engine has already started")


def _read(connection: socket.socket, inbox: queue.SimpleQueue[ToCore | None]) -> None:
    splitter = FrameSplitter()
    with contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            for body in splitter.feed(data):
                inbox.put(decode_to_core(body))
    inbox.put(None)
    # A build or a step can take long, and nobody waits for it any more.
    threading.Timer(5.0, os._exit, (1,)).start()


def _build(config: EngineConfig, sender: Sender) -> EngineCore | None:
    """The engine, or None after saying why there is none."""
    try:
        resolved = resolve_model(config.model, config.seed)  # before torch: a wrong name is told at once
        sender.send(Located(str(resolved.folder), resolved.config.vocab_size))
        set_threads()
        from engine.build import build_core

        return build_core(config)
    except (ModelError, ValueError) as error:
        sender.send(Fatal(str(error), unusable=True))
    except MemoryError:
        sender.send(Fatal("not enough memory for this model and --kv-memory", unusable=True))
    except Exception as error:
        traceback.print_exc()
        sender.send(Fatal(f"the engine could not start: {type(error).__name__}: {error}", unusable=False))
    return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="engine.core_process", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to the API process")
    connection = socket.socket(fileno=parser.parse_args(argv).fd)
    for number in (signal.SIGINT, signal.SIGTERM):  # may reach the whole group; the parent says when to end
        signal.signal(number, signal.SIG_IGN)
    inbox: queue.SimpleQueue[ToCore | None] = queue.SimpleQueue()
    sender = Sender(connection)
    threading.Thread(target=_read, args=(connection, inbox), name="reader", daemon=True).start()
    start = inbox.get()
    if not isinstance(start, Start):
        return 1
    core = _build(start.config, sender)
    if core is None:
        sender.close()
        return 1
    look_rarely()
    sender.send(Ready(core.info, core.control))
    try:
        CoreLoop(core, inbox, sender).run()
    except Exception as error:
        traceback.print_exc()
        sender.send(Fatal(f"the engine failed: {type(error).__name__}: {error}", unusable=False))
        sender.close()
        return 1
    sender.close()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of numeric libraries must not hold up the end
