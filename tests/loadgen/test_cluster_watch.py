"""A cluster is followed worker by worker, also through those that come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from golden import GoldenServer, answer
from golden_cluster import GoldenCluster, state, worker
from steps import record, row, snapshot

from engine.cluster.protocol import Interference, RouterState, StepTimes, TransferTotals, WorkerPhase
from engine.protocol import Arrived, Counters, Joined, Record, SharingLedger, Snapshot, Transferred
from loadgen import cluster_calls, cluster_watch
from loadgen.client import open_http
from loadgen.cluster_calls import read_cluster, set_cluster
from loadgen.cluster_watch import ClusterWatch
from loadgen.engine_watch import EngineError


def prefill(seq: int) -> Record:
    sent = Transferred("r", f"l{seq}", "sent", 4, 4_000, 0.01 * seq)
    return record(seq, float(seq), seconds=0.2, rows=(row("prefill", 30),), transferred=(sent,))


def decode(seq: int) -> Record:
    arrived = Arrived("r", 30, 8, 0.0, generated_tokens=1)
    joined = Joined("r", 16, 31, "paged", False, received_tokens=14, received_blocks=1)
    received = Transferred("r", f"l{seq}", "received", 1, 1_000, 0.002)
    more = {"arrived": (arrived,), "joined": (joined,), "transferred": (received,)} if seq == 1 else {}
    return record(seq, float(seq), seconds=0.01, rows=(row("decode", 1),), **more)


class Counted(GoldenCluster):
    """Its engines' totals are those of their records."""

    def last(self, name: str) -> Snapshot:
        records = self.records[name]
        kinds = [one.kind for told in records for one in told.rows]
        counters = Counters(
            steps=len(records), prefill_tokens=30 * kinds.count("prefill"), decode_tokens=kinds.count("decode")
        )
        looked_up = 31 if name.startswith("decode") else 30
        sharing = SharingLedger(looked_up_tokens=looked_up, found_tokens=16)
        return snapshot(len(records), float(len(records)), counters=counters, sharing=sharing)


def two(**changes: Any) -> Counted:
    records = {"prefill-0": [prefill(1), prefill(2)], "decode-0": [decode(1), decode(2), decode(3)]}
    return Counted(state(worker("prefill-0"), worker("decode-0"), **changes), records)


async def watched(server: GoldenCluster) -> ClusterWatch:
    first = await read_cluster(http := open_http(), server.url)
    assert first is not None
    return await ClusterWatch.begin(http, server.url, first)


async def finished(watch: ClusterWatch) -> dict[str, Any]:
    try:
        return await watch.finish()
    finally:
        await watch.http.close()


async def test_each_worker_each_pool_and_all_together() -> None:
    async with two() as server:
        told = await finished(await watched(server))
    cluster = told["cluster"]
    assert (told["steps"], told["prefill_tokens"], told["decode_tokens"]) == (5, 60, 3)
    assert (cluster["workers"]["decode-0"]["decode_tokens"], cluster["pools"]["prefill"]["prefill_tokens"]) == (3, 60)
    assert cluster["imbalance"] == pytest.approx(60 / 31.5)
    assert cluster["pools"]["decode"]["imbalance"] is None  # of one there is none
    assert (told["sent_requests"], told["sent_bytes"], told["received_requests"]) == (2, 8_000, 1)
    assert told["p50_sent_ms"] == pytest.approx(15)
    assert cluster["workers"]["prefill-0"]["p50_sent_ms"] == pytest.approx(15)
    assert (told["decode_steps_alone"], told["p50_decode_step_alone_ms"]) == (3, pytest.approx(10))
    assert told["model"] == "m"
    assert "mean_internal_waste_share" not in told  # waste is of one pool of blocks


async def test_what_was_looked_up_again_is_no_hit_of_the_cluster() -> None:
    async with two() as server:
        told = await finished(await watched(server))
    assert (told["found_tokens"], told["looked_up_tokens"]) == (32, 61)
    assert told["hit_rate"] == pytest.approx(16 / 30)
    assert told["tokens_not_recomputed"] == 16


async def test_the_routers_counts_are_of_the_run() -> None:
    before = RouterState(decisions=10, decision_seconds=1.0, handed_over=4, recovered=1)
    async with two(router=before) as server:
        watch = await watched(server)
        after = RouterState(decisions=14, decision_seconds=1.0004, handed_over=6, recovered=1)
        server.now = msgspec.structs.replace(server.now, router=after)
        router = (await finished(watch))["cluster"]["router"]
    assert (router["decisions"], router["handed_over"], router["recovered"]) == (4, 2, 0)
    assert router["mean_decision_us"] == pytest.approx(100)


async def test_a_worker_that_comes_is_read_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "EVERY", 0.01)
    async with two() as server:
        watch = await watched(server)
        server.records["decode-1"] = [decode(1), decode(2)]
        server.read.add("decode-1")  # it has done all that when it is first seen
        server.now = state(*server.now.workers, worker("decode-1"))
        while "decode-1" not in server.asked_from:
            await asyncio.sleep(0.01)
        told = await finished(watch)
    assert server.asked_from == {"prefill-0": 1, "decode-0": 1, "decode-1": 1}
    assert told["cluster"]["workers"]["decode-1"]["decode_tokens"] == 2
    assert (told["decode_tokens"], told["cluster"]["pools"]["decode"]["workers"]) == (5, 2)
    assert told["cluster"]["pools"]["decode"]["imbalance"] == pytest.approx(3 / 2.5)


