"""The fold is the engine: state, blocks, owners and ordinals, over long random load."""

from __future__ import annotations

import random
from copy import deepcopy

import msgspec
import numpy as np
import pytest

from engine.block_pool import BlockPool
from engine.core import EngineCore
from engine.protocol import Control, EngineInfo, Record, Snapshot, decode_item, encode
from engine.sampling_params import SamplingParams
from tui.block_columns import CACHED, FREE, UNKNOWN
from tui.checks import check_record, check_snapshot
from tui.fold import EngineFold, MissingRecords


def controls_of(chance):
    """Any two axes, small and large batches, with and without cache."""
    return Control(
        batching=chance.choice(["static", "continuous"]),
        allocation=chance.choice(["paged", "reserved"]),
        reserved_fit=chance.choice(["first", "best"]),
        prefix_cache=chance.random() < 0.8,
        chunked_prefill=chance.random() < 0.8,
        max_num_seqs=chance.choice([4, 12, 24]),
        scheduling_policy=chance.choice(["fcfs", "priority", "shortest_prefill"]),
        preempt=chance.choice(["recompute", "swap", "auto"]),
    )


def test_a_fold_equals_the_engines_snapshot_at_every_100th_of_10_000_steps(simulated):
    chance = random.Random(11)
    stream = simulated.simulate(
        10_000,
        {at: controls_of(chance) for at in range(0, 10_000, 75)},
        blocks=300,
        max_model_len=1280,
        rate=6.0,
        system_tokens=200,
        seed=11,
        aborts=0.04,
        host_blocks=80,
        follow=0.3,
        forked=0.2,
        snapshot_every=100,
        check_invariants=False,
    )
    first = next(stream)
    fold, compared = EngineFold(first), 0
    for item in stream:
        if isinstance(item, Record):
            check_record(item, fold)  # nothing that a real engine does is doubted
            fold.apply(item)
        else:
            check_snapshot(item)
            assert fold.to_snapshot() == item
            assert_owners(fold)
            compared += 1
    assert (fold.seq, compared) == (10_000, 100)
    done = fold.counters
    assert min(done.forks, done.preemptions, done.swap_preemptions, done.aborted, done.copied_blocks) > 0


def assert_owners(fold):
    """Of every block that is held, one that holds it; parents are what comes before it in a table."""
    holders, before = {}, {}
    for name, state in fold.requests.items():
        for at, block in enumerate(state.table):
            holders.setdefault(block, set()).add(fold.ordinals[name])
            before[block] = state.table[at - 1] if at else UNKNOWN
    for block, ordinals in holders.items():
        assert int(fold.blocks.owner[block]) in ordinals
        assert int(fold.blocks.parent[block]) == before[block]
    assert len(set(fold.ordinals.values())) == len(fold.ordinals) == len(fold.requests)


def test_what_is_written_and_read_again_folds_to_the_same(recording):
    one, other = EngineFold(recording[0]), EngineFold(decode_item(encode(recording[0])))
    for record in recording[1:]:
        one.apply(record)
        other.apply(decode_item(encode(record)))
    assert one.to_snapshot() == other.to_snapshot()
    assert one.ordinals == other.ordinals


def test_a_fold_that_begins_in_the_middle_has_the_same_state(recording):
    one = EngineFold(recording[0])
    for record in recording[1:90]:
        one.apply(record)
    other = EngineFold(one.to_snapshot())
    for record in recording[90:]:
        one.apply(record)
        other.apply(record)
    assert other.to_snapshot() == one.to_snapshot()
    held = one.blocks.references > 0
    assert np.isnan(other.blocks.since[held]).sum() >= np.isnan(one.blocks.since[held]).sum()


def test_only_the_very_next_record_is_taken(recording):
    fold = EngineFold(recording[0])
    with pytest.raises(MissingRecords, match="record 2 does not follow 0"):
        fold.apply(recording[2])
    assert isinstance(fold.to_snapshot(), Snapshot)
    assert fold.to_snapshot() == recording[0]


