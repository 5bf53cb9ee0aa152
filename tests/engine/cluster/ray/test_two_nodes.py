"""Two Ray nodes with prefill on one and a decode worker on each: what is handed over between them, and what is lost."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
import pytest_asyncio
import ray
from ray._private import ray_constants
from ray.cluster_utils import Cluster as TwoNodes
from ray.exceptions import RayActorError, RayTaskError

from engine import supervisor
from engine.cluster.cluster import Cluster
from engine.cluster.cluster_file import ClusterPlan, read_cluster_file
from engine.cluster.protocol import ClusterControl
from engine.cluster.ray import nodes as nodes_module
from engine.cluster.ray.actor import EngineActor, OtherVersion
from engine.cluster.ray.core import RayCore
from engine.cluster.ray.errors import in_a_sentence
from engine.cluster.ray.nodes import RayNodes
from engine.cluster.ray.watch import bring_back
from engine.cluster.worker import Worker, WorkerSpec
from engine.core_client import CoreClient, CoreProcess
from engine.messages import Add, Output, Pull
from engine.sampling_params import SamplingParams
from engine.server.settings import Recovery, ServeSettings
from engine.supervisor import CannotStart
from engine.transfer.offer import Offer, PoolPlace

os.environ["OMP_NUM_THREADS"] = "1"
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
SMALL = 100 << 20  # bytes of an object store
LOOK_SECONDS = 0.02
FILE = """
model: tiny
dtype: float32
kv-memory: 4MiB
check-every: 1
lease-seconds: 20
start-seconds: 25
local-prefill: 16
routing: round_robin
cpus: 0.1
pools:
  prefill: {workers: 1, resources: {prefill_host: 1}}
  decode: {workers: 2, resources: {decode_host: 1}}
