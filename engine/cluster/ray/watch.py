"""What goes on beside a cluster on Ray: workers without room come back when there is some, and a lost head is told.

Without its head (Ray's own word) a Ray cluster can place and end nothing, and Ray ends each process that has joined it
when the head has been gone for a minute, in the middle of whatever it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from engine import log
from engine.cluster.cluster import Cluster
from engine.cluster.ray.nodes import RayNodes

LOOK_SECONDS = 1.0
CONNECT_SECONDS = 3.0  # for the head to take a connection
HEAD_SECONDS = 20.0  # that the head may be gone: what then still goes on has time to end before Ray ends it


async def bring_back(cluster: Cluster, nodes: RayNodes, look: float = LOOK_SECONDS) -> None:
    """Start those that are dead for want of room once more when nodes would take them. Until cancelled."""
    told_of: set[str] = set()
    while True:
        await asyncio.sleep(look)
        dead = [worker.name for worker in cluster.workers if worker.phase == "dead"]
        homeless = set(nodes.homeless(dead))
        for name in sorted(homeless - told_of):
            log.say(f"{name} is started again when the Ray cluster has room for it", name="room")
        told_of = homeless
        if homeless and (names := await asyncio.to_thread(nodes.that_find_room, sorted(homeless))):
            told = f"there is room on the Ray cluster again for {', '.join(names)}, which found none"
            log.say(told, name="room")
            cluster.start_again(names)


async def until_lost(head: str, look: float = LOOK_SECONDS, patience: float = HEAD_SECONDS) -> None:
    """Wait until nobody has listened at the head's address, HOST:PORT, for `patience` seconds."""
    clock = asyncio.get_running_loop().time
    heard, is_told = clock(), False
    while clock() - heard < patience:
        await asyncio.sleep(look)
        if await _listens(head, min(patience, CONNECT_SECONDS)):
            heard, is_told = clock(), False
        elif not is_told:
            is_told = True
            told = f"Ray's head at {head} is gone: unless it comes back within {patience:g} s, this ends"
            log.say(told, level=logging.ERROR, name="head_gone")


async def _listens(head: str, seconds: float) -> bool:
    host, _, port = head.rpartition(":")
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
        return True
    return False
