"""The two ways to put one HTTP endpoint before a Ray cluster, each with the same source of tokens in a Ray process.

`python -m benchmarks.ingress_fronts ours|serve`: prints its port, and serves until its standard input ends. `ours`: an
aiohttp server, and the source behind the `RayCore` that carries engines' bytes. `serve`: Ray Serve's proxy, and a
deployment that is the source. Neither does anything with a token but pass it on as a server-sent event.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from aiohttp import web
from ray._private import ray_constants

from engine.cluster.ray.actor import Begun, EngineActor, boot
from engine.cluster.ray.core import RayCore

OBJECT_STORE = 128 << 20  # bytes


async def tokens(count: int, interval: float) -> AsyncIterator[bytes]:
    """Events as an engine's server sends them, each with the time at which it was made; seconds between two."""
    due = time.monotonic()
    for number in range(count):
        event = {"id": "cmpl-0", "choices": [{"index": 0, "text": "a", "number": number}], "made": time.monotonic()}
        yield b"data: " + json.dumps(event).encode() + b"\n\n"
        due += interval
        await asyncio.sleep(max(0.0, due - time.monotonic()))


class _Process:
    """Stands where an engine's process does, for the actor that carries its bytes."""

    returncode, pid = 0, 0

    def poll(self) -> int | None:
        return None


class _Source:
    """A core that answers lines `request count interval` with lines `request EVENT` in JSON."""

    def __init__(self) -> None:
        self.socket, self._theirs = socket.socketpair()
        self.process = _Process()
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()

    async def _run(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._theirs)
        tasks = set()
        while line := await reader.readline():
            request, count, interval = line.split()
            task = asyncio.create_task(self._tell(writer, request, int(count), float(interval)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _tell(self, writer: asyncio.StreamWriter, request: bytes, count: int, interval: float) -> None:
        async for event in tokens(count, interval):
            writer.write(request + b" " + event.rstrip() + b"\n")
        writer.write(request + b" \n")


class SourceActor(EngineActor):
    """The actor of an engine, with a source of tokens in the engine's place."""

    def begin(self, life: str, wanted: str, config: bytes) -> Begun:
        self._core: Any = _Source()
        self._life = life
        return Begun(ray.get_runtime_context().get_node_id(), "127.0.0.1", boot(), 0, "")


class Ours:
    """The aiohttp server."""

    def __init__(self, core: RayCore) -> None:
        self._core = core
        self._events: dict[bytes, asyncio.Queue[bytes]] = {}
        self._number = 0

    async def run(self) -> None:
        self._core.socket.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=self._core.socket)
        self._reading = asyncio.create_task(self._read())
        app = web.Application()
        app.router.add_get("/", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.to_thread(sys.stdin.read)

    async def _read(self) -> None:
        while line := await self._reader.readline():
            request, _, event = line.rstrip(b"\n").partition(b" ")
            self._events[request].put_nowait(event)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self._number += 1
        name = str(self._number).encode()
        events = self._events[name] = asyncio.Queue()
        self._writer.write(b"%b %b %b\n" % (name, request.query["count"].encode(), request.query["interval"].encode()))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while event := await events.get():
            await response.write(event + b"\n\n")
        del self._events[name]
        return response


def _init() -> None:
    ray_constants.ENABLE_RAY_CLUSTER = False  # all on loopback
    ray.init(
        address="local", num_cpus=4, object_store_memory=OBJECT_STORE, include_dashboard=False, log_to_driver=False
    )


def ours() -> None:
    _init()
    options = {"num_cpus": 1, "concurrency_groups": {"there": 1, "back": 1, "blocks": 2}}
    actor: Any = ray.remote(**options, allow_out_of_order_execution=True)(SourceActor).remote()
    begun = ray.get(actor.begin.remote("life", "", b""))
    asyncio.run(Ours(RayCore("source", actor, "life", begun, 10.0, lambda: None)).run())


def serve() -> None:
    from ray import serve as ray_serve
    from starlette.requests import Request  # type: ignore[import-not-found,unused-ignore]
    from starlette.responses import StreamingResponse  # type: ignore[import-not-found,unused-ignore]

    _init()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    class Ingress:
        async def __call__(self, request: Request) -> StreamingResponse:
            events = tokens(int(request.query_params["count"]), float(request.query_params["interval"]))
            return StreamingResponse(events, media_type="text/event-stream")

    deployment: Any = ray_serve.deployment(max_ongoing_requests=1000)(Ingress)
    ray_serve.start(http_options={"host": "127.0.0.1", "port": port})
    ray_serve.run(deployment.bind())
    print(port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    {"ours": ours, "serve": serve}[sys.argv[1]]()
    ray.shutdown()