"""
# A node that is gone is missed after a second or two; one whose cores are busy is not taken for gone.
RAYS = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1500,
    "health_check_failure_threshold": 5,
    "kill_worker_timeout_milliseconds": 500,  # that one that hangs has, before it is ended
    "memory_monitor_refresh_ms": 0,  # it ends actors where others have taken the machine's memory
}


class Nodes:
    """The Ray cluster: `other` is the node that can be lost."""

    def __init__(self) -> None:
        ray_constants.ENABLE_RAY_CLUSTER = False  # everything is on loopback
        self._cluster = TwoNodes(
            initialize_head=True,
            head_node_args={
                **self._of_a_node(),
                "resources": {"decode_host": 1},
                "include_dashboard": False,
                "include_log_monitor": False,
                "no_monitor": True,  # who would ask for machines
                "_system_config": RAYS,
            },
        )
        self.address = self._cluster.address
        self.other: Any = None
        self.add()

    def _of_a_node(self) -> dict[str, Any]:
        return {"node_ip_address": "127.0.0.1", "num_cpus": 1, "object_store_memory": SMALL}

    def add(self, decode: int = 1) -> None:
        self.other = self._cluster.add_node(**self._of_a_node(), resources={"prefill_host": 1, "decode_host": decode})

    def lose(self) -> None:
        """At once, as when its power is cut."""
        self._cluster.remove_node(self.other, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


class Front:
    """A cluster of engines on the nodes, and what came of its requests."""

    def __init__(self, nodes: RayNodes, cluster: Cluster) -> None:
        self.nodes = nodes
        self.cluster = cluster
        self.filled: list[tuple[Pull, str]] = []  # pulls, and what went wrong with each
        self.far = ""  # the decode worker on the other node than the prefill worker, at first
        self._requests = 0

    async def answer(self, prompt: tuple[int, ...], tokens: int = 12) -> tuple[tuple[int, ...], str]:
        """What a request gets: its tokens, and why it ended."""
        self._requests += 1
        return await answer(self.cluster.client, f"request-{self._requests}", prompt, tokens)

    def worker(self, name: str) -> Worker:
        return next(worker for worker in self.cluster.workers if worker.name == name)

    def core(self, name: str) -> RayCore:
        core = self.worker(name).core
        assert isinstance(core, RayCore)
        return core

    async def until_ready(self, names: tuple[str, ...] = ("prefill-0", "decode-0", "decode-1")) -> None:
        while not all(self.worker(name).phase == "ready" for name in names):
            await asyncio.sleep(LOOK_SECONDS)

    async def until_dead(self, core: RayCore) -> None:
        await asyncio.to_thread(core.wait)


async def answer(client: Any, request: str, prompt: tuple[int, ...], tokens: int) -> tuple[tuple[int, ...], str]:
    found: list[int] = []
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def sink(output: Output) -> None:
        if output.token_id is not None:
            found.append(output.token_id)
        if output.finished is not None:
            ended.set_result(output.error or output.finished)

    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    client.add(Add(request, prompt, sampling), sink, request)
    return await asyncio.wait_for(ended, 60) and tuple(found), await ended


def prompt(number: int, length: int = 70) -> tuple[int, ...]:
    return tuple((number * 131 + place * 17) % 250 + 1 for place in range(length))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ClusterPlan:
    path = Path(tmp_path_factory.mktemp("ray")) / "cluster.yaml"
    path.write_text(FILE)
    plan = read_cluster_file(path)
    pools = [
        msgspec.structs.replace(pool, config=msgspec.structs.replace(pool.config, crash_dir=str(path.parent)))
        for pool in plan.pools
    ]
    return msgspec.structs.replace(plan, pools=tuple(pools))


@pytest.fixture(scope="module")
def single(plan: ClusterPlan) -> CoreProcess:
    """An engine of no cluster. It loads while the others start."""
    return CoreProcess(msgspec.structs.replace(plan.pools[0].config, transfer="none"))


@pytest.fixture(scope="module")
def two_nodes(single: CoreProcess) -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(two_nodes: Nodes, plan: ClusterPlan) -> AsyncIterator[Front]:
    plan = msgspec.structs.replace(plan, address=two_nodes.address)
    nodes = RayNodes(plan)
    nodes.check_room()
    shared = msgspec.structs.replace(plan.pools[0].config, transfer="parent")
    settings = ServeSettings(("tiny",), recovery=Recovery(max_restarts=10, drain_timeout=5.0))
    cluster = Cluster(shared, settings, nodes.start, plan.control, own=plan.own)
    front = Front(nodes, cluster)
    fill = RayCore.fill

    async def noted(core: RayCore, pull: Any, source: Any) -> str:
        wrong = await fill(core, pull, source)
        front.filled.append((pull, wrong))
        return wrong

    RayCore.fill = noted  # type: ignore[method-assign]
    backing_off = supervisor.BACK_OFF
    supervisor.BACK_OFF = (0.0, 0.1)
    running = asyncio.create_task(cluster.run())
    bringing = asyncio.create_task(bring_back(cluster, nodes, look=0.1))
    await asyncio.wait_for(cluster.until_complete(), 60)
    yield front
    RayCore.fill = fill  # type: ignore[method-assign]
    supervisor.BACK_OFF = backing_off
    bringing.cancel()
    await cluster.shutdown(2.0)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await asyncio.to_thread(nodes.close)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(single: CoreProcess) -> dict[int, tuple[int, ...]]:
    """What one engine answers to the prompts 0 to 15."""
    core = single
    client = CoreClient(core, lambda seq, json: None)
    running = asyncio.create_task(client.run(lambda ready: None))
    await client.until_ready()
    answers = {number: (await answer(client, f"alone-{number}", prompt(number), 12))[0] for number in range(16)}
    await client.shutdown()
    await running
    return answers


async def test_blocks_go_from_node_to_node_and_answers_are_those_of_one_engine(
    front: Front, alone: dict[int, tuple[int, ...]]
) -> None:
    answers = await asyncio.gather(*(front.answer(prompt(number)) for number in range(8)))
    assert answers == [(alone[number], "length") for number in range(8)]
    prefill, *decode = [front.core(name) for name in ("prefill-0", "decode-0", "decode-1")]
    near = next(core for core in decode if core.node == prefill.node)
    far = next(core for core in decode if core is not near)
    done = [one for one in front.cluster.recent if not one.error]
    assert {one.target for one in done} == {near.name, far.name}
    assert all(one.source == "prefill-0" and one.blocks and one.nbytes for one in done)
    # Those of the same node were read from its memory, the others came as Ray's objects.
    front.far = far.name
    brought = [one.request for one in done if one.target == far.name]
    assert [(request, "") for request in sorted(brought)] == sorted((pull.request, told) for pull, told in front.filled)
    await front.cluster.client.until_idle()


async def test_an_offer_of_another_life_is_told_to_be_gone(front: Front) -> None:
    """And the engine that asked is answered, as always."""
    prefill, decode = front.core("prefill-0"), front.core("decode-0")
    told = ray.get(prefill.actor.read_blocks.options(num_returns=2).remote("another-life", None, ()))
    assert "not here any more" in told[0]
    assert told[1] is None
    wrong = ray.get(decode.actor.fill.remote("another-life", msgspec.structs.replace(_pull(), request="x"), None))
    assert "not here any more" in wrong


async def test_a_process_of_an_actor_has_one_engine(front: Front) -> None:
    """What was said to an engine that has ended can then reach no other: it may come late."""
    decode = front.core("decode-0")
    with pytest.raises(RayTaskError, match=f"this process had the engine {decode.life}"):
        ray.get(decode.actor.begin.remote("another-life", "", b""))
    with pytest.raises(OtherVersion, match=r"127\.0\.0\.1 has paged-top .*, and 0\.0 is wanted"):
        EngineActor().begin("another-life", "0.0", b"")


async def test_what_ray_tells_is_a_sentence(front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "not_there.py").write_text("import engine_of_others\n\nclass Actor: ...\n")
    (tmp_path / "engine_of_others.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)  # this process knows it, and no node does
    import not_there  # type: ignore[import-not-found]

    actor = ray.remote(num_cpus=0.1)(not_there.Actor).remote()
    with pytest.raises(RayActorError) as error:
        ray.get(actor.__ray_ready__.remote())
    assert in_a_sentence(error.value) == "ModuleNotFoundError: No module named 'not_there'"
    decode = front.core("decode-0")
    with pytest.raises(RayTaskError) as other:
        ray.get(decode.actor.give_up.remote("another-life", ""))
    assert in_a_sentence(other.value) == "engine another-life is not here any more"


async def test_nothing_is_left_in_the_object_store(front: Front) -> None:
    """Of blocks that were brought, and of those that were not wanted in the end."""
    brought, _ = next((pull, wrong) for pull, wrong in front.filled if not wrong)
    source, target = front.core("prefill-0"), copy.copy(front.core(front.far))
    target.life = "another-life"  # which writes nothing
    whole = tuple((block, block) for block in range(brought.offer.place.shape[0]))
    offer = msgspec.structs.replace(brought.offer, deadline=time.monotonic() + 600)
    pull = msgspec.structs.replace(brought, offer=offer, pairs=whole)
    for _ in range(50):  # twice what the two stores hold
        assert "another-life is not here any more" in await target.fill(pull, source)
    late = msgspec.structs.replace(pull, offer=msgspec.structs.replace(offer, deadline=0.0))
    assert "the offer had expired" in await target.fill(late, source)
    while _stored():
        await asyncio.sleep(LOOK_SECONDS)


def _stored() -> float:
    """Bytes of all nodes' object stores that are in use."""
    return float(ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"])


async def test_blocks_that_nobody_waits_for_any_more_are_not_written(front: Front) -> None:
    decode = front.core("decode-0")
    pull = _pull()
    ray.get(decode.actor.give_up.remote(decode.life, pull.offer.lease))
    assert "nobody waits" in ray.get(decode.actor.fill.remote(decode.life, pull, None))


def _pull() -> Any:
    place = PoolPlace("nowhere", "/proc/0/fd/0", "", 0, (1,), (1,), 4)
    return Pull("x", Offer("lease-x", "prefill-0", "", place, (0,), 16, 64, 0.0), place, ((0, 0),))


async def test_what_hangs_holds_up_nobody(front: Front) -> None:
    """Of the actors who reads and who writes blocks; and an engine that is stopped is ended and replaced."""
    source, target = front.core("prefill-0"), front.core(front.far)
    reader, writer = _actor(source), _actor(target)
    target._patience = 0.2
    reader.suspend()
    told = await target.fill(_pull(), source)
    reader.resume()
    assert told == "the blocks of prefill-0 did not come: they were not read within 0.2 s"
    brought, _ = front.filled[0]
    offer = msgspec.structs.replace(brought.offer, deadline=time.monotonic() + 600)
    writer.suspend()
    told = await target.fill(msgspec.structs.replace(brought, offer=offer), source)
    assert told == "the blocks of prefill-0 did not come: they were not there after 0.2 s"
    stopped = next(front.core(name) for name in ("decode-0", "decode-1") if name != front.far)
    os.kill(stopped.begun.pid, signal.SIGSTOP)
    stopped.kill()
    for core in (stopped, target):  # of the target it is known only then that it does not write any more
        await front.until_dead(core)
        while _lives(core):
            await asyncio.sleep(LOOK_SECONDS)
    while writer.is_running():
        await asyncio.sleep(LOOK_SECONDS)
    await front.until_ready()


def _actor(core: RayCore) -> psutil.Process:
    """Its process."""
    actor = psutil.Process(core.begun.pid).parent()
    assert actor is not None
    return actor


def _lives(core: RayCore) -> bool:
    return psutil.pid_exists(core.begun.pid)


async def test_a_killed_engine_and_a_killed_actor_come_back_and_nothing_is_lost(
    front: Front, alone: dict[int, tuple[int, ...]]
) -> None:
    engine, actor = front.core("decode-0"), front.core("prefill-0")
    asked = [asyncio.create_task(front.answer(prompt(number))) for number in range(8)]
    await asyncio.sleep(0)
    os.kill(engine.begun.pid, signal.SIGKILL)
    await front.until_dead(engine)
    assert re.search(r"killed by SIGKILL.*; its log is /\S+\.err on node 127\.0\.0\.1/", engine.ending())
    assert Path(engine.begun.log).exists()
    assert await asyncio.gather(*asked) == [(alone[number], "length") for number in range(8)]
    asked = [asyncio.create_task(front.answer(prompt(number))) for number in range(8, 16)]
    await asyncio.sleep(0)
    _actor(actor).kill()
    await front.until_dead(actor)
    wanted = f"the engine's actor on node {actor.node} was lost: its process has ended, or cannot be reached"
    assert actor.ending() == wanted
    assert await asyncio.gather(*asked) == [(alone[number], "length") for number in range(8, 16)]
    await front.until_ready()
    for core in (engine, actor):  # Ray has started them again
        assert front.core(core.name).actor is core.actor
        assert front.core(core.name).begun.pid != core.begun.pid
    before = len(front.cluster.recent)
    assert await front.answer(prompt(3, 90)) == (await front.answer(prompt(3, 90)))
    assert len(front.cluster.recent) > before  # it hands over again


async def test_resources_that_are_not_there_are_named(front: Front) -> None:
    plan = front.nodes._plan
    hungry = msgspec.structs.replace(plan.pools[0], cpus=64.0)
    nodes = RayNodes(msgspec.structs.replace(plan, pools=(hungry, *plan.pools[1:]), start_seconds=1.0))
    with pytest.raises(CannotStart, match=r"too little room: 3 engines ask for 64.2 CPU.* free are node "):
        nodes.check_room()
    config = msgspec.structs.replace(plan.pools[0].config, name="prefill-9")
    with pytest.raises(
        CannotStart, match=r"prefill-9: .* no room for it for 1 s \(start-seconds\): 1 engine asks for 64 "
    ):
        await asyncio.to_thread(nodes.start, WorkerSpec("prefill-9", "prefill", config))
    assert not nodes._actors


async def test_a_start_that_waits_for_room_can_be_called_off(front: Front) -> None:
    plan = front.nodes._plan
    hungry = msgspec.structs.replace(plan.pools[0], cpus=64.0)
    nodes = RayNodes(msgspec.structs.replace(plan, pools=(hungry,), start_seconds=600.0))
    config = msgspec.structs.replace(hungry.config, name="prefill-9")
    starting = asyncio.create_task(asyncio.to_thread(nodes.start, WorkerSpec("prefill-9", "prefill", config)))
    while not nodes._actors:
        await asyncio.sleep(LOOK_SECONDS)
    nodes.call_off()
    with pytest.raises(CannotStart, match="prefill-9: the start was called off"):
        await starting
    assert not nodes._actors
    with pytest.raises(CannotStart, match="called off"):
        await asyncio.to_thread(nodes.start, WorkerSpec("prefill-9", "prefill", config))


async def test_a_start_takes_the_place_of_one_of_its_name_that_waits_for_room(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = front.nodes._plan
    small = msgspec.structs.replace(plan.pools[0], resources=())
    hungry = msgspec.structs.replace(small, cpus=64.0)
    nodes = RayNodes(msgspec.structs.replace(plan, pools=(hungry,), start_seconds=600.0))
    spec = WorkerSpec("prefill-9", "prefill", msgspec.structs.replace(small.config, name="prefill-9"))
    waiting = asyncio.create_task(asyncio.to_thread(nodes.start, spec))
    while not nodes._actors:
        await asyncio.sleep(LOOK_SECONDS)
    nodes._plan = msgspec.structs.replace(plan, pools=(small,))
    core = await asyncio.to_thread(nodes.start, spec)
    with pytest.raises(CannotStart, match="prefill-9: the start was called off"):
        await waiting
    assert list(nodes._actors) == ["prefill-9"]
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(core.wait, 0.1)
    await asyncio.to_thread(core.stop, 0)
    # One that found no room is started when there is some; if that fails for another reason, it is left alone.
    nodes._plan = msgspec.structs.replace(plan, pools=(hungry,), start_seconds=0.5)
    with pytest.raises(CannotStart, match="no room"):
        await asyncio.to_thread(nodes.start, spec)
    assert nodes.that_find_room(["prefill-9"]) == []
    nodes._plan = msgspec.structs.replace(plan, pools=(small,))
    assert nodes.that_find_room(["prefill-8", "prefill-9"]) == ["prefill-9"]
    monkeypatch.setattr(nodes_module, "own_version", lambda: "another")
    with pytest.raises(CannotStart, match="another"):
        await asyncio.to_thread(nodes.start, spec)
    assert nodes.that_find_room(["prefill-9"]) == []
    assert not nodes._actors


async def test_up_serves_on_a_cluster_that_is_there_and_leaves_it_there(two_nodes: Nodes, tmp_path: Path) -> None:
    """However it ends: asked to while its engine is being started, or killed while it serves."""
    path = tmp_path / "cluster.yaml"
    path.write_text("model: tiny\nkv-memory: 4MiB\ncpus: 0.1\npools:\n  replicas: {workers: 1}\n")
    before = _cpus()
    early, up = [await _up(path, two_nodes.address) for _ in range(2)]
    for one in (early, up):
        line = await _line(one.stderr)
        assert re.search(rf"Ray's head is at {two_nodes.address}; what engines log lies in /\S+ on their nodes", line)
        if one is early:
            early.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(early.wait(), 30) in (0, 130)  # 130: it had not come to what ends a server
    line = await _line(up.stdout)
    found = re.search(r"serving tiny at (http://\S+) \(1 replica", line)
    assert found, line
    async with httpx.AsyncClient(base_url=found[1], timeout=30) as http:
        wanted = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0}
        assert (await http.post("/v1/completions", json=wanted)).raise_for_status().json()["usage"]["completion_tokens"]
        (worker,) = (await http.get("/engine/cluster")).json()["workers"]
    assert worker["node"].startswith("127.0.0.1/")
    up.kill()
    while _cpus() < before or _engines() > 4:  # their actors and engines are gone
        await asyncio.sleep(LOOK_SECONDS)
    assert sum(node["Alive"] for node in ray.nodes()) == 2


async def _up(path: Path, address: str) -> asyncio.subprocess.Process:
    command = ("-m", "engine", "up", str(path), "--address", address, "--port", "0")
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, *command, stdout=pipe, stderr=pipe)


