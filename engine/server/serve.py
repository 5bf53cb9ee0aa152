"""Serving from start to end: load beside an open port, answer, keep an engine alive, drain and stop cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from engine import log
from engine.cluster.sizes import FIELDS
from engine.config import EngineConfig
from engine.core_client import Core, CoreClient
from engine.garbage import give_back, look_rarely
from engine.server.app import make_app
from engine.server.connections import listen
from engine.server.service import Loaded, Service
from engine.server.settings import ServeSettings
from engine.supervisor import GaveUp, Supervisor, silence
from engine.tokenizer import Tokenizer, TokenizerError

if TYPE_CHECKING:
    from engine.cluster.cluster import Cluster
    from engine.cluster.worker import Worker

CRASHED = 1
UNUSABLE = 2
FLUSH_SECONDS = 2.0  # that answers which have ended have to be written out
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def serve(config: EngineConfig, core: Core, listener: socket.socket, settings: ServeSettings) -> int:
    """Serve until a signal, or until the engine cannot be kept alive; returns the exit code.

    A signal lets live requests end within `drain_timeout`; a second one ends them, a third one this process.
    """
    service = Service(settings)
    server = _Server(config, service, listener)
    supervisor = service.supervisor = Supervisor(config, settings.recovery, core, server.live)
    return await _serve(service, supervisor, lambda: supervisor.core.kill(), listener)


async def serve_cluster(cluster: Cluster, listener: socket.socket) -> int:
    """The same with several engines, until a signal or until none of them can be kept alive."""
    telling = asyncio.create_task(_tell_complete(cluster, listener))
    try:
        return await _serve(cluster.service, cluster, cluster.kill, listener)
    finally:
        telling.cancel()


class Kept(Protocol):
    """What keeps engines alive."""

    async def run(self) -> None:
        """Raises GaveUp."""
        ...

    def end(self) -> None:
        """Start nothing from now on."""
        ...


async def _serve(service: Service, kept: Kept, kill: Callable[[], None], listener: socket.socket) -> int:
    # Our own middleware logs what a handler did wrong; aiohttp would print a traceback for every bad client.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    settings = service.settings
    asked = _Asked(kill)
    runner = web.AppRunner(
        make_app(service), handler_cancellation=True, access_log=None, shutdown_timeout=FLUSH_SECONDS
    )
    await runner.setup()
    await listen(runner, listener, settings.limits, service.refusals)
    supervising = asyncio.create_task(kept.run())
    asking = asyncio.create_task(asked.times(1))
    try:
        await asyncio.wait({supervising, asking}, return_when=asyncio.FIRST_COMPLETED)
        if supervising.done():
            return _given_up(supervising)
        kept.end()
        await _drain(service, asked, settings.recovery.drain_timeout)
        return 0
    finally:
        asking.cancel()
        service.stopping = True
        if service.client is not None:
            service.client.end_streams()
        service.hub.close()
        if service.cluster is not None:
            service.cluster.close_streams()
        await runner.cleanup()
        if service.client is not None:
            await service.client.shutdown()
        supervising.cancel()  # it may wait to start another one
        with contextlib.suppress(asyncio.CancelledError, GaveUp):
            await supervising


class _Asked:
    """How often a signal has asked this process to end. The third time it does, as it stands: `kill` ends the
    engines, which would not notice if they hang or are stopped."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._count = 0
        self._more = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._once_more, number)

    def _once_more(self, number: int) -> None:
        self._count += 1
        if self._count > 2:
            self._kill()
            os._exit(128 + number)
        self._more.set()

    async def times(self, count: int) -> None:
        while self._count < count:
            self._more.clear()
            await self._more.wait()


