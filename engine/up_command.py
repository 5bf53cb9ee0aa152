"""`paged-engine up cluster.yaml`: the engines that a file names, on a Ray cluster, behind one endpoint here."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine import log
from engine.cli import Adder, between, file_name, unicode_text, unusable
from engine.cluster.cluster_file import ClusterFileError, ClusterPlan, read_cluster_file
from engine.serve_command import add_access, add_limits, add_recovery, open_listener, settings
from engine.server.settings import ServeSettings

if TYPE_CHECKING:
    from engine.cluster.ray.nodes import RayNodes

LOST = 1  # exit code: the Ray cluster is gone
MISSING = "up: Ray is not installed: pip install 'paged-top[ray]'; paged-engine serve --prefill N --decode M needs none"


def add_command(commands: Any) -> None:
    up = commands.add_parser(
        "up", help="serve a model with engines on a Ray cluster, as a file says: see docs/cluster.md"
    )
    up.set_defaults(command="up", run=_up)
    up.add_argument("file", type=file_name, metavar="cluster.yaml", help="docs/cluster.yaml is an example")
    add = Adder(up)
    add(
        "--address",
        type=unicode_text,
        metavar="ADDRESS",
        help="of the Ray cluster: HOST:PORT, auto for one that runs on this machine, local to start one here for as "
        "long as this runs (default: the file's, or local)",
    )
    add("--host", metavar="HOST", help="address to listen on (default: the file's, or 127.0.0.1)")
    add("--port", type=between(0, 65535), metavar="PORT", help="0 picks a free one (default: the file's, or 8000)")
    add_limits(Adder(up, up.add_argument_group("limits: what is refused, and what is ended")))
    add_access(Adder(up, up.add_argument_group("access: see docs/security.md")))
    add_recovery(Adder(up, up.add_argument_group("logs and ending")))


def _up(arguments: argparse.Namespace) -> int:
    log.configure(arguments.log_format, arguments.log_level, "api")
    if importlib.util.find_spec("ray") is None:
        return unusable(MISSING)
    given = {name: value for name in ("address", "host", "port") if (value := getattr(arguments, name)) is not None}
    try:
        plan = msgspec.structs.replace(read_cluster_file(Path(arguments.file)), **given)
        arguments.model = plan.pools[0].config.model
        arguments.served_model_name = [plan.served_model_name] if plan.served_model_name else None
        # Before anything starts: a port that is taken is told at once.
        listener, chosen = open_listener(plan.host, plan.port, settings(arguments), insecure=arguments.insecure)
    except (ClusterFileError, argparse.ArgumentTypeError) as error:
        return unusable(str(error))
    with listener:
        return _serve(plan, chosen, listener)


def _serve(plan: ClusterPlan, chosen: ServeSettings, listener: socket.socket) -> int:
    from engine.cluster.ray.nodes import RayNodes
    from engine.supervisor import CannotStart

    try:
        nodes = RayNodes(plan)
    except CannotStart as error:
        return unusable(str(error))
    try:
        nodes.check_room()
        return asyncio.run(_run(plan, chosen, listener, nodes))
    except CannotStart as error:
        return unusable(str(error))
    finally:
        nodes.close()


async def _run(plan: ClusterPlan, chosen: ServeSettings, listener: socket.socket, nodes: RayNodes) -> int:
    from engine.cluster.cluster import Cluster
    from engine.cluster.ray.watch import bring_back, until_lost
    from engine.server.serve import serve_cluster

    log.say(f"Ray's head is at {nodes.head}; what engines log lies in {nodes.logs} on their nodes", name="ray")
    shared = msgspec.structs.replace(
        plan.pools[0].config, transfer="parent", log_format=chosen.logging.format, log_level=chosen.logging.level
    )
    cluster = Cluster(shared, chosen, nodes.start, plan.control, own=plan.own)
    bringing, losing = asyncio.create_task(bring_back(cluster, nodes)), asyncio.create_task(until_lost(nodes.head))
    losing.add_done_callback(_end)
    try:
        code = await serve_cluster(cluster, listener)
    finally:
        nodes.call_off()
        is_lost = losing.done()
        bringing.cancel()
        losing.cancel()
    if is_lost:
        log.say(f"Ray's head at {nodes.head} is gone: nothing can be placed or ended", level=logging.ERROR, name="lost")
        log.flush()
        os._exit(LOST)  # Ray would wait for its head in every call, and end this process then
    return code


def _end(losing: asyncio.Task[None]) -> None:
    """As if somebody had asked for it, so that what lives can end."""
    if not losing.cancelled():
        os.kill(os.getpid(), signal.SIGTERM)
