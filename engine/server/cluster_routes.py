"""`/engine/cluster`: what a cluster is and what can be changed of it; `/workers/NAME/...`: each of its engines, as a
server of one engine tells it; and what the server of several engines cannot tell as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import msgspec
from aiohttp import web

from engine.cluster.protocol import ClusterControl, encode_cluster
from engine.cluster.sizes import ClusterControlError
from engine.cluster.state import Stamp, cluster_state, stamp, worker_path
from engine.server.access import is_stranger
from engine.server.cluster_metrics import worker_text
from engine.server.engine_routes import KEEP_ALIVE_SECONDS
from engine.server.errors import ApiError
from engine.server.events import EventStream
from engine.server.model_routes import METRICS_TYPE
from engine.server.parsing import parse
from engine.server.readers import Readers
from engine.server.service import Service

if TYPE_CHECKING:
    from engine.cluster.cluster import Cluster
    from engine.cluster.worker import Worker
    from engine.server.routes import Handler, Route

EVERY_SECONDS = 0.1  # between two states that a reader gets, at least
WORKER = "/workers/{name}"
NAMED = 8  # workers that an error names
MOST_PATH = 100  # characters of a path that it tells back
ClusterChange = msgspec.defstruct(  # a ClusterControl of which any part may be missing
    "ClusterChange",
    [(field.name, field.type | msgspec.UnsetType, msgspec.UNSET) for field in msgspec.structs.fields(ClusterControl)],
    forbid_unknown_fields=True,
)


class ClusterRoutes:
    """Of the server itself. Without a cluster each of them is a 404 that says so."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._readers = Readers("the cluster's states", service.settings.limits.max_step_readers)
        self._told: tuple[Stamp, float, bytes] | None = None  # the newest event: what it is of, and when it was made

    async def state(self, request: web.Request) -> web.Response:
        return self._answer(cluster_of(self._service))

    async def change(self, request: web.Request) -> web.Response:
        """Answers when the change is under way: the states that follow tell how far it is."""
        cluster = cluster_of(self._service)
        change = parse(await self._service.bodies.read(request), ClusterChange)
        wanted = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
        try:
            await cluster.change(msgspec.structs.replace(cluster.control, **wanted))
        except ClusterControlError as error:
            param = str(error).partition(":")[0]
            raise ApiError(str(error), param=param if param in ClusterControl.__struct_fields__ else None) from error
        return self._answer(cluster)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """The state as events: one at once, and another whenever it tells something else, ten a second at most."""
        cluster = cluster_of(self._service)
        with self._readers.one():
            return await self._stream(request, cluster)

    async def metrics(self, request: web.Request) -> web.Response:
        """Of all workers that have served, also while one is started again, and of what is between them."""
        cluster, service = cluster_of(self._service), self._service
        found = []
        for worker in cluster.workers:
            if worker.service.metrics is not None:
                worker.service.metrics.set_up(_serves(worker), worker.restarts)
                found.append(worker.service.metrics)
        refused, model = dict(service.refusals.counts), service.served_names[0]
        # A worker takes some 5 ms: of many they would hold up the event loop.
        state, begun, ended = cluster_state(cluster), cluster.dispatcher.begun, dict(cluster.dispatcher.ended)
        body = await asyncio.to_thread(cluster.metrics.text, state, found, refused, model, begun, ended)
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})

    async def of_one_worker(self, request: web.Request) -> NoReturn:
        """What only one engine can tell is not there at the root: whose it is, is said."""
        workers = cluster_of(self._service).workers
        paths = _listed([f"{worker_path(worker.name)}{request.path[:MOST_PATH]}" for worker in workers])
        raise ApiError(f"this server is a cluster, and each worker has its own: {paths}", status=404, code="cluster")

    async def _stream(self, request: web.Request, cluster: Cluster) -> web.StreamResponse:
        hub = self._service.hub  # no step is told there, but that the server stops
        events = EventStream(request)
        with suppress(ConnectionResetError):
            await events.begin()
            told: Stamp | None = None
            spoke = 0.0
            while not hub.closed:
                now, newest = time.monotonic(), stamp(cluster)
                if newest != told:
                    told, spoke = newest, now
                    await events.write(self._event(cluster, newest, now))
                elif now - spoke >= KEEP_ALIVE_SECONDS:
                    spoke = now
                    await events.write(b": keep-alive\n\n")
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_SECONDS):
                        await hub.wait(1)
        return events.response

    def _event(self, cluster: Cluster, newest: Stamp, now: float) -> bytes:
        """Made once for all readers who want it now."""
        if self._told is None or self._told[0] != newest or now - self._told[1] > EVERY_SECONDS:
            data = b"event: cluster\nid: %d\ndata: %b\n\n" % (cluster.number, encode_cluster(cluster_state(cluster)))
            self._told = newest, now, data
        return self._told[2]

    def _answer(self, cluster: Cluster) -> web.Response:
        return web.Response(body=encode_cluster(cluster_state(cluster)), content_type="application/json")


class WorkerRoutes:
    """The routes of one engine for each worker, below its path: `table` makes them of a worker's own service."""

    def __init__(self, service: Service, table: Callable[[Service], Sequence[Route]]) -> None:
        self._service = service
        self._table = table
        self._made: dict[str, tuple[Service, dict[tuple[str, str], Handler]]] = {}

    def below(self, route: Route) -> Handler:
        """The handler of such a route, whichever worker is asked."""

        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._handlers(self._worker(request))[route.method, route.path](request)

        return self._metrics if route.path == "/metrics" else handle

    async def _metrics(self, request: web.Request) -> web.Response:
        """As `ModelRoutes.metrics` tells those of one engine, but for what is the server's: that is at its root."""
        worker = self._worker(request)
        metrics = worker.service.metrics
        if metrics is None:
            worker.service.ready()
            raise AssertionError("a ready engine has metrics")
        metrics.set_up(_serves(worker), worker.restarts)
        return web.Response(body=worker_text(metrics), headers={"Content-Type": METRICS_TYPE})

    def _worker(self, request: web.Request) -> Worker:
        """Raises ApiError (404) that names those there are, to whoever may know."""
        wanted = request.match_info["name"]
        workers = cluster_of(self._service).workers
        for worker in workers:
            if worker.name == wanted:
                return worker
        there = _listed([worker.name for worker in workers])
        if is_stranger(request, self._service.settings.access):
            there = "a key is needed to be told"
        raise ApiError(
            f"name: no worker {wanted[:100]!r}; there are: {there}", status=404, param="name", code="worker_not_found"
        )

    def _handlers(self, worker: Worker) -> dict[tuple[str, str], Handler]:
        made = self._made.get(worker.name)
        if made is None or made[0] is not worker.service:  # new, or another one that has its name
            there = {one.name for one in cluster_of(self._service).workers}
            self._made = {name: kept for name, kept in self._made.items() if name in there}
            handlers = {(route.method, route.path): route.handler for route in self._table(worker.service)}
            made = self._made[worker.name] = worker.service, handlers
        return made[1]


def cluster_of(service: Service) -> Cluster:
    """Raises ApiError (404) where there is none."""
    if service.cluster is None:
        raise ApiError(
            "this server is no cluster: it was started without --prefill, --decode and --replicas",
            status=404,
            code="no_cluster",
        )
    return service.cluster


def _serves(worker: Worker) -> bool:
    return worker.service.client is not None and worker.service.client.ready


def _listed(names: Sequence[str]) -> str:
    others = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {others:,} others" if others > 0 else "") if names else "none yet"
