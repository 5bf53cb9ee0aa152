"""The connection to a Ray cluster, one of ours or of others, and the actors that this process has there."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

# Ray reads these when it is imported: nothing is told to its makers, and nothing of calls whose answer nobody needs.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")

import msgspec
import ray
from ray._private import ray_constants, services, worker
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError

from engine import log
from engine.cluster.cluster_file import ClusterPlan, PoolPlan
from engine.cluster.ray.actor import Begun, EngineActor, OtherLife, own_version
from engine.cluster.ray.core import RayCore
from engine.cluster.ray.errors import in_a_sentence
from engine.cluster.ray.room import Amounts, lacking
from engine.cluster.sizes import FIELDS
from engine.cluster.worker import WorkerSpec
from engine.server.origins import is_loopback
from engine.supervisor import CannotStart

LOCAL, AUTO = "local", "auto"
OBJECT_STORE = 256 << 20  # bytes, of a Ray that is started here: blocks on their way between two nodes
CONNECT_SECONDS = 30.0
AGAIN_SECONDS = 0.1  # between two looks at whether an actor is back
LOOK_SECONDS = 0.25  # between two looks at whether a start is called off
WAIT_SECONDS = 5.0  # that a worker waits for room before it is said
END_SECONDS = 5.0  # that engines have to end before Ray is left
_log = logging.getLogger(__name__)


class RayNodes:
    """`start` starts an engine on a node that has room for it. Whoever has one closes it, in the end.

    Raises CannotStart if there is no Ray cluster at the plan's address.
    """

    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self._actors: dict[str, Any] = {}  # of each worker
        self._cores: dict[str, RayCore] = {}  # the newest of each
        self._starting: dict[str, threading.Event] = {}  # workers; each is set when another start of its name begins
        self._homeless: set[str] = set()  # workers that were to be started last time, and found no room
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._is_connected_by_us = not ray.is_initialized()
        if self._is_connected_by_us:
            _connect(plan.address)
        self.head = str(ray.get_runtime_context().gcs_address)  # HOST:PORT of the one that all nodes need
        self.logs = str(worker.global_worker.node.get_logs_dir_path())  # on each node

    def check_room(self) -> None:
        """Raise CannotStart unless all workers of the plan find room now."""
        asked = [_asked(pool) for pool in self._plan.pools for _ in range(pool.workers)]
        if missing := lacking(asked, _free()):
            raise CannotStart(f"the Ray cluster has too little room: {missing}")

    def start(self, spec: WorkerSpec) -> RayCore:
        """Another engine for a worker: on its actor, if it has one, which Ray may be starting again. Waits for it.

        Raises CannotStart. Nothing is left of a worker for which it was raised, not even that it waits for room.
        """
        pool = self._plan.pool(spec.role)
        called_off = threading.Event()
        with self._lock:
            self._homeless.discard(spec.name)
            if (before := self._starting.get(spec.name)) is not None:  # whoever waits there is not waited for any more
                before.set()
                self._actors.pop(spec.name, None)  # which that one ends
            actor = self._actor(spec.name, pool)
            self._starting[spec.name] = called_off
        life = f"{spec.name}-{secrets.token_hex(4)}"
        try:
            begun = self._begin(spec, pool, actor, life, called_off)
        except CannotStart:
            self._end_actor(spec.name, actor)
            raise
        finally:
            with self._lock:
                if self._starting.get(spec.name) is called_off:
                    del self._starting[spec.name]
        core = RayCore(
            spec.name, actor, life, begun, spec.config.transfer_seconds, lambda: self._end_actor(spec.name, actor)
        )
        told = f"{spec.name} starts as process {begun.pid} of node {core.node}, with its log in {begun.log}"
        log.event(_log, logging.DEBUG, "engine_begun", told)
        with self._lock:
            if not called_off.is_set():
                self._cores[spec.name] = core
        return core

    def homeless(self, names: Sequence[str]) -> list[str]:
        """Those of these workers that found no room when they were last to be started."""
        with self._lock:
            return [name for name in names if name in self._homeless]

    def that_find_room(self, names: Sequence[str]) -> list[str]:
        """Those of these workers that are homeless, and would all find room now."""
        homeless = self.homeless(names)
        if not homeless:
            return []
        try:
            free = _free()
        except Exception:  # Ray says in many ways that nobody can be asked now
            return []
        found: dict[str, Amounts] = {}
        for name in homeless:
            role = next(role for role in FIELDS if name.startswith(f"{role}-"))
            asked = _asked(self._plan.pool(role))
            if not lacking([*found.values(), asked], free):
                found[name] = asked
        return list(found)

    def call_off(self) -> None:
        """Whoever waits in `start` is to wait no more, and nobody finds an engine there from now on."""
        self._closing.set()

    def close(self) -> None:
        """End all actors, and the Ray cluster if it was started here."""
        self.call_off()
        with self._lock:
            actors, cores = dict(self._actors), list(self._cores.values())
        for name, actor in actors.items():
            self._end_actor(name, actor)
        limit = time.monotonic() + END_SECONDS
        for core in cores:  # their threads speak with Ray
            with contextlib.suppress(TimeoutError):
                core.wait(max(0.0, limit - time.monotonic()))
        if self._is_connected_by_us:
            ray.shutdown()

    def _actor(self, name: str, pool: PoolPlan) -> Any:
        """A worker's actor, made if need be; to be called with the lock. Raises CannotStart."""
        if self._closing.is_set():
            raise CannotStart(f"{name}: the start was called off")
        if name in self._actors:
            return self._actors[name]
        options = {
            "num_cpus": pool.cpus,
            "num_gpus": pool.gpus,
            "resources": dict(pool.resources),
            "scheduling_strategy": "SPREAD",
            "max_restarts": -1,
            "max_task_retries": 0,  # what was said to an engine that died is not said to the next one
            "concurrency_groups": {"there": 1, "back": 1, "blocks": 2},
            # What waits for blocks holds up nothing behind it. `write` numbers its calls.
            "allow_out_of_order_execution": True,
        }
        self._actors[name] = ray.remote(**options)(EngineActor).remote()
        return self._actors[name]

    def _begin(self, spec: WorkerSpec, pool: PoolPlan, actor: Any, life: str, called_off: threading.Event) -> Begun:
        """Raises CannotStart."""
        config = msgspec.msgpack.encode(spec.config)
        limit = time.monotonic() + self._plan.start_seconds
        why = ""

        def is_over() -> bool:
            return self._closing.is_set() or called_off.is_set()

        while time.monotonic() < limit and not is_over():
            try:
                answer = actor.begin.remote(life, own_version(), config)
                if (begun := self._answer(answer, spec, pool, limit, is_over)) is None:
                    break
                return begun
            except ActorUnavailableError as error:  # Ray is starting it again
                why = in_a_sentence(error)
            except RayTaskError as error:
                if not isinstance(error.cause, OtherLife):
                    raise CannotStart(f"{spec.name}: its actor failed: {in_a_sentence(error)}") from error
                _kill(actor, for_good=False)  # an engine that was lost, and lives on there alone
            except RayError as error:
                raise CannotStart(f"{spec.name}: its actor cannot be started: {in_a_sentence(error)}") from error
            self._closing.wait(AGAIN_SECONDS)
        if is_over():
            raise CannotStart(f"{spec.name}: the start was called off")
        seconds = f"{self._plan.start_seconds:g} s (start-seconds)"
        if missing := lacking([_asked(pool)], _free()):
            with self._lock:
                if not called_off.is_set():
                    self._homeless.add(spec.name)
            raise CannotStart(f"{spec.name}: the Ray cluster has had no room for it for {seconds}: {missing}")
        raise CannotStart(f"{spec.name}: its actor has not started within {seconds}{f': {why}' if why else ''}")

    def _answer(
        self, begun: Any, spec: WorkerSpec, pool: PoolPlan, limit: float, is_over: Callable[[], bool]
    ) -> Begun | None:
        """Wait for it: None when that is called off, or takes too long. Raises RayError."""
        told = time.monotonic() + WAIT_SECONDS
        while (left := limit - (now := time.monotonic())) > 0 and not is_over():
            try:
                found: Begun = ray.get(begun, timeout=min(left, LOOK_SECONDS))
                return found
            except GetTimeoutError:
                if now > told:
                    told = limit
                    if missing := lacking([_asked(pool)], _free()):
                        log.say(f"{spec.name} waits for room on the Ray cluster: {missing}", name="no_room")
        return None

    def _end_actor(self, name: str, actor: Any) -> None:
        """For good."""
        _kill(actor, for_good=True)
        with self._lock:
            if self._actors.get(name) is actor:
                del self._actors[name]


