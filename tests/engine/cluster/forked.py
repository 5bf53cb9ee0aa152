"""Engines in processes of their own that need not import PyTorch first: a process that has done so forks them."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import threading
import time
from multiprocessing.process import BaseProcess

from engine import core_process
from engine.cluster.worker import WorkerSpec
from engine.config import EngineConfig
from engine.core_client import CoreProcess
from engine.framing import frame
from engine.messages import Start

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["engine.build", "engine.core_process"])


class ForkedCore(CoreProcess):
    """As any other: it is told to end, and dies, as a process does."""

    def __init__(self, config: EngineConfig) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = _forking.Process(target=_run, args=(theirs,), daemon=True)
            process.start()
        self.process = _Process(process)  # type: ignore[assignment]
        self.socket = ours
        ours.sendall(frame(Start(config)))


class _Process:
    """What `CoreProcess` asks of one, from any thread: its exit code can be read once."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        self._reading = threading.Lock()
        assert process.pid is not None
        self.pid = process.pid

    def poll(self) -> int | None:
        with self._reading:
            return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.002)


def _run(connection: socket.socket) -> None:
    core_process._end(core_process.main(["--fd", str(connection.detach())]))


def start_forked(spec: WorkerSpec) -> CoreProcess:
    return ForkedCore(spec.config)
