"""What a cluster tells of itself at one moment, put together from its workers, its router and the transfers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from engine.cluster.protocol import ClusterState, WorkerPhase, WorkerState

if TYPE_CHECKING:
    from engine.cluster.cluster import Cluster
    from engine.cluster.worker import Worker

SERVES: tuple[WorkerPhase, ...] = ("ready", "draining")
Stamp = tuple[int, tuple[tuple[str, WorkerPhase, int], ...]]


def worker_path(name: str) -> str:
    """Below the server's address, where the `/engine/...` routes of a worker are."""
    return f"/workers/{quote(name, safe='')}"


def cluster_state(cluster: Cluster) -> ClusterState:
    return ClusterState(
        number=cluster.number,
        time=time.time(),
        control=cluster.control,
        workers=tuple(worker_state(cluster, worker) for worker in cluster.workers),
        transfers=cluster.transfers(),
        recent=tuple(cluster.recent),
        router=cluster.router_state(),
    )


def worker_state(cluster: Cluster, worker: Worker) -> WorkerState:
    """One worker's part of it."""
    serves = worker.phase in SERVES
    loaded = worker.service.loaded
    known = WorkerState(
        name=worker.name,
        role=worker.role,
        phase=worker.phase,
        path=worker_path(worker.name),
        node=worker.node,
        reason=worker.reason,
        restarts=worker.restarts,
        engine=loaded.info if serves and loaded is not None else None,
        load=cluster.load(worker.name),
        routed=cluster.routed(worker.name),
    )
    return worker.tally.told(known) if serves else worker.tally.told_of_name(known)


def stamp(cluster: Cluster) -> Stamp:
    """What is another one whenever the state tells something else, times apart: cheap to look at, many times a
    second."""
    return cluster.number, tuple((worker.name, worker.phase, worker.tally.seq) for worker in cluster.workers)