def _kill(actor: Any, *, for_good: bool) -> None:
    with contextlib.suppress(RayError, ValueError, ActorDiedError):
        ray.kill(actor, no_restart=for_good)


def _asked(pool: PoolPlan) -> Amounts:
    own = {"CPU": pool.cpus, **({"GPU": pool.gpus} if pool.gpus else {})}
    return {**own, **dict(pool.resources)}


def _free() -> dict[str, Amounts]:
    """What is free on each node that is alive."""
    free = ray._private.state.available_resources_per_node()  # Ray tells it nowhere else, but as a sum
    nodes: Sequence[dict[str, Any]] = ray.nodes()
    return {
        f"node {node['NodeID'][:8]} ({node['NodeManagerAddress']})": free.get(node["NodeID"], {})
        for node in nodes
        if node["Alive"]
    }


def _connect(address: str) -> None:
    """To the Ray cluster there, or to one that is started here. Raises CannotStart."""
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    worker.print_to_stdstream = _told_by_ray  # it prints the ends of its processes' logs, whatever it was told
    if address == LOCAL:
        settings |= {"object_store_memory": OBJECT_STORE, "include_dashboard": False}
    elif address != AUTO:
        _check_address(address)
    # Ray takes a machine by its outer address, unless it is told that there are no other machines.
    if address == LOCAL or _is_on_loopback_alone(address):
        ray_constants.ENABLE_RAY_CLUSTER = False
    failed: list[BaseException] = []

    def connect() -> None:
        try:
            ray.init(address=address, **settings)
        except Exception as error:
            failed.append(error)

    if address == LOCAL:  # what is started ends with the thread that starts it
        connect()
    else:
        thread = threading.Thread(target=connect, name="ray-init", daemon=True)
        thread.start()
        thread.join(CONNECT_SECONDS)
        if thread.is_alive():  # Ray would try for minutes
            raise CannotStart(f"address {address}: no Ray cluster has answered there for {CONNECT_SECONDS:g} s")
    if failed:
        raise CannotStart(_why_not_connected(address, failed[0])) from failed[0]