@pytest.mark.parametrize("phase", ["starting", "dead"])
async def test_a_worker_that_was_not_ready_is_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch, phase: WorkerPhase
) -> None:
    monkeypatch.setattr(cluster_watch, "EVERY", 0.01)
    async with two() as server:
        ready = server.now
        server.now = state(worker("prefill-0"), worker("decode-0", phase=phase))
        watch = await watched(server)
        server.read.add("decode-0")  # it has done all that when it is first seen
        server.now = ready
        while "decode-0" not in server.asked_from:
            await asyncio.sleep(0.01)
        told = await finished(watch)
    assert told["cluster"]["workers"]["decode-0"]["decode_tokens"] == 3
    assert told["decode_tokens"] == 3


async def test_a_worker_that_is_there_and_tells_nothing_is_no_worker_that_is_gone() -> None:
    async with two() as server:
        watch = await watched(server)
        while watch._streams["decode-0"].ledger.next_seq < 4:
            await asyncio.sleep(0.01)
        del server.records["decode-0"]
        with pytest.raises(EngineError, match="/workers/decode-0/engine/snapshot is gone"):
            await finished(watch)


async def test_all_of_a_large_cluster_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not ready yet count too: they could not be followed later."""
    monkeypatch.setattr(cluster_watch, "MOST_STREAMS", 1)
    async with two() as server:
        server.now = state(worker("prefill-0"), worker("decode-0", phase="starting"))
        await finished(await watched(server))
    assert not server.asked_from


async def test_of_a_worker_that_goes_is_told_what_came() -> None:
    async with two() as server:
        watch = await watched(server)
        while watch._streams["decode-0"].ledger.next_seq < 4:
            await asyncio.sleep(0.01)
        del server.records["decode-0"]
        server.now = state(worker("prefill-0"))
        told = await finished(watch)
    assert told["cluster"]["workers"]["decode-0"]["decode_tokens"] == 3
    assert told["decode_tokens"] == 3


async def test_without_streams_the_totals_that_the_cluster_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "MOST_STREAMS", 1)
    sent = TransferTotals(3, 30, 3_000, 0.3, expired=1)
    async with two() as server:
        first = (
            worker("prefill-0", prefill_tokens=100, sent=sent),
            worker("decode-0", decode_tokens=50, separated=Interference(alone=StepTimes(10, 1.0))),
        )
        server.now = state(*first)
        watch = await watched(server)
        server.now = state(
            worker("prefill-0", prefill_tokens=160, sent=msgspec.structs.replace(sent, requests=5, expired=2)),
            worker("decode-0", decode_tokens=53, separated=Interference(alone=StepTimes(13, 1.03))),
        )
        told = await finished(watch)
    assert not server.asked_from
    assert (told["prefill_tokens"], told["decode_tokens"]) == (60, 3)
    assert (told["sent_requests"], told["sent_expired"], told["decode_steps_alone"]) == (2, 1, 3)
    one = told["cluster"]["workers"]["decode-0"]
    assert (one["streamed"], one["mean_decode_step_alone_ms"]) == (False, pytest.approx(10))
    assert "p99_decode_step_alone_ms" not in one


async def test_a_restart_without_a_stream_leaves_no_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_watch, "MOST_STREAMS", 1)
    async with two() as server:
        watch = await watched(server)
        server.now = state(worker("prefill-0", prefill_tokens=60), worker("decode-0", decode_tokens=3, restarts=1))
        told = await finished(watch)
    assert told["cluster"]["workers"]["decode-0"]["decode_tokens"] is None
    assert (told["decode_tokens"], told["cluster"]["imbalance"]) == (None, None)


async def test_a_server_that_is_no_cluster() -> None:
    async with GoldenServer(lambda _: answer(["x"])) as server, open_http() as http:
        assert await read_cluster(http, server.url) is None
        with pytest.raises(EngineError, match=r"answered 404: only a cluster has pools; `paged-engine serve --prefill"):
            await set_cluster(http, server.url, {"separate": True})


async def test_the_key_goes_to_the_cluster_alone() -> None:
    """An address that a path leads away from would get the admin key."""
    server = GoldenCluster(state(worker("prefill-0", path="@elsewhere:80/x")), {})
    async with server, open_http() as http:
        with pytest.raises(EngineError, match="workers: prefill-0: path: must begin with /, got '@elsewhere:80/x'"):
            await read_cluster(http, server.url)


async def test_a_change_must_hold() -> None:
    async with two() as server, open_http() as http:
        changed = await set_cluster(http, server.url, {"separate": False})
        assert (changed.control.separate, server.patched) == (False, [{"separate": False}])
        server.obeys = False
        with pytest.raises(
            EngineError, match=r"asked for \{'separate': True\}, but the control is \{'separate': False"
        ):
            await set_cluster(http, server.url, {"separate": True})


async def test_a_cluster_whose_workers_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_calls, "STEADY_TIMEOUT", 0.2)
    server = GoldenCluster(state(worker("prefill-0"), worker("decode-0", phase="starting")), {})
    async with server, open_http() as http:
        with pytest.raises(EngineError, match=r"after 0\.2 s not all is there: 0 of 1 decode workers are ready"):
            await set_cluster(http, server.url, {"separate": True})