def test_what_is_touched_is_all_that_changed(recording):
    fold = EngineFold(recording[0])
    fold.blocks.touched[:] = False
    for record in recording[1:]:
        before = deepcopy(fold.blocks)
        fold.blocks.touched[:] = False
        fold.apply(record)
        for name in (slot for slot in before.__slots__ if slot != "touched"):
            old, new = getattr(before, name), getattr(fold.blocks, name)
            differs = ~((old == new) | (np.isnan(old) & np.isnan(new))) if name == "since" else old != new
            assert not (differs & ~fold.blocks.touched).any(), name


def test_requests_that_come_together_have_ordinals_in_their_order(recording):
    fold = EngineFold(recording[0])
    for record in recording[1:]:
        seen = fold.seen
        fold.apply(record)
        gone = {left.request for left in record.left}
        for at, arrived in enumerate(record.arrived):
            assert arrived.request in gone or fold.ordinals[arrived.request] == seen + at
    assert msgspec.structs.astuple(fold.pool) == fold.blocks.counts()


@pytest.fixture
def taken_now(monkeypatch):
    """The blocks that the engine's pool has handed out empty, whoever had them before; to be cleared."""
    taken, take = set(), BlockPool._take

    def noting(pool, block):
        taken.add(block)
        return take(pool, block)

    monkeypatch.setattr(BlockPool, "_take", noting)
    return taken


def test_a_block_that_was_taken_empty_has_been_found_by_nobody_and_is_held_since_then(simulated, taken_now):
    chance = random.Random(5)
    stream = simulated.simulate(
        3_000,
        {at: controls_of(chance) for at in range(0, 3_000, 75)},
        blocks=200,
        max_model_len=1280,
        rate=6.0,
        system_tokens=200,
        seed=5,
        aborts=0.04,
        host_blocks=60,
        follow=0.3,
        forked=0.2,
        check_invariants=False,
    )
    fold = EngineFold(next(stream))
    evicted = handed_over = found = 0
    for record in stream:
        before = deepcopy(fold.blocks)
        fold.apply(record)
        taken = np.array(sorted(taken_now), np.int64)
        taken_now.clear()
        assert not fold.blocks.hits[taken].any()
        kept = taken[fold.blocks.state[taken] != FREE]
        assert (fold.blocks.since[kept] == record.time).all()
        evicted += int((before.hits[taken] > 0).sum())
        handed_over += int((before.references[kept] > 0).sum())
        others = fold.blocks.state != FREE
        others[taken] = False
        assert (fold.blocks.hits[others] >= before.hits[others]).all()
        found += int((fold.blocks.hits[others] > before.hits[others]).sum())
    assert min(evicted, handed_over, found) > 20


def test_nothing_is_known_of_a_cached_block_that_a_request_used_within_one_record(simulated):
    clock = simulated._Clock()
    info = EngineInfo("m", "float32", "cpu", 4, 8, 1, 32, "0")
    core = EngineCore(simulated._Runner(clock), info, Control(), clock=clock, check_invariants=True)
    fold = EngineFold(core.snapshot())

    def ask(name, prompt):
        core.add(name, prompt, SamplingParams(max_tokens=1))
        while (record := core.step()[1]) is not None:
            fold.apply(record)

    core.add("a", [1] * 16, SamplingParams(max_tokens=8))
    core.add("b", [1] * 16, SamplingParams(max_tokens=8))
    while (record := core.step()[1]) is not None:
        fold.apply(record)
    told = np.flatnonzero((fold.blocks.state == CACHED) & (fold.blocks.owner != UNKNOWN))
    assert len(told) >= 4
    ask("c", [2] * 31)  # takes all there are, and has left with the record that tells of it
    assert fold.to_snapshot() == core.snapshot()
    passed = told[fold.blocks.state[told] == CACHED]
    assert len(passed) >= 4
    assert (fold.blocks.parent[passed] == UNKNOWN).all()
    assert (fold.blocks.owner[passed] == UNKNOWN).all()
    assert not fold.blocks.hits[passed].any()
    assert (fold.blocks.since[passed] == fold.time).all()
