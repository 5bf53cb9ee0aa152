"""A real server with `tiny`, once for the session; tests that change its control put it back."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # of the engines these tests start: tiny's products are too small for two
READY = re.compile(r"paged-engine: serving (\S+) at (http://\S+) \((.+)\)")


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]
    stderr: Path

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    @property
    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def snapshot(self) -> dict:
        return self.http.get("/engine/snapshot").raise_for_status().json()

    @contextmanager
    def control(self, **changes) -> Iterator[None]:
        """With other settings for a while."""
        with self.http as http:
            before = http.get("/engine/control").json()
            before.pop("step")
            http.patch("/engine/control", json=changes).raise_for_status()
            try:
                yield
            finally:
                http.patch("/engine/control", json=before).raise_for_status()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


def start(tmp: Path, *options: str) -> Server:
    """Start a server and wait for its line."""
    stderr = tmp / "stderr"
    with stderr.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.cli", "serve", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    match = READY.match(line)
    assert match, f"{line!r}, stderr: {stderr.read_text()}"
    return Server(match[2], process, stderr)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--model", "tiny", "--dtype", "float32", "--kv-memory", "4MiB", "--check-invariants")
    server = start(tmp_path_factory.mktemp("server"), *options)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.stderr.read_text()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.http as client:
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client as client:
        yield client


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of the test's own; those it leaves running are killed."""
    servers: list[Server] = []

    def start_one(*options: str) -> Server:
        servers.append(start(tmp_path, *options))
        return servers[-1]

    yield start_one
    for server in servers:
        server.process.kill()
        server.process.wait()