async def _drain(service: Service, asked: _Asked, seconds: float) -> None:
    """Take no more requests, and wait until those that live have ended; not longer than `seconds`, or a signal."""
    service.stopping = True
    client = service.client
    if client is None or not client.ready:
        return
    client.drain()
    if client.num_live and seconds:
        requests = "1 request has" if client.num_live == 1 else f"{client.num_live:,} requests have"
        message = f"stopping: {requests} {seconds:g} s to end; another signal ends them at once"
        log.say(message, name="drain", requests=client.num_live, seconds=seconds)
    again = asyncio.create_task(asked.times(2))
    ending = asyncio.create_task(client.until_idle())
    await asyncio.wait({again, ending}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    ending.cancel()
    if client.death is not None:
        log.say(f"{client.death}; none is started, for the server stops", level=logging.ERROR, name="engine_died")


def _given_up(supervising: asyncio.Task[None]) -> int:
    try:
        supervising.result()
    except GaveUp as error:
        log.say(str(error), level=logging.ERROR, name="gave_up")
        return UNUSABLE if error.unusable else CRASHED
    raise AssertionError("a supervisor ends by giving up")


class _Server:
    """What is done with each core process in turn."""

    def __init__(self, config: EngineConfig, service: Service, listener: socket.socket) -> None:
        self._config = config
        self._service = service
        self._listener = listener

    async def live(self, core: Core) -> CoreClient:
        """Serve with it until it is dead. Raises GaveUp where no start can help."""
        service = self._service
        client = CoreClient(core, service.on_step, silence(self._config))
        service.client = client
        tasks = [asyncio.create_task(client.run(service.on_ready)), asyncio.create_task(self._load(client))]
        try:
            await asyncio.gather(*tasks)
        except TokenizerError as error:
            raise GaveUp(str(error), unusable=True) from error
        finally:
            for task in tasks:
                task.cancel()
            service.end_life()
        give_back()
        return client

    async def _load(self, client: CoreClient) -> None:
        service = self._service
        again = service.loaded is not None
        if not await load(self._config, service, client):
            return
        if again:
            message = f"serving again, after {service.restarts} restarts" if service.restarts > 1 else "serving again"
            log.say(message, name="ready", restarts=service.restarts)
            return
        if (where := client.kv_events) is not None:
            retold = f", and told again at {where.replay}" if where.replay else ""
            message = f"KV events are published at {where.endpoint}{retold}"
            log.say(message, name="kv_events", endpoint=where.endpoint, replay=where.replay, topic=where.topic)
        _tell_ready(service, self._listener)


async def load(config: EngineConfig, service: Service, client: CoreClient) -> bool:
    """Load the tokenizer, if there is none yet, while the core loads the weights; False if that one died before.

    Raises TokenizerError.
    """
    located = await client.until_located()
    if located is None:
        return False
    before = service.loaded
    tokenizer = before.tokenizer if before else await asyncio.to_thread(Tokenizer, Path(located.folder))
    info = await client.until_ready()
    if info is None:
        return False
    local = Path(config.model).expanduser()
    service.loaded = Loaded(info, tokenizer, located.vocab_size, str(local.resolve()) if local.exists() else None)
    return True


def _tell_ready(service: Service, listener: socket.socket, cluster: str = "", blocks: str = "") -> None:
    log.milestone("ready", "the server can answer", url=_url(listener), models=list(service.served_names))
    look_rarely()  # else a body of a million values is looked at again and again while it is parsed
    with contextlib.suppress(OSError):  # nobody may read it, and it serves all the same
        print(_ready_line(service, listener, cluster, blocks), flush=True)


async def _tell_complete(cluster: Cluster, listener: socket.socket) -> None:
    await cluster.until_complete()
    counts = Counter(worker.role for worker in cluster.workers)
    told = [f"{counts[role]} {role}" for role in FIELDS if counts[role]]
    _tell_ready(cluster.service, listener, f"{', '.join(told)}: ", blocks_told(cluster.workers))


def blocks_told(workers: Sequence[Worker]) -> str:
    """Of how many blocks each of these is, as far as they differ."""
    found = [worker.service.loaded.info for worker in workers if worker.service.loaded is not None]
    least, most = min(info.num_blocks for info in found), max(info.num_blocks for info in found)
    count = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{count} blocks of {found[0].block_size} each"


def _ready_line(service: Service, listener: socket.socket, cluster: str, blocks: str) -> str:
    assert service.loaded is not None, "it can answer"
    info = service.loaded.info
    quantized = "" if info.quantize == "none" else f"{info.quantize} weights, "
    return (
        f"paged-engine: serving {service.served_names[0]} at {_url(listener)} "
        f"({cluster}{info.dtype}, {quantized}{info.device}, "
        f"{blocks or f'{info.num_blocks:,} blocks of {info.block_size}'}, context {info.max_model_len:,})"
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
