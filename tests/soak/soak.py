"""Random load on a real server for long, while its settings change and its engine is killed: `make soak`.

Every request must end with a result or a stated error, no block may leak, and nothing may grow. At every pause nothing
lives, and the books are checked.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import psutil

from tests.soak.asked import ask, settings
from tests.soak.books import Follower, Size, check_books, size_of
from tests.soak.clients import Finding, leave_soon, play

SERVE = (
    *(
        "serve",
        "--port",
        "0",
        "--model",
        "tiny",
        "--dtype",
        "float32",
        "--kv-memory",
        "4MiB",
        "--max-model-len",
        "1024",
    ),
    *("--swap-space", "1MiB", "--check-every", "100"),
)
READY = re.compile(r"paged-engine: serving \S+ at (http://\S+)")
REFUSED = ("engine_not_ready", "queue_full")
BACK = 30.0  # seconds within which a killed engine must serve again


@dataclass(frozen=True)
class Wanted:
    requests: int = 50_000
    kills: int = 20
    clients: int = 48
    pause_every: int = 2500  # requests
    switch_every: float = 1.0  # seconds
    seed: int = 1
    options: tuple[str, ...] = ()  # more of `paged-engine serve`


@dataclass
class Found:
    """What came of it: how requests ended, what should not have been, sizes at the pauses, and each kill's times."""

    endings: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    unready_after: list[float] = field(default_factory=list)  # seconds from a kill to the first 503
    ready_after: list[float] = field(default_factory=list)  # and to serving again
    switches: int = 0
    records: int = 0
    gaps: int = 0
    seconds: float = 0.0
    stderr: list[str] = field(default_factory=list)

    def growth(self, after: int) -> float:
        """Of the API process's memory since the first pause after `after` requests, as a share."""
        later = [size.api_memory for size in self.sizes if size.requests >= after]
        return later[-1] / later[0] - 1 if later else 0.0


