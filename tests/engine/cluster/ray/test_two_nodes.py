"""Two Ray nodes with prefill on one and a decode worker on each: what is handed over between them, and what is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
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

from engine.cluster.cluster import Cluster
from engine.cluster.cluster_file import read_cluster_file
from engine.cluster.protocol import ClusterControl
from engine.cluster.ray.core import RayCore
from engine.cluster.ray.nodes import RayNodes
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
HEALTH = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1500,
    "health_check_failure_threshold": 5,
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
                "_system_config": HEALTH,
            },
        )
        self.address = self._cluster.address
        self.other: Any = None
        self.add()

    def _of_a_node(self) -> dict[str, Any]:
        return {"node_ip_address": "127.0.0.1", "num_cpus": 1, "object_store_memory": SMALL}

    def add(self) -> None:
        self.other = self._cluster.add_node(**self._of_a_node(), resources={"prefill_host": 1, "decode_host": 1})

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
        self.filled: list[tuple[str, str]] = []  # of each pull: its request, and what went wrong
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
def two_nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(two_nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    path = Path(tmp_path_factory.mktemp("ray")) / "cluster.yaml"
    path.write_text(FILE)
    plan = msgspec.structs.replace(read_cluster_file(path), address=two_nodes.address)
    nodes = RayNodes(plan)
    nodes.check_room()
    shared = msgspec.structs.replace(plan.pools[0].config, transfer="parent", crash_dir=str(path.parent))
    settings = ServeSettings(("tiny",), recovery=Recovery(max_restarts=10, drain_timeout=5.0))
    cluster = Cluster(shared, settings, nodes.start, plan.control)
    front = Front(nodes, cluster)
    fill = RayCore.fill

    async def noted(core: RayCore, pull: Any, source: Any) -> str:
        wrong = await fill(core, pull, source)
        front.filled.append((pull.request, wrong))
        return wrong

    RayCore.fill = noted  # type: ignore[method-assign]
    running = asyncio.create_task(cluster.run())
    await asyncio.wait_for(cluster.until_complete(), 60)
    yield front
    RayCore.fill = fill  # type: ignore[method-assign]
    await cluster.shutdown(2.0)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await asyncio.to_thread(nodes.close)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alone(front: Front) -> dict[int, tuple[int, ...]]:
    """What one engine answers to the prompts 0 to 15."""
    config = msgspec.structs.replace(front.cluster.config, transfer="none", name="")
    core = CoreProcess(config)
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
    brought = [one.request for one in done if one.target == far.name]
    assert [(request, "") for request in sorted(brought)] == sorted(front.filled)
    await front.cluster.client.until_idle()


async def test_an_offer_of_another_life_is_told_to_be_gone(front: Front) -> None:
    """And the engine that asked is answered, as always."""
    prefill, decode = front.core("prefill-0"), front.core("decode-0")
    told = ray.get(prefill.actor.read_blocks.options(num_returns=2).remote("another-life", None, ()))
    assert "not here any more" in told[0]
    assert told[1] is None
    wrong = ray.get(decode.actor.fill.remote("another-life", msgspec.structs.replace(_pull(), request="x"), None))
    assert "not here any more" in wrong


async def test_blocks_that_nobody_waits_for_any_more_are_not_written(front: Front) -> None:
    decode = front.core("decode-0")
    pull = _pull()
    ray.get(decode.actor.give_up.remote(decode.life, pull.offer.lease))
    assert "nobody waits" in ray.get(decode.actor.fill.remote(decode.life, pull, None))


def _pull() -> Any:
    place = PoolPlace("nowhere", "/proc/0/fd/0", "", 0, (1,), (1,), 4)
    return Pull("x", Offer("lease-x", "prefill-0", "", place, (0,), 16, 64, 0.0), place, ((0, 0),))


async def test_a_killed_engine_comes_back_on_its_actor_and_nothing_is_lost(
    front: Front, alone: dict[int, tuple[int, ...]]
) -> None:
    core = front.core("decode-0")
    asked = [asyncio.create_task(front.answer(prompt(number))) for number in range(8)]
    await asyncio.sleep(0)
    os.kill(core.begun.pid, signal.SIGKILL)
    await front.until_dead(core)
    assert "SIGKILL" in core.ending()
    assert await asyncio.gather(*asked) == [(alone[number], "length") for number in range(8)]
    await front.until_ready()
    assert front.core("decode-0").actor is core.actor
    assert front.core("decode-0").begun.pid != core.begun.pid


async def test_a_killed_actor_is_started_again_by_ray(front: Front, alone: dict[int, tuple[int, ...]]) -> None:
    core = front.core("prefill-0")
    actor = psutil.Process(core.begun.pid).parent()
    assert actor is not None
    asked = [asyncio.create_task(front.answer(prompt(number))) for number in range(8, 16)]
    await asyncio.sleep(0)
    actor.kill()
    await front.until_dead(core)
    assert "actor" in core.ending()
    assert "was lost" in core.ending()
    assert await asyncio.gather(*asked) == [(alone[number], "length") for number in range(8, 16)]
    await front.until_ready()
    assert front.core("prefill-0").actor is core.actor
    before = len(front.cluster.recent)
    assert await front.answer(prompt(3, 90)) == (await front.answer(prompt(3, 90)))
    assert len(front.cluster.recent) > before  # it hands over again


async def test_a_stopped_engine_is_ended_and_replaced(front: Front) -> None:
    core = front.core("decode-1")
    os.kill(core.begun.pid, signal.SIGSTOP)
    core.kill()
    await front.until_dead(core)
    await asyncio.to_thread(psutil.wait_procs, [psutil.Process(core.begun.pid)] if _lives(core) else [], 10)
    assert not _lives(core)
    await front.until_ready()


def _lives(core: RayCore) -> bool:
    return psutil.pid_exists(core.begun.pid)


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


async def test_up_serves_on_a_cluster_that_is_there_and_leaves_it_there(two_nodes: Nodes, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("model: tiny\nkv-memory: 4MiB\ncpus: 0.1\npools:\n  replicas: {workers: 1}\n")
    up = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "engine", "up", str(path), "--address", two_nodes.address, "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert up.stdout is not None
    line = (await asyncio.wait_for(up.stdout.readline(), 60)).decode()
    found = re.search(r"serving tiny at (http://\S+) \(1 replica", line)
    assert found, line
    before = _cpus()
    async with httpx.AsyncClient(base_url=found[1], timeout=30) as http:
        asked = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0}
        assert (await http.post("/v1/completions", json=asked)).raise_for_status().json()["usage"]["completion_tokens"]
        (worker,) = (await http.get("/engine/cluster")).json()["workers"]
    assert worker["node"].startswith("127.0.0.1/")
    up.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(up.wait(), 30) == 0
    while _cpus() <= before:  # its actor is gone, and all nodes are there
        await asyncio.sleep(LOOK_SECONDS)
    assert sum(node["Alive"] for node in ray.nodes()) == 2


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
    two_nodes.add()  # here: it ends with the thread that starts it
    await asyncio.wait_for(front.until_ready(), 60)
    assert front.core("prefill-0").node != there
    front.filled.clear()
    again = await asyncio.gather(*(front.answer(prompt(number)) for number in range(4)))
    assert again == [(alone[number], "length") for number in range(4)]
    assert front.filled  # blocks go between the two again
    assert not [wrong for _, wrong in front.filled if wrong]
    await front.cluster.client.until_idle()


async def test_a_pool_is_made_larger_and_smaller_while_it_serves(front: Front) -> None:
    control: ClusterControl = front.cluster.control
    await front.cluster.change(msgspec.structs.replace(control, decode=1))
    while len(front.cluster.workers) > 2:
        await asyncio.sleep(LOOK_SECONDS)
    assert len(front.nodes._actors) == 2  # Ray has its room again
    await front.cluster.change(control)
    await asyncio.wait_for(front.until_ready(tuple(worker.name for worker in front.cluster.workers)), 30)
    assert len(front.cluster.workers) == 3
