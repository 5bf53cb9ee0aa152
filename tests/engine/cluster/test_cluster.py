"""Real engines of `tiny` in one cluster: what they answer, and what becomes of it when they come, die and go."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from engine import supervisor
from engine.cluster import client, dispatcher
from engine.cluster import cluster as cluster_module
from engine.cluster.cluster import Cluster
from engine.cluster.cluster_file import read_cluster_file
from engine.cluster.protocol import ClusterControl
from engine.cluster.sizes import ClusterControlError
from engine.cluster.worker import Worker, WorkerSpec
from engine.core_client import CallRefusedError, CallUnansweredError, Core, CoreProcess, EngineDiedError
from engine.protocol import Control, LiveRequests, Receiving
from engine.sampling_params import SamplingParams
from engine.server.service import Loaded
from engine.server.settings import ServeSettings
from engine.supervisor import GaveUp, silence
from tests.engine.cluster.clusters import TINY, Asked, named, running, settle, snapshot, until
from tests.engine.cluster.forked import ForkedCore, start_forked

LONG = 100  # tokens: more than are prefilled where they decode


def prompts(count: int, seed: int = 0, shared: int = 48) -> list[list[int]]:
    """Long ones with a common beginning."""
    chance = random.Random(seed)
    begin = [chance.randrange(2, 200) for _ in range(shared)]
    return [[*begin, *(chance.randrange(2, 200) for _ in range(LONG - shared + i))] for i in range(count)]


def sampling(max_tokens: int = 12, **settings) -> SamplingParams:
    return SamplingParams(max_tokens, **({"temperature": 0.0, "ignore_eos": True} | settings))


async def live(cluster: Cluster) -> LiveRequests:
    """What all engines tell of their requests."""
    return msgspec.json.decode(await cluster.client.requests(), type=LiveRequests)


class Work:
    """Requests of several kinds, and what one engine alone answers them."""

    def __init__(self, count: int = 6, max_tokens: int = 12) -> None:
        self.wanted = [
            (
                prompt,
                sampling(max_tokens, **({"temperature": 1.0, "seed": i} if i % 3 == 2 else {})),
                4 if i % 3 == 1 else 1,
            )
            for i, prompt in enumerate(prompts(count))
        ]

    async def answers(self, cluster, name: str = "r") -> list[list[list[int]]]:
        asked = [Asked(cluster, f"{name}{i}", *wanted) for i, wanted in enumerate(self.wanted)]
        return [await one.tokens() for one in asked]


async def test_separated_and_colocated_engines_answer_as_one_does():
    work = Work()
    async with running(ClusterControl(replicas=1)) as cluster:
        alone = await work.answers(cluster)
        await settle(cluster)
        assert len(alone[1]) == 4
    async with running(ClusterControl(prefill=2, decode=1, routing="round_robin")) as cluster:
        assert await work.answers(cluster, "two") == alone
        assert cluster.router_state().handed_over == 6
        assert not any(done.error for done in cluster.recent)
        assert {done.source for done in cluster.recent} == {"prefill-0", "prefill-1"}
        await settle(cluster)
        assert await work.answers(cluster, "again") == alone, "with what is cached"
        await cluster.change(ClusterControl(prefill=2, decode=1, separate=False))
        assert await work.answers(cluster, "colocated") == alone
        await settle(cluster)
        counts = {worker.name: (await snapshot(worker)).counters for worker in cluster.workers}
        assert counts["decode-0"].received > 0
        await cluster.client.clear_cache()
        await cluster.change(ClusterControl(prefill=1, decode=2, replicas=1, routing="round_robin"))
        await until(
            lambda: (
                {worker.name: worker.phase for worker in cluster.workers}
                == dict.fromkeys(["prefill-0", "decode-0", "decode-1", "replica-0"], "ready")
            )
        )
        assert await work.answers(cluster, "other") == alone
        await settle(cluster)


async def test_twenty_deaths_cost_nobody_an_answer_or_a_block(monkeypatch):
    """Engines are killed while requests run, every other time while blocks are copied: each request ends with what one
    engine answers, or with an error that says what happened."""
    monkeypatch.setattr(supervisor, "BACK_OFF", (0.0,))
    chance = random.Random(20)
    slow = replace(TINY, faults=("slow-transfer=0.05%1",))
    async with running(ClusterControl(prefill=1, decode=1), slow) as cluster:
        work = Work(3, 12)
        alone = await work.answers(cluster, "alone")
        await settle(cluster)
        moving = cluster.dispatcher.moving
        victims: list[Core] = []  # to be killed by whoever hears that blocks are copied
        torn = 0

        def strike(receiving: Receiving) -> None:
            nonlocal torn
            moving(receiving)
            if victims and any(transfer.phase == "moving" for transfer in cluster.transfers()):
                victims.pop().kill()
                torn += 1

        monkeypatch.setattr(cluster.dispatcher, "moving", strike)
        for death in range(20):
            await cluster.client.clear_cache()
            core = named(cluster, chance.choice(["prefill-0", "decode-0"])).core
            assert core is not None
            if death % 2:
                victims.append(core)
            asked = [Asked(cluster, f"d{death}-{i}", *wanted) for i, wanted in enumerate(work.wanted)]
            if not death % 2:
                await asyncio.sleep(chance.uniform(0.0, 0.15))
                core.kill()
            for one, expected in zip(asked, alone, strict=True):
                for heard, tokens in zip(await one.ended(), expected, strict=True):
                    if heard.finished == "error":
                        assert "SIGKILL" in heard.error
                    else:
                        assert (heard.finished, heard.tokens) == ("length", tokens)
            await until(lambda number=death + 1: cluster.restarts == number)
            await until(lambda: all(worker.phase == "ready" for worker in cluster.workers))
            await settle(cluster)
        assert torn == 10


async def test_prompts_are_prefilled_elsewhere_while_somebody_is_there_for_that():
    async with running(ClusterControl(prefill=1, decode=1)) as cluster:
        assert cluster.separate
        prefill = named(cluster, "prefill-0")
        assert prefill.core is not None
        prefill.core.kill()
        await until(lambda: prefill.phase != "ready")
        assert not cluster.separate
        await until(lambda: prefill.phase == "ready")
        assert cluster.separate
        await cluster.change(ClusterControl(prefill=1, decode=1, separate=False))
        assert not cluster.separate
        await cluster.change(ClusterControl(prefill=1, decode=1))
        assert cluster.separate
        await cluster.change(ClusterControl(decode=1))
        assert prefill.phase == "draining"
        assert not cluster.separate


async def test_scaling_under_load_loses_nothing():
    work = Work(6, 40)
    async with running(ClusterControl(prefill=1, decode=1), drain_timeout=0.2) as cluster:
        alone = await work.answers(cluster)
        sizes = [(2, 2, 0), (0, 1, 1), (1, 0, 1), (1, 2, 0)]
        rounds = []
        for number, (prefill, decode, replicas) in enumerate(sizes):
            rounds.append(asyncio.create_task(work.answers(cluster, f"s{number}-")))
            await cluster.change(ClusterControl(prefill=prefill, decode=decode, replicas=replicas))
            await asyncio.sleep(0.3)
        for answers in rounds:
            assert await answers == alone
        wanted = {"prefill-0", "decode-0", "decode-1"}
        await until(lambda: {worker.name for worker in cluster.workers if worker.phase == "ready"} == wanted)
        await until(lambda: {worker.name for worker in cluster.workers} == wanted)
        await settle(cluster)
        with pytest.raises(ClusterControlError, match=r"^decode: "):
            await cluster.change(ClusterControl(prefill=3))
        assert cluster.control == ClusterControl(prefill=1, decode=2)


async def test_one_that_goes_does_not_wait_for_an_engine_that_reads_nothing():
    """What it kept for that one is computed again there."""
    work = Work(1)
    config = replace(TINY, transfer_seconds=0.2)
    async with running(ClusterControl(prefill=1, decode=1), config, drain_timeout=0.1) as cluster:
        alone = await work.answers(cluster)
        await settle(cluster)
        await cluster.client.clear_cache()
        core = named(cluster, "decode-0").core
        assert isinstance(core, CoreProcess)
        os.kill(core.process.pid, signal.SIGSTOP)
        try:
            asked = Asked(cluster, "r", *work.wanted[0])
            await until(lambda: [transfer.phase for transfer in cluster.transfers()] == ["waiting"])
            await cluster.change(ClusterControl(decode=1))
            await until(lambda: [worker.name for worker in cluster.workers] == ["decode-0"])
            assert len(cluster.transfers()) == 1, "the other has yet to say that it does not read it"
        finally:
            os.kill(core.process.pid, signal.SIGCONT)
        assert await asked.tokens() == alone[0]
        await settle(cluster)
        assert cluster.recent[-1].error


async def test_an_engine_that_comes_later_has_the_control_in_force():
    async with running(ClusterControl(replicas=1)) as cluster:
        in_force = await cluster.client.patch_control(lambda control: Control(max_num_seqs=7))
        assert in_force.control == Control(max_num_seqs=7)
        await cluster.change(ClusterControl(replicas=1, decode=1))
        decode = await until(lambda: next((one for one in cluster.workers if one.name == "decode-0"), None))
        await until(lambda: decode.phase == "ready")
        assert (await snapshot(decode)).control == Control(max_num_seqs=7)
        # Whoever hands over or takes over cannot be static: then nobody is.
        with pytest.raises(CallRefusedError, match=r"^batching"):
            await cluster.client.patch_control(lambda control: Control(batching="static"))
        for worker in cluster.workers:
            assert (await snapshot(worker)).control == Control(max_num_seqs=7)


async def test_one_that_cannot_start_says_so_by_its_name():
    with pytest.raises(GaveUp, match=r"replica-0: .*kv-memory") as raised:
        async with running(ClusterControl(replicas=1), replace(TINY, kv_memory=16)):
            pass
    assert raised.value.unusable


async def test_without_restarts_a_cluster_lasts_as_long_as_somebody_serves():
    async with running(ClusterControl(replicas=2), max_restarts=0) as cluster:
        first, second = cluster.workers
        assert first.core is not None
        assert second.core is not None
        first.core.kill()
        await until(lambda: first.phase == "dead")
        assert "SIGKILL" in first.reason
        assert cluster.missing is None
        second.core.kill()
        await until(lambda: cluster.client.death)
        with pytest.raises(EngineDiedError, match=r"replica-1: .*SIGKILL"):
            Asked(cluster, "late", [5], sampling(), 1)


async def test_requests_of_the_last_engine_end_with_what_it_died_of():
    async with running(ClusterControl(decode=1), max_restarts=0) as cluster:
        asked = [Asked(cluster, name, [5], sampling(3000), 2) for name in "ab"]
        core = named(cluster, "decode-0").core
        assert core is not None
        core.kill()
        for one in asked:
            for heard in await one.ended():
                assert heard.finished == "error"
                assert "decode-0: the engine process was killed by SIGKILL" in heard.error
        await until(lambda: cluster.client.death)


async def test_prefill_workers_serve_whole_requests_when_those_that_decode_are_gone_for_good():
    work = Work()
    async with running(ClusterControl(prefill=1, decode=1), max_restarts=0) as cluster:
        expected = await work.answers(cluster)
        assert cluster.separate
        decode = named(cluster, "decode-0")
        again = asyncio.create_task(work.answers(cluster, "again"))
        await until(lambda: cluster.transfers() or len(cluster.recent) > 3)
        assert decode.core is not None
        decode.core.kill()
        assert await again == expected
        await until(lambda: decode.phase == "dead")
        assert cluster.missing is None
        assert not cluster.separate
        assert await work.answers(cluster, "after") == expected
        await settle(cluster)


async def test_engines_that_compute_other_things_are_not_let_beside_each_other():
    def start(spec: WorkerSpec) -> CoreProcess:
        return ForkedCore(replace(spec.config, seed=7) if spec.role == "decode" else spec.config)

    with pytest.raises(GaveUp, match="cannot serve beside") as raised:
        async with running(ClusterControl(prefill=1, decode=1), start=start):
            pass
    assert raised.value.unusable


async def test_one_that_comes_later_and_is_not_let_in_is_not_waited_for():
    def start(spec: WorkerSpec) -> CoreProcess:
        return ForkedCore(replace(spec.config, seed=7) if spec.name == "decode-1" else spec.config)

    async with running(ClusterControl(decode=1), start=start) as cluster:
        await cluster.change(ClusterControl(decode=2))
        other = await until(lambda: next((one for one in cluster.workers if one.phase == "dead"), None))
        assert "cannot serve beside decode-0" in other.reason
        async with asyncio.timeout(20):
            held = Asked(cluster, "held", [5], sampling(4000), 1)
            await until(lambda: held.heard["held"].tokens)
            told = await live(cluster)
            assert [request.request for request in told.requests] == ["held"]
            cluster.client.cancel("held")
            await cluster.client.clear_cache()
            await cluster.client.patch_control(lambda control: Control(max_num_seqs=9))
            with pytest.raises(EngineDiedError):
                await snapshot(other)
        assert await Asked(cluster, "r", [5, 6], sampling(), 1).tokens()


async def test_whoever_is_wanted_again_when_its_engine_has_just_died_comes_back(monkeypatch):
    monkeypatch.setattr(cluster_module, "LOOK_SECONDS", 0.5)  # it is not seen at once that it died
    async with running(ClusterControl(replicas=2, routing="round_robin")) as cluster:
        asked = [Asked(cluster, name, [5], sampling(2000), 1) for name in "ab"]
        await cluster.change(ClusterControl(replicas=1))
        going = named(cluster, "replica-1")
        assert (going.phase, going.core is not None) == ("draining", True)
        going.core.kill()
        await until(lambda: going.is_gone)
        await cluster.change(ClusterControl(replicas=2))
        await until(lambda: [worker.phase for worker in cluster.workers] == ["ready", "ready"])
        for one in asked:
            cluster.client.cancel(one.names[0])


async def test_whoever_stayed_in_place_of_one_that_was_to_go_goes_when_that_one_stays():
    async with running(ClusterControl(decode=1)) as cluster:
        asked = Asked(cluster, "r", [5], sampling(4000), 1)
        await cluster.change(ClusterControl(replicas=1))
        await until(lambda: named(cluster, "decode-0").phase == "draining")
        await cluster.change(ClusterControl(decode=1))
        await until(lambda: [(worker.name, worker.phase) for worker in cluster.workers] == [("decode-0", "ready")])
        cluster.client.cancel("r")
        await asked.ended()


async def test_the_server_ends_when_the_last_who_could_serve_goes_and_its_successor_has_died():
    async with running(ClusterControl(decode=1), max_restarts=0) as cluster:
        asked = Asked(cluster, "r", [5], sampling(4000), 1)
        await cluster.change(ClusterControl(replicas=1))
        await until(lambda: named(cluster, "decode-0").phase == "draining")
        core = named(cluster, "replica-0").core
        assert core is not None
        core.kill()
        await until(lambda: named(cluster, "replica-0").phase == "dead")
        assert cluster.client.death is None, "the other has requests yet"
        cluster.client.cancel("r")
        assert (await asked.ended())[0].finished == "abort"
        await until(lambda: cluster.client.death)


async def test_engines_that_are_stopped_keep_nobody_else_waiting(monkeypatch):
    monkeypatch.setattr(dispatcher, "QUIET", 0.2)
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.2)
    async with running(ClusterControl(replicas=2, routing="round_robin")) as cluster:
        core = named(cluster, "replica-1").core
        assert isinstance(core, CoreProcess)
        os.kill(core.process.pid, signal.SIGSTOP)
        before = [Asked(cluster, name, [5], sampling(), 1) for name in "ab"]
        assert await before[0].tokens()
        await until(lambda: "replica-1" in cluster.dispatcher._quiet)
        after = [Asked(cluster, name, [5], sampling(), 1) for name in "cde"]
        for one in after:
            assert await one.tokens()
        held = [Asked(cluster, name, [5], sampling(4000), 1) for name in "fg"]
        await until(lambda: all(one.heard[one.names[0]].tokens for one in held))
        told = await live(cluster)
        assert [request.request for request in told.requests] == ["f", "g"], "of one engine alone: the other is stopped"
        assert (told.running, told.waiting) == (2, 0)
        for one in held:
            cluster.client.cancel(one.names[0])
        switched = Control(max_num_seqs=9)
        assert (await asyncio.wait_for(cluster.client.patch_control(lambda _: switched), 20)).control == switched
        with pytest.raises(CallUnansweredError, match=r"replica-1 has not answered for 0\.2 s"):
            await cluster.client.clear_cache()
        os.kill(core.process.pid, signal.SIGCONT)
        assert await before[1].tokens()
        assert {(await snapshot(worker)).control for worker in cluster.workers} == {switched}
        await settle(cluster)
        # What it had taken late is not what the next of its name goes on with.
        core.kill()
        stopped = named(cluster, "replica-1")
        await until(lambda: stopped.is_gone)
        await cluster.client.patch_control(lambda _: Control())
        await until(lambda: stopped.phase == "ready" and stopped.serves)
        await until(lambda: stopped.client.in_force.control == Control())


async def test_nobody_waits_for_an_engine_when_the_server_stops(monkeypatch):
    monkeypatch.setattr(dispatcher, "PATIENCE", 1e9)
    async with running(ClusterControl(replicas=1)) as cluster:
        asked = Asked(cluster, "r", [5], sampling(3000), 1)
        cluster.end()
        core = named(cluster, "replica-0").core
        assert core is not None
        core.kill()
        (heard,) = await asked.ended()
        assert heard.finished == "error"
        assert "SIGKILL" in heard.error
        assert "no engine can serve now" in heard.error


async def test_a_look_that_fails_is_not_the_last(monkeypatch, caplog):
    monkeypatch.setattr(cluster_module, "LOOK_SECONDS", 0.0)
    cluster = Cluster(TINY, ServeSettings(names=("tiny",)), start_forked, ClusterControl(replicas=1))
    looks = asyncio.Semaphore(0)

    def review() -> None:
        looks.release()
        raise KeyError("of ours")

    monkeypatch.setattr(cluster.dispatcher, "review", review)
    looking = asyncio.create_task(cluster._look())
    async with asyncio.timeout(20):
        await looks.acquire()
        await looks.acquire()
    looking.cancel()
    assert "a look at what waits failed" in caplog.text


async def test_engines_of_a_pool_are_given_the_time_that_it_says(tmp_path):
    """By their own watch and by the front's, which ends those that say nothing for longer."""
    path = tmp_path / "cluster.yaml"
    path.write_text("pools:\n  decode: {workers: 1}\n  prefill: {workers: 1, step-timeout: 900, kv-memory: 3MiB}\n")
    plan = read_cluster_file(path)
    shared = plan.pools[0].config
    cluster = Cluster(shared, ServeSettings(names=("tiny",)), start_forked, plan.control, own=plan.own)
    prefill, decode = cluster.spec("prefill-0", "prefill").config, cluster.spec("decode-0", "decode").config
    assert (prefill.step_timeout, prefill.kv_memory) == (900.0, 3 << 20)
    assert (decode.step_timeout, decode.kv_memory) == (shared.step_timeout, shared.kv_memory)
    assert silence(prefill) > 900 > silence(decode)
    assert cluster.spec("replica-0", "replica").config.step_timeout == shared.step_timeout