class Soak:
    def __init__(self, wanted: Wanted, url: str, process: psutil.Process, tell: Callable[[str], None]) -> None:
        self._wanted = wanted
        self._url = url
        self._process = process
        self._tell = tell
        self._chance = random.Random(wanted.seed)
        self._next = 0
        self._may_go = asyncio.Event()
        self._busy = 0
        self._kills = sorted(self._chance.sample(range(wanted.requests // 50, wanted.requests), wanted.kills))
        self.found = Found()

    async def run(self) -> Found:
        begun = time.monotonic()
        # Connections that rest would be files of the server's at a pause.
        async with aiohttp.ClientSession(self._url, connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:
            follower = Follower(http)
            following = asyncio.create_task(follower.run())
            switching = asyncio.create_task(self._switch(http))
            killing = asyncio.create_task(self._kill(http))
            workers = [asyncio.create_task(self._work()) for _ in range(self._wanted.clients)]
            try:
                await self._pause_now_and_then(http, follower, workers)
                await killing
            finally:
                for task in (following, switching, killing, *workers):
                    task.cancel()
                done = await asyncio.gather(following, switching, killing, *workers, return_exceptions=True)
            self.found.findings += [str(one) for one in done if isinstance(one, Exception)]
            self.found.records, self.found.gaps = follower.records, follower.gaps
        self.found.seconds = time.monotonic() - begun
        return self.found

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(self._url, connector=aiohttp.TCPConnector(limit=0))

    async def _work(self) -> None:
        """Requests one after the other, on connections of its own until the next pause."""
        http = self._session()
        try:
            while self._next < self._wanted.requests:
                if not self._may_go.is_set():
                    await http.close()
                    await self._may_go.wait()
                    http = self._session()
                    continue
                asked = ask(self._next, self._wanted.seed)
                self._next += 1
                self._busy += 1
                try:
                    if asked.leaving == "disconnects" and not asked.body.get("stream"):
                        ending = await leave_soon(http, asked, asked.after / 100)
                    else:
                        ending = await play(http, asked)
                    self.found.endings[ending] += 1
                    if ending in REFUSED:  # as `Retry-After` asks
                        await asyncio.sleep(1.0)
                except Finding as finding:
                    self.found.endings["finding"] += 1
                    self.found.findings.append(f"request {asked.number}: {finding}")
                finally:
                    self._busy -= 1
        finally:
            await http.close()

    async def _pause_now_and_then(
        self, http: aiohttp.ClientSession, follower: Follower, workers: list[asyncio.Task[None]]
    ) -> None:
        wanted = self._wanted
        for until in (*range(wanted.pause_every, wanted.requests, wanted.pause_every), wanted.requests):
            self._may_go.set()
            while self._next < until or (until == wanted.requests and self._busy):
                await asyncio.sleep(0.05)
                if any(worker.done() and worker.exception() for worker in workers):
                    return
            self._may_go.clear()
            while self._busy:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)  # the server sees connections end
            try:
                await check_books(http, follower)
            except Finding as finding:
                self.found.findings.append(f"after {self._next} requests: {finding}")
            size = size_of(self._process, self._next, follower.lives)
            self.found.sizes.append(size)
            self._tell(
                f"{self._next:,} requests, {len(self.found.ready_after)} kills, {follower.records:,} records folded; "
                f"API {size.api_memory / 2**20:.1f} MiB, {size.api_files} files; "
                f"core {size.core_memory / 2**20:.1f} MiB; findings: {len(self.found.findings)}"
            )

    async def _switch(self, http: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(self._wanted.switch_every)
            async with http.patch("/engine/control", json=settings(self._chance)) as response:
                if response.status not in (200, 503):
                    raise Finding(f"a change of control answered {response.status}: {await response.text()}")
                self.found.switches += response.status == 200

    async def _kill(self, http: aiohttp.ClientSession) -> None:
        for at in self._kills:
            while self._next < at:
                await asyncio.sleep(0.01)
            await asyncio.sleep(self._chance.random() * 0.2)
            while await self._status(http) != 200:  # the last kill is not over
                await asyncio.sleep(0.02)
            (core,) = self._process.children()
            killed = time.monotonic()
            core.kill()
            while await self._status(http) != 503:
                await asyncio.sleep(0.01)
            self.found.unready_after.append(time.monotonic() - killed)
            while await self._status(http) != 200:
                await asyncio.sleep(0.02)
                if time.monotonic() - killed > BACK:
                    raise Finding(f"no engine serves {BACK:g} s after a kill")
            self.found.ready_after.append(time.monotonic() - killed)

    async def _status(self, http: aiohttp.ClientSession) -> int:
        async with http.get("/health") as response:
            return response.status


def soak(wanted: Wanted, tell: Callable[[str], None]) -> Found:
    """Start a server, soak it, and stop it."""
    with subprocess.Popen(
        [sys.executable, "-m", "engine.cli", *SERVE, *wanted.options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as server:
        errors: list[str] = []
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            match = READY.match(line)
            if match is None:
                raise SystemExit(f"the server does not start: {line}{server.communicate()[1]}")
            found = asyncio.run(_run(wanted, match[1], server, errors, tell))
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
    found.stderr = errors
    if server.returncode:
        found.findings.append(f"the server ended with exit code {server.returncode}")
    found.findings += [line for line in errors if "Traceback" in line or "invariant" in line]
    return found


async def _run(
    wanted: Wanted, url: str, server: subprocess.Popen[str], errors: list[str], tell: Callable[[str], None]
) -> Found:
    assert server.stderr is not None
    reading = asyncio.create_task(asyncio.to_thread(_read, server.stderr, errors))
    try:
        return await Soak(wanted, url, psutil.Process(server.pid), tell).run()
    finally:
        server.terminate()
        await reading


def _read(stream: object, lines: list[str]) -> None:
    lines.extend(line.rstrip("\n") for line in stream)  # type: ignore[attr-defined]
