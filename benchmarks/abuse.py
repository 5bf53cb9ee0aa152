"""What normal clients keep of their throughput while others abuse the server, and what memory that costs it.

    python -m benchmarks.abuse                 `tiny`, every kind of abuse in turn, then all together
    python -m benchmarks.abuse --model smollm2-135m

Normal clients each have a key of their own and ask for one streamed answer after the other; the batch is full with
them. Whoever abuses has one key, and a process of its own that yields the processor to everybody (`nice`), for it
shares the machine. Each phase is held against the quiet ones before and after it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil

READY = re.compile(r"paged-engine: serving \S+ at (http://\S+)")
LEAST = 0.8  # of their throughput that normal clients keep
READERS, DRIBBLERS, BODY, QUEUED = 500, 200, 1 << 30, 10_000
SETTLE = 3.0  # seconds after abuse begins, before it is measured
ABUSE_KEY = "the-key-of-whoever-abuses"


@dataclass(frozen=True)
class Phase:
    """Output tokens a second of all normal clients together; memory of the server's processes in MiB at its end."""

    name: str
    tokens: float
    slowest_ttft: float
    errors: int
    api_memory: float
    core_memory: float


class Normal:
    """Clients that behave, in this process. Each counts what it gets."""

    def __init__(self, url: str, keys: list[str], tokens: int) -> None:
        self._url, self._keys, self._tokens = url, keys, tokens
        self.got = 0
        self.errors: Counter[str] = Counter()
        self.ttfts: list[float] = []

    async def run(self) -> None:
        async with aiohttp.ClientSession(self._url, connector=aiohttp.TCPConnector(limit=0)) as http:
            await asyncio.gather(*(self._client(http, key) for key in self._keys))

    async def _client(self, http: aiohttp.ClientSession, key: str) -> None:
        turn = 0
        while True:
            turn += 1
            body = {
                "prompt": f"{key} asks question {turn} of many, and waits for an answer.",
                "max_tokens": self._tokens,
                "ignore_eos": True,
                "stream": True,
            }
            try:
                begun = time.perf_counter()
                headers = {"Authorization": f"Bearer {key}"}
                async with http.post("/v1/completions", json=body, headers=headers) as response:
                    if response.status != 200:
                        self.errors[f"HTTP {response.status}"] += 1
                        await asyncio.sleep(1.0)
                        continue
                    first = True
                    async for line in response.content:
                        if line.startswith(b'data: {"error"'):
                            self.errors["error event"] += 1
                        elif line.startswith(b"data: {"):
                            self.got += 1
                            if first:
                                self.ttfts.append(time.perf_counter() - begun)
                            first = False
            except aiohttp.ClientError as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.2)


# What abuses, in a process of its own.