async def test_more_than_the_machine_has_memory_for_is_refused():
    cluster = Cluster(
        TINY, ServeSettings(names=("tiny",)), start_forked, ClusterControl(replicas=2), memory=2 * TINY.kv_memory
    )
    with pytest.raises(ClusterControlError, match=r"^replicas: 3 engines with 0.0 GiB each"):
        await cluster.change(ClusterControl(replicas=3))
    assert cluster.control.replicas == 2


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"control": Control(batching="static")}, "where batching is static: KV is handed over only where it is cont"),
        ({"control": Control(allocation="reserved")}, "where allocation is reserved: KV is handed over only where"),
        ({"device": "cuda"}, "where device is cuda: KV is handed over only where it is cpu"),
    ],
)
async def test_pools_are_refused_where_no_kv_could_be_handed_over(settings, told):
    config = replace(TINY, **settings)
    cluster = Cluster(config, ServeSettings(names=("tiny",)), start_forked, ClusterControl(replicas=2))
    with pytest.raises(ClusterControlError, match=f"^decode: must be 0 {told}"):
        await cluster.change(ClusterControl(replicas=2, decode=1))
    with pytest.raises(ClusterControlError, match=f"^prefill: must be 0 {told}"):
        await cluster.change(ClusterControl(replicas=2, prefill=1))
    assert cluster.control == ClusterControl(replicas=2)


