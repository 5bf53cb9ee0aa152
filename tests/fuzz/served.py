"""A real server to be fuzzed, and what it must be like afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import psutil

READY = re.compile(r"paged-engine: serving \S+ at http://([\d.]+):(\d+) ")
# A small pool and short answers, so that no request that is taken needs long; and a check after every step.
OPTIONS = (
    "--model", "tiny", "--dtype", "float32", "--kv-memory", "1MiB", "--max-model-len", "256", "--check-invariants",
    "--max-body", "4MiB", "--max-n", "16", "--max-queue", "256", "--header-timeout", "2", "--body-timeout", "2",
    "--keep-alive-timeout", "2",
)  # fmt: skip


class Usage(NamedTuple):
    """Of all the server's processes together; memory in bytes."""

    files: int
    memory: int
    processes: int


class Served:
    """The server's process, its port, and what it told on standard error."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.stderr = folder / "stderr"
        with self.stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine.cli", "serve", "--port", "0", *OPTIONS, *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        match = READY.match(line)
        assert match, f"{line!r}; {self.stderr.read_text()}"
        self.address = (match[1], int(match[2]))
        self.control = self.get("/engine/control")
        self.control.pop("step")
        self.engine = self.get("/engine/snapshot")["engine"]

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def reset_control(self) -> None:
        """As it was at the start: a fuzzed change may make everything slow."""
        self._ask("PATCH", "/engine/control", json.dumps(self.control).encode())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        host, port = self.address
        request = urllib.request.Request(f"http://{host}:{port}{path}", body, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def usage(self) -> Usage:
        main = psutil.Process(self.process.pid)
        processes = [main, *main.children(recursive=True)]
        memory = sum(process.memory_info().rss for process in processes)
        return Usage(sum(process.num_fds() for process in processes), memory, len(processes))

    def problems(self) -> list[str]:
        """What is wrong with it now, as far as that can be told while it works."""
        found = []
        if self.process.poll() is not None:
            return [f"the server ended with {self.process.returncode}; {self._last_words()}"]
        engine = self.get("/engine/snapshot")["engine"]
        for name in ("started", "restarts"):
            found += [f"engine.{name} is {engine[name]}"] if engine[name] != self.engine[name] else []
        if "Traceback" in self.stderr.read_text(errors="replace"):
            found.append(f"a traceback on standard error: {self._last_words()}")
        return found

    def at_rest(self, seconds: float = 30.0) -> Usage:
        """What it uses once nobody asks it for anything: its connections are closed, and its requests have ended."""
        moment, least = time.monotonic() + seconds, self.usage()
        same = 0
        while same < 10 and time.monotonic() < moment:  # two seconds without a change
            time.sleep(0.2)
            now = self.usage()
            same = same + 1 if now.files == least.files else 0
            least = now
        return least

    def settled(self, before: Usage, seconds: float = 30.0) -> list[str]:
        """What it has not let go of, though nobody asks it for anything any more."""
        moment = time.monotonic() + seconds
        while (found := self._kept(before)) and time.monotonic() < moment:
            time.sleep(0.2)
        return found

    def _kept(self, before: Usage) -> list[str]:
        snapshot = self.get("/engine/snapshot")
        pool, usage = snapshot["pool"], self.usage()
        found = [f"request {one['request']} still lives" for one in snapshot["requests"]]
        if pool["free"] + pool["cached"] != self.engine["num_blocks"]:
            found.append(f"blocks are held: {pool}")
        if snapshot["queue"]["length"]:
            found.append(f"the queue holds {snapshot['queue']['length']}")
        if usage.files > before.files:
            found.append(f"{usage.files} open files, {before.files} before")
        if usage.processes != before.processes:
            found.append(f"{usage.processes} processes, {before.processes} before")
        return found

    def stop(self) -> list[str]:
        """End it as a person would; what is wrong with how it ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return ["it did not end within 60 s of SIGTERM"]
        return [] if code == 0 else [f"exit code {code}; {self._last_words()}"]

    def _last_words(self) -> str:
        return self.stderr.read_text(errors="replace")[-2000:]