async def _line(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    return (await asyncio.wait_for(stream.readline(), 60)).decode()


def _engines() -> int:
    """Processes of engines that live below this one, Ray's nodes among them."""
    found = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += "engine.core_process" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    return found


def _cpus() -> float:
    return float(ray.available_resources()["CPU"])


async def test_a_lost_node_costs_no_request_and_its_engines_come_back_where_there_is_room(
    front: Front, two_nodes: Nodes, alone: dict[int, tuple[int, ...]]
) -> None:
    there = front.core("prefill-0").node
    lost = [core for name in ("prefill-0", "decode-0", "decode-1") if (core := front.core(name)).node == there]
    stays = next(name for name in ("decode-0", "decode-1") if front.core(name) not in lost)
    assert len(lost) == 2
    losing = asyncio.gather(asyncio.to_thread(two_nodes.lose), *(front.until_dead(core) for core in lost))
    ended: list[tuple[int, tuple[int, ...], str]] = []

    async def user(number: int) -> None:
        """Asks again and again until nobody can be lost any more, and once after that."""
        while True:
            is_last = losing.done()
            ended.append((number, *(await front.answer(prompt(number)))))
            if is_last:
                return

    await asyncio.gather(*(user(number) for number in range(8)))
    await losing
    wrong = [one for one in ended if one[1:] != (alone[one[0]], "length")]
    assert all("lost" in why for _, _, why in wrong)  # said why
    assert len(wrong) <= len(ended) / 10
    # What is left serves, whole requests too.
    assert await front.answer(prompt(1)) == (alone[1], "length")
    assert front.worker(stays).phase == "ready"
    assert all(front.worker(core.name).phase != "ready" for core in lost)
    # Where there is no room for another one, it is said; and when there is some, it comes.
    plan, front.nodes._plan = front.nodes._plan, msgspec.structs.replace(front.nodes._plan, start_seconds=1.5)
    await front.cluster.change(msgspec.structs.replace(front.cluster.control, decode=3))
    while front.worker("decode-2").phase != "dead":
        await asyncio.sleep(LOOK_SECONDS)
    assert re.search(r"has had no room for it for 1.5 s .* asks for 0.1 CPU, 1 dec", front.worker("decode-2").reason)
    assert "decode-2" not in front.nodes._actors  # nothing waits for room in its name
    front.nodes._plan = plan
    two_nodes.add(decode=2)  # here: it ends with the thread that starts it
    await asyncio.wait_for(front.until_ready(("prefill-0", "decode-0", "decode-1", "decode-2")), 90)
    assert front.core("prefill-0").node != there
    front.filled.clear()
    again = await asyncio.gather(*(front.answer(prompt(number)) for number in range(4)))
    assert again == [(alone[number], "length") for number in range(4)]
    assert front.filled  # blocks go between the two again
    assert not [wrong for _, wrong in front.filled if wrong]
    await front.cluster.client.until_idle()


async def test_a_pool_is_made_smaller_while_it_serves(front: Front) -> None:
    control: ClusterControl = front.cluster.control
    assert control.decode == 3
    await front.cluster.change(msgspec.structs.replace(control, decode=1))
    while len(front.cluster.workers) > 2:
        await asyncio.sleep(LOOK_SECONDS)
    assert len(front.nodes._actors) == 2  # Ray has its room again
