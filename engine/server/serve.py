"""Serving from start to end: bind the port, load beside it, answer, and stop cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from pathlib import Path

from aiohttp import web

from engine.config import EngineConfig
from engine.core_client import CoreClient, CoreProcess
from engine.server.app import make_app
from engine.server.connections import listen
from engine.server.service import Loaded, Service
from engine.server.settings import ServeSettings
from engine.tokenizer import Tokenizer, TokenizerError

CRASHED = 1
UNUSABLE = 2
DRAIN_SECONDS = 2.0


def say(message: str) -> None:
    """A line on standard error, as all that is for a person."""
    print(f"paged-engine: {message}", file=sys.stderr, flush=True)


async def serve(config: EngineConfig, core: CoreProcess, listener: socket.socket, settings: ServeSettings) -> int:
    """Serve until a signal or the core's death; returns the exit code."""
    # Our own middleware logs what a handler did wrong; aiohttp would print a traceback for every bad client.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    service = Service(settings)
    client = CoreClient(core, service.on_step)
    service.client = client
    runner = web.AppRunner(
        make_app(service), handler_cancellation=True, access_log=None, shutdown_timeout=DRAIN_SECONDS
    )
    await runner.setup()
    await listen(runner, listener, settings.limits)
    running = asyncio.create_task(client.run(service.on_ready))
    loading = asyncio.create_task(load(config, service, client))
    stopping = asyncio.create_task(stop.wait())
    status = 0
    try:
        await asyncio.wait({loading, stopping, running}, return_when=asyncio.FIRST_COMPLETED)
        problem = loading.result() if loading.done() else None
        if problem is not None:
            say(problem)
            status = UNUSABLE
        elif service.loaded is not None and not stop.is_set():
            with contextlib.suppress(OSError):  # nobody may read it, and it serves all the same
                print(_ready_line(service, listener), flush=True)
            await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
        if client.death is not None:
            say(str(client.death))
            status = UNUSABLE if client.death.unusable else CRASHED
    finally:
        service.stopping = True
        loading.cancel()
        stopping.cancel()
        client.end_streams()
        service.hub.close()
        await runner.cleanup()
        await client.shutdown()
        await running
        with contextlib.suppress(asyncio.CancelledError):
            await loading
    return status


async def load(config: EngineConfig, service: Service, client: CoreClient) -> str | None:
    """Load the tokenizer while the core loads the weights; returns what is wrong with it."""
    located = await client.until_located()
    if located is None:
        return None
    try:
        tokenizer = await asyncio.to_thread(Tokenizer, Path(located.folder))
    except TokenizerError as error:
        return str(error)
    info = await client.until_ready()
    if info is not None:
        local = Path(config.model).expanduser()
        folder = str(local.resolve()) if local.exists() else None
        service.loaded = Loaded(info, tokenizer, located.vocab_size, folder)
    return None


def _ready_line(service: Service, listener: socket.socket) -> str:
    _, loaded = service.ready()
    info = loaded.info
    quantized = "" if info.quantize == "none" else f"{info.quantize} weights, "
    return (
        f"paged-engine: serving {service.served_names[0]} at {_url(listener)} "
        f"({info.dtype}, {quantized}{info.device}, {info.num_blocks:,} blocks of {info.block_size}, "
        f"context {info.max_model_len:,})"
    )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