async def test_what_was_switched_since_the_start_counts_and_what_a_device_came_to():
    config = replace(TINY, device="auto")
    cluster = Cluster(config, ServeSettings(names=("tiny",)), start_forked, ClusterControl(replicas=2))
    await cluster.client.patch_control(lambda control: replace(control, batching="static"))
    with pytest.raises(ClusterControlError, match=r"^prefill: must be 0 where batching is static"):
        await cluster.change(ClusterControl(replicas=2, prefill=1))
    await cluster.client.patch_control(lambda control: replace(control, batching="continuous"))

    def has(name, role, device):
        worker = Worker(cluster.spec(name, role), cluster.settings, start_forked, cluster)
        worker.service.loaded = cast("Loaded", SimpleNamespace(info=SimpleNamespace(device=device)))
        cluster._workers[name] = worker

    has("replica-0", "replica", "cuda:0")
    with pytest.raises(ClusterControlError, match=r"^prefill: must be 0 where device is cuda"):
        await cluster.change(ClusterControl(replicas=2, prefill=1))
    assert cluster._device("decode") == "cuda"
    has("decode-0", "decode", "cpu")  # on another host: replicas may be where GPUs are
    assert cluster._device("decode") == "cpu" or cluster._device("decode") == "auto"
    assert cluster._device("replica") == "cuda"


async def test_no_engine_is_switched_to_what_one_that_is_on_its_way_could_not_take():
    async with running(ClusterControl(replicas=1)) as cluster:
        switching = asyncio.create_task(
            cluster.client.patch_control(lambda control: replace(control, batching="static"))
        )
        while not cluster.client.patching.locked():
            await asyncio.sleep(0)
        with pytest.raises(ClusterControlError, match=r"^decode: must be 0 where batching is static"):
            await cluster.change(ClusterControl(replicas=1, decode=1))  # that came while they were being switched
        await switching
        await cluster.client.patch_control(lambda control: replace(control, batching="continuous"))
        await cluster.change(ClusterControl(replicas=1, decode=1))
        with pytest.raises(CallRefusedError, match="batching must be 'continuous' where KV is handed over"):
            await cluster.client.patch_control(lambda control: replace(control, batching="static"))
        await until(lambda: [worker.phase for worker in cluster.workers] == ["ready", "ready"])
        assert {worker.client.in_force.control.batching for worker in cluster.workers} == {"continuous"}
