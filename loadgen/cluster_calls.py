"""What a cluster of engines is asked and told by a load generator, under `/engine/cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
import msgspec

from engine.cluster.protocol import ClusterControl, ClusterState, decode_cluster
from loadgen.access import hidden
from loadgen.client import error_text, reason
from loadgen.engine_watch import CALL_TIMEOUT, EngineDown, EngineError, refused

PATH = "/engine/cluster"
STEADY_TIMEOUT = 600.0  # seconds until workers that start have started
_LOOK_EVERY = 0.1  # seconds
_NO_ROUTE = (404, 405, 501)


async def read_cluster(http: aiohttp.ClientSession, url: str) -> ClusterState | None:
    """GET /engine/cluster; None if the server is no cluster, or sends elsewhere.

    Raises `EngineError`, or one of its kinds.
    """
    what = f"GET {url}{PATH}"
    try:
        async with http.get(f"{url}{PATH}", timeout=CALL_TIMEOUT, allow_redirects=False) as reply:
            if reply.status in _NO_ROUTE or 300 <= reply.status < 400:
                return None
            body = await reply.read()
            if reply.status in (401, 403):
                raise refused(http, f"{what} answered {reply.status}", reply.status, body)
            if reply.status == 503:
                raise EngineDown(f"{what} answered 503: {hidden(http.headers, error_text(body))}")
            if reply.status != 200:
                raise EngineError(f"{what} answered {reply.status}")
            state = decode_cluster(body)
    except msgspec.MsgspecError as error:
        raise EngineError(f"{what}: not a cluster of this protocol: {error}") from None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"{what}: {reason(error)}") from None
    for worker in state.workers:
        if not worker.path.startswith("/"):  # the key goes where this leads
            raise EngineError(f"{what}: workers: {worker.name}: path: must begin with /, got {worker.path!r}")
    return state


async def set_cluster(
    http: aiohttp.ClientSession, url: str, changes: Mapping[str, str | int | float | bool]
) -> ClusterState:
    """PATCH /engine/cluster, wait until it serves so, and check that the changes hold. Raises `EngineError`."""
    what = f"PATCH {url}{PATH}"
    try:
        async with http.patch(f"{url}{PATH}", json=dict(changes), timeout=CALL_TIMEOUT, allow_redirects=False) as reply:
            body = await reply.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"{what}: {reason(error)}") from None
    if reply.status in _NO_ROUTE:
        raise EngineError(
            f"{what} answered {reply.status}: only a cluster has pools; `paged-engine serve --prefill N --decode M` "
            "starts one"
        )
    if reply.status in (401, 403):
        raise refused(http, f"{what} answered {reply.status}", reply.status, body)
    if reply.status not in (200, 202):
        raise EngineError(f"{what} answered {reply.status}: {hidden(http.headers, error_text(body))}")
    state = await steady(http, url)
    held = msgspec.structs.asdict(state.control)
    if wrong := {name: held.get(name) for name, value in changes.items() if held.get(name) != value}:
        raise EngineError(f"{what}: asked for {dict(changes)}, but the control is {wrong}")
    return state


async def steady(http: aiohttp.ClientSession, url: str) -> ClusterState:
    """The cluster once as many workers as are wanted are ready, and no others are there. Raises `EngineError`."""
    deadline = asyncio.get_running_loop().time() + STEADY_TIMEOUT
    while True:
        state = await read_cluster(http, url)
        if state is None:
            raise EngineError(f"GET {url}{PATH}: the server is no cluster")
        lacking = missing(state)
        if not lacking:
            return state
        if asyncio.get_running_loop().time() > deadline:
            raise EngineError(f"GET {url}{PATH}: after {STEADY_TIMEOUT:g} s not all is there: {lacking}")
        await asyncio.sleep(_LOOK_EVERY)


def missing(state: ClusterState) -> str:
    """What a cluster lacks of what its control wants, in words; empty: nothing."""
    told = []
    for role, wanted in wanted_workers(state.control).items():
        ready = sum(worker.phase == "ready" and worker.role == role for worker in state.workers)
        if ready != wanted:
            told.append(f"{ready} of {wanted} {role} workers are ready")
    told += [f"{worker.name} is {worker.phase}" for worker in state.workers if worker.phase == "draining"]
    return "; ".join(told)


def wanted_workers(control: ClusterControl) -> dict[str, int]:
    """How many workers of each role are wanted."""
    return {"prefill": control.prefill, "decode": control.decode, "replica": control.replicas}