async def read_nothing(host: str, port: int) -> None:
    """Ask for long streamed answers, and read nothing of them; once more when the server has had enough."""
    body = json.dumps({"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, port, limit=1024)
                writer.write(_post(len(body)) + body)
                await writer.drain()
                while not writer.is_closing() and not reader.at_eof():
                    await asyncio.sleep(1.0)
            await asyncio.sleep(1.0)

    await asyncio.gather(*(one() for _ in range(READERS)))


async def dribble(host: str, port: int) -> None:
    """Send headers a byte a second."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                for byte in _post(10).ljust(10_000, b"x"):
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(1.0)
            await asyncio.sleep(0.1)

    await asyncio.gather(*(one() for _ in range(DRIBBLERS)))


async def large_body(host: str, port: int) -> None:
    """Send a body of 1 GiB in chunks, whose size no header tells."""
    part = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(_post(None))
            for _ in range(BODY // 65536):
                writer.write(part)
                await writer.drain()
        await asyncio.sleep(1.0)


async def queue_up(host: str, port: int) -> None:
    """Have 10,000 requests wait, each on a connection of its own; whoever is refused asks again as told."""
    body = json.dumps({"prompt": "b " * 20, "max_tokens": 64, "ignore_eos": True}).encode()
    told: Counter[str] = Counter()

    async def one(number: int) -> None:
        await asyncio.sleep(number / 5000)
        while True:
            wait = 1.0
            with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(_post(len(body)) + body)
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                told[head.split(" ", 2)[1]] += 1
                after = re.search(r"(?i)retry-after: (\d+)", head)
                wait = float(after[1]) if after else 0.0
                writer.close()
            await asyncio.sleep(wait)

    await asyncio.gather(*(one(number) for number in range(QUEUED)))


def _post(length: int | None) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = ("POST /v1/completions HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {ABUSE_KEY}", size)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


ABUSES: dict[str, Callable[[str, int], Awaitable[None]]] = {
    "500 read nothing": read_nothing,
    "200 dribble headers": dribble,
    "a body of 1 GiB": large_body,
    "10,000 queued": queue_up,
}


async def abuse(names: list[str], url: str) -> None:
    os.nice(19)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    parts = urlsplit(url)
    await asyncio.gather(*(ABUSES[name](parts.hostname or "", parts.port or 0) for name in names))


@contextlib.contextmanager
def abused(names: list[str], url: str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-m", "benchmarks.abuse", "--abuse", *names, "--url", url]) as child:
        try:
            yield
        finally:
            child.kill()


# Measuring


@contextlib.contextmanager
def serving(model: str, keys: list[str], options: list[str]) -> Iterator[tuple[str, psutil.Process]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys"
        file.write_text("\n".join([*keys, ABUSE_KEY]))
        file.chmod(0o600)
        command = [sys.executable, "-m", "engine.cli", "serve", "--model", model, "--port", "0"]
        command += ["--api-key-file", str(file), "--scheduling-policy", "fair", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                match = READY.match(server.stdout.readline())
                if match is None:
                    raise SystemExit("the server does not start")
                yield match[1], psutil.Process(server.pid)
            finally:
                server.terminate()
                server.wait(60)


async def measure(arguments: argparse.Namespace) -> list[Phase]:
    keys = [f"key-of-client-{number:03}" for number in range(arguments.clients)]
    options = ["--max-num-seqs", str(arguments.rows), *arguments.serve]
    phases: list[Phase] = []
    with serving(arguments.model, keys, options) as (url, process):
        normal = Normal(url, keys, arguments.tokens)
        running = asyncio.create_task(normal.run())
        await asyncio.sleep(SETTLE)

        async def phase(name: str) -> None:
            normal.ttfts.clear()
            errors, got, begun = normal.errors.total(), normal.got, time.perf_counter()
            await asyncio.sleep(arguments.seconds)
            rate = (normal.got - got) / (time.perf_counter() - begun)
            (core,) = process.children()
            memory = [one.memory_info().rss / 2**20 for one in (process, core)]
            slowest = max(normal.ttfts, default=0.0)
            phases.append(Phase(name, rate, slowest, normal.errors.total() - errors, *memory))
            print(
                f"{name:22} {rate:8.0f} tokens/s  slowest TTFT {slowest:6.2f} s  errors {phases[-1].errors}  "
                f"API {memory[0]:.0f} MiB, core {memory[1]:.0f} MiB",
                flush=True,
            )

        for names in (*([name] for name in ABUSES), list(ABUSES)):
            await phase("quiet")
            with abused(names, url):
                await asyncio.sleep(SETTLE)
                await phase(names[0] if len(names) == 1 else "all together")
            await asyncio.sleep(SETTLE)
        await phase("quiet")
        running.cancel()
        print(f"errors of normal clients: {dict(normal.errors)}")
    return phases


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.abuse", description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rows", type=int, default=32, help="--max-num-seqs of the server")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=15.0, help="of a phase")
    parser.add_argument("--serve", nargs="+", default=[], help="more options of paged-engine serve")
    parser.add_argument("--abuse", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.abuse:
        asyncio.run(abuse(arguments.abuse, arguments.url))
        return 0
    phases = asyncio.run(measure(arguments))
    kept = True
    for before, during, after in zip(phases[::2], phases[1::2], phases[2::2], strict=False):
        ratio = during.tokens / ((before.tokens + after.tokens) / 2)
        kept &= ratio >= LEAST
        print(f"{during.name:22} {ratio:6.2f} of the quiet throughput")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
