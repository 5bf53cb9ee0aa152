"""A worker's counts are its engine's own: a snapshot is the oracle, and hand-made records tell of transfers."""

from __future__ import annotations

import random
from itertools import count

import msgspec
import pytest

from engine.cluster.protocol import StepTimes, TransferTotals, WorkerState
from engine.cluster.tally import WINDOW, WorkerTally
from engine.protocol import HAS_ENDED, Control, Left, Offered, Receiving, Record, Snapshot
from tests.engine.cluster.records import arrived, joined, record, transferred
from tests.tui.simulated import simulate

BARE = WorkerState("decode-0", "decode", "ready", "/workers/decode-0", "here")
WRONG = "nobody came for it"


def statuses(tally: WorkerTally) -> dict[str, int]:
    told = tally.told(BARE)
    found = {name: getattr(told, name) for name in ("waiting", "running", "sending", "receiving")}
    return {name: number for name, number in found.items() if number}


def agrees(tally: WorkerTally, snapshot: Snapshot) -> None:
    told, engine = tally.told(BARE), snapshot.engine
    for status in ("running", "waiting", "sending", "receiving"):
        assert getattr(told, status) == sum(state.status == status for state in snapshot.requests), status
    assert told.seq == snapshot.seq
    assert told.held_blocks == len({block for state in snapshot.requests for block in state.table})
    assert told.cached_blocks == snapshot.pool.cached
    assert engine.num_blocks - snapshot.pool.free == told.held_blocks + told.cached_blocks
    assert told.prefill_tokens == snapshot.counters.prefill_tokens
    assert told.decode_tokens == snapshot.counters.decode_tokens
    assert (told.looked_up_tokens, told.found_tokens) == (
        snapshot.sharing.looked_up_tokens,
        snapshot.sharing.found_tokens,
    )


@pytest.mark.parametrize("lost", [range(0), range(101, 131)])
def test_counts_are_the_engines_own_also_after_records_were_lost(lost: range) -> None:
    stream = simulate(
        400,
        {0: Control(batching="static", allocation="reserved"), 90: Control(preempt="swap"), 250: Control()},
        blocks=300,
        max_model_len=1280,
        rate=6.0,
        system_tokens=200,
        aborts=0.05,
        host_blocks=80,
        follow=0.3,
        forked=0.2,
        snapshot_every=10,
    )
    tally, compared, decodes, mixed = WorkerTally(), 0, 0, 0
    for item in stream:
        if isinstance(item, Snapshot):
            if tally.lost:
                tally.resume(item)
            if item.seq not in lost:
                agrees(tally, item)
                compared += 1
        elif item.seq not in lost:
            was_lost = tally.lost
            tally.take(item, separate=False)
            assert tally.lost == (was_lost or item.seq == lost.stop)
            if not tally.lost:
                kinds = {row.kind for row in item.rows}
                decodes += "decode" in kinds
                mixed += {"decode", "prefill"} <= kinds
    told = tally.told(BARE)
    assert compared > 35
    assert told.prefill_tokens > 1000 < told.decode_tokens
    assert told.found_tokens
    assert told.colocated.mixed.steps == mixed > 30
    assert told.colocated.alone.steps == decodes - mixed > 30
    assert told.separated.mixed.steps == told.separated.alone.steps == 0


def test_what_a_snapshot_told_already_is_not_counted_again() -> None:
    *_, one, snapshot = simulate(10, snapshot_every=10)
    assert isinstance(snapshot, Snapshot)
    tally = WorkerTally()
    tally.resume(snapshot)
    before = tally.told(BARE)
    assert isinstance(one, Record)
    tally.take(one, separate=False)
    assert tally.told(BARE) == before
    assert not tally.lost


def test_a_request_that_is_handed_over_is_sending_until_it_is_gone() -> None:
    tally = WorkerTally()
    tally.take(record(1, "prefill", arrived=arrived("a", "b"), joined=(joined("a"), joined("b"))), separate=True)
    offers = tuple(Offered(one, f"lease-{one}", 40, 3, 300, 9.0) for one in "ab")
    tally.take(record(2, "prefill", offered=offers), separate=True)
    assert statuses(tally) == {"sending": 2}
    gone = (Left("a", "handed_over"),)
    tally.take(record(3, transferred=(transferred("a", "sent"),), left=gone), separate=True)
    assert statuses(tally) == {"sending": 1}
    gone = (Left("b", "handed_over"),)
    tally.take(record(4, transferred=(transferred("b", "sent", error=WRONG),), left=gone), separate=True)
    assert statuses(tally) == {}
    told = tally.told(BARE)
    assert told.sent == TransferTotals(requests=1, blocks=3, nbytes=300, seconds=0.5, expired=1)
    assert told.received == TransferTotals()