def _told_by_ray(told: dict[str, Any], *_: Any, **__: Any) -> None:
    """What Ray would print: deaths, which are told here in our own words, with pages of its logs."""
    for line in told.get("lines", ()):
        _log.debug("Ray: %s", str(line).splitlines()[0] if line else "")


def _why_not_connected(address: str, error: BaseException) -> str:
    if address == LOCAL:
        return f"address {address}: Ray cannot be started here: {in_a_sentence(error)}"
    if address == AUTO and isinstance(error, ConnectionError):
        return f"address {address}: no Ray cluster runs here; start one (ray start --head), or say {LOCAL}"
    return f"address {address}: cannot join the Ray cluster there: {in_a_sentence(error)}"


def _check_address(address: str) -> None:
    """Raises CannotStart for one at which nobody listens: Ray itself would try for long."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise CannotStart(f"address must be {AUTO}, {LOCAL} or HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS / 6).close()
    except OSError as error:
        raise CannotStart(f"address {address}: no Ray cluster answers there: {error.strerror or error}") from error


def _is_on_loopback_alone(address: str) -> bool:
    """Whether a Ray cluster of this machine can be reached by a loopback address, and not by another one."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not is_loopback(host):
        return False
    try:
        socket.create_connection((services.get_node_ip_address(), int(port)), CONNECT_SECONDS / 6).close()
    except OSError:
        return True
    return False
