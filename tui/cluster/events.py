"""What happened between two states of a cluster, in words: what a person would stop at."""

from __future__ import annotations

from engine.cluster.protocol import ClusterState, WorkerState
from tui.cluster.controls import FIELDS, named, reads

MOST = 3  # told of at once


def happened(before: ClusterState, after: ClusterState) -> str:
    """Empty: nothing of note."""
    found = [*_control(before, after), *_workers(before, after), *_transfers(before, after)]
    more = f", and {len(found) - MOST:,} more" if len(found) > MOST else ""
    return ", ".join(found[:MOST]) + more


def _control(before: ClusterState, after: ClusterState) -> list[str]:
    pairs = [(field, getattr(before.control, field), getattr(after.control, field)) for field in FIELDS]
    return [f"{named(field)}: {reads(field, old)}, now {reads(field, new)}" for field, old, new in pairs if old != new]


def _workers(before: ClusterState, after: ClusterState) -> list[str]:
    if before.workers is after.workers:
        return []
    known = {worker.name: worker for worker in before.workers}
    out: list[str] = []
    for worker in after.workers:
        old = known.pop(worker.name, None)
        if words := _worker(old, worker):
            out.append(words)
    return [*out, *(f"{name} is gone" for name in known)]


def _worker(old: WorkerState | None, worker: WorkerState) -> str:
    if old is None:
        return f"{worker.name} is new"
    if worker.restarts > old.restarts:
        return f"{worker.name} is started again" + (f": {worker.reason}" if worker.reason else "")
    if worker.phase == old.phase:
        return ""
    match worker.phase:
        case "dead":
            return f"{worker.name} is dead" + (f": {worker.reason}" if worker.reason else "")
        case "ready":
            return f"{worker.name} is ready"
        case "draining":
            return f"{worker.name} is drained"
        case "starting":
            return f"{worker.name} starts" + (f": {worker.reason}" if worker.reason else "")


def _transfers(before: ClusterState, after: ClusterState) -> list[str]:
    """Those that failed since."""
    if not any(done.error for done in after.recent):
        return []
    known = {done.lease for done in before.recent if done.error}
    failed = [done for done in after.recent if done.error and done.lease not in known]
    return [f"a transfer to {done.target or 'nobody'} failed: {done.error}" for done in failed]
