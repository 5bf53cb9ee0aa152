"""A cluster at one moment: what follows from its state and from one a little earlier. Panels draw from this alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from engine.cluster.protocol import ClusterControl, ClusterState, Role, WorkerState

ROLES: tuple[Role, ...] = ("prefill", "decode", "replica")
SIZES: dict[Role, str] = {"prefill": "prefill", "decode": "decode", "replica": "replicas"}  # fields of ClusterControl
RATE_SECONDS = 5.0  # that rates are over, or less where the cluster has not been seen for so long
LEAST_SECONDS = 0.2  # over which a rate means something


@dataclass(frozen=True)
class ClusterView:
    """`before`: the state of about `RATE_SECONDS` before `now`; None: none is known. `control`: what is in force, or
    was accepted just now. `now`: up to this moment on the cluster's clock nothing else happened than `state` tells."""

    state: ClusterState
    before: ClusterState | None
    control: ClusterControl
    now: float

    @cached_property
    def pools(self) -> dict[Role, tuple[WorkerState, ...]]:
        """Workers by role: those roles that there are or that are wanted, and of prefill and decode both or neither,
        so that a pool that was scaled to none can be scaled up again."""
        found: dict[Role, list[WorkerState]] = {role: [] for role in ROLES}
        for worker in self.state.workers:
            found[worker.role].append(worker)
        shown = {role for role in ROLES if found[role] or getattr(self.control, SIZES[role])}
        if shown & {"prefill", "decode"}:
            shown |= {"prefill", "decode"}
        return {role: tuple(workers) for role, workers in found.items() if role in shown}

    @cached_property
    def _earlier(self) -> dict[str, WorkerState]:
        return {worker.name: worker for worker in self.before.workers} if self.before is not None else {}

    @cached_property
    def _is_another(self) -> bool:
        """Whether it was started again since `before`: it begins to count anew, and none of its engines is the same."""
        assert self.before is not None
        if self.state.number < self.before.number:
            return True
        before = {worker.name: worker.engine for worker in self.before.workers if worker.engine is not None}
        now = [worker for worker in self.state.workers if worker.engine is not None]
        return bool(before and now) and not any(before.get(worker.name) == worker.engine for worker in now)

    def worker(self, name: str | None) -> WorkerState | None:
        return next((worker for worker in self.state.workers if worker.name == name), None)

    def rate(self, worker: WorkerState, counter: str) -> float | None:
        """A counter's growth a second; None where the worker was not seen before, or was started again since."""
        earlier = self._earlier.get(worker.name)
        if earlier is None or self.before is None or not tells(worker) or not tells(earlier):
            return None
        seconds = self.now - self.before.time
        is_other = (earlier.restarts, earlier.engine) != (worker.restarts, worker.engine) or earlier.seq > worker.seq
        if seconds < LEAST_SECONDS or is_other:
            return None
        grown: int = getattr(worker, counter) - getattr(earlier, counter)
        return grown / seconds if grown >= 0 else None

    def decisions_rate(self) -> float | None:
        """Of the router, a second."""
        if self.before is None or self.now - self.before.time < LEAST_SECONDS or self._is_another:
            return None
        grown = self.state.router.decisions - self.before.router.decisions
        return grown / (self.now - self.before.time) if grown >= 0 else None


def tells(worker: WorkerState) -> bool:
    """Whether its counts are of now: those of a worker that does not serve are none."""
    return worker.engine is not None and worker.phase in ("ready", "draining")


def hit_rate(worker: WorkerState) -> float | None:
    """Of the prompt tokens that were looked up, the share found cached."""
    return worker.found_tokens / worker.looked_up_tokens if tells(worker) and worker.looked_up_tokens else None


def held_share(worker: WorkerState) -> float | None:
    """Of the pool, what requests hold."""
    blocks = worker.engine.num_blocks if worker.engine is not None else 0
    return worker.held_blocks / blocks if blocks and tells(worker) else None


def cached_share(worker: WorkerState) -> float | None:
    """Of the pool, what is cached and can be evicted."""
    blocks = worker.engine.num_blocks if worker.engine is not None else 0
    return worker.cached_blocks / blocks if blocks and tells(worker) else None