def test_a_request_whose_blocks_come_is_receiving_and_then_runs_or_waits() -> None:
    tally = WorkerTally()
    tally.take(record(1, arrived=arrived("a", "b", "c")), separate=True)
    taking = tuple(Receiving(one, f"lease-{one}", "prefill-0", 0, 40, 3, 300) for one in "abc")
    tally.take(record(2, receiving=taking), separate=True)
    assert statuses(tally) == {"receiving": 3}
    done = (transferred("a", "received", 0.25), transferred("b", "received", 0.5, error=WRONG))
    came = (joined("a", received_tokens=40, received_blocks=3),)
    tally.take(record(3, "decode", transferred=done, joined=came), separate=True)
    assert statuses(tally) == {"running": 1, "waiting": 1, "receiving": 1}
    gone = (transferred("c", "received", error=HAS_ENDED),)
    tally.take(record(4, transferred=gone, left=(Left("c", "abort"),)), separate=True)
    assert statuses(tally) == {"running": 1, "waiting": 1}
    told = tally.told(BARE)
    assert told.received == TransferTotals(requests=1, blocks=3, nbytes=300, seconds=0.25, failed=1)
    assert told.received_tokens == 40


def test_steps_are_told_apart_by_what_ran_beside_decodes_and_by_how_prompts_were_served() -> None:
    tally, seq = WorkerTally(), count(1)
    for i in range(100):
        tally.take(record(next(seq), "decode", "decode", seconds=(i + 1) / 1000), separate=True)
    tally.take(record(next(seq), "decode", "prefill", seconds=0.5), separate=False)
    tally.take(record(next(seq), "prefill", "fork", seconds=9.0), separate=False)  # of no decode
    tally.take(record(next(seq)), separate=False)
    told = tally.told(BARE)
    assert told.separated.alone == StepTimes(100, pytest.approx(5.05), p50=0.050, p99=0.099, max=0.100)
    assert told.separated.mixed == told.colocated.alone == StepTimes()
    assert told.colocated.mixed == StepTimes(1, 0.5, 0.5, 0.5, 0.5)


def test_percentiles_are_of_the_newest_steps_and_totals_of_all() -> None:
    tally = WorkerTally()
    for seq in range(1, WINDOW + 11):
        tally.take(record(seq, "decode", seconds=1.0 if seq <= 10 else 0.001), separate=False)
    told = tally.told(BARE).colocated.alone
    assert (told.steps, told.p99, told.max) == (WINDOW + 10, 0.001, 0.001)
    assert told.seconds == pytest.approx(10 + WINDOW / 1000)


def test_percentiles_are_of_the_window_as_if_it_were_sorted_anew() -> None:
    chance, tally, seen = random.Random(5), WorkerTally(), []
    for seq in range(1, WINDOW + 300):
        seen.append(chance.choice([chance.random(), 0.5]))  # many alike too
        tally.take(record(seq, "decode", seconds=seen[-1]), separate=True)
        if seq % 97 == 0:
            told, window = tally.told(BARE).separated.alone, sorted(seen[-WINDOW:])
            assert (told.p50, told.p99, told.max) == (
                window[-(-len(window) // 2) - 1],
                window[-(-len(window) * 99 // 100) - 1],
                window[-1],
            )


def test_another_engine_under_the_name_begins_anew_but_times_and_transfers_go_on() -> None:
    tally = WorkerTally()
    told = {"arrived": arrived("a"), "joined": (joined("a"),), "transferred": (transferred("b", "sent"),)}
    tally.take(record(1, "decode", "prefill", seconds=0.5, **told), separate=False)
    before = tally.told(BARE)
    assert tally.told_of_name(BARE) == msgspec.structs.replace(BARE, colocated=before.colocated, sent=before.sent)
    tally.begin_again()
    assert tally.told(BARE) == tally.told_of_name(BARE)
    tally.take(record(1, "decode", seconds=0.25), separate=False)
    after = tally.told(BARE)
    assert (after.seq, after.running, after.decode_tokens) == (1, 0, 1)
    assert (after.colocated.mixed.steps, after.colocated.alone.steps) == (1, 1)
