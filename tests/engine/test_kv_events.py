from __future__ import annotations

import msgspec
import pytest

from engine.block_hash import chain_hash, root_hash
from engine.core import EngineCore
from engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvBatch, KvEvent, KvJournal, event_hash
from engine.protocol import Control
from engine.sampling_params import SchedulingParams
from tests.engine.kv_fold import KvFold
from tests.engine.mirror import greedy, mirror_core

A, B, C, D = (bytes([number] * 8) + bytes(8) for number in (1, 2, 3, 4))


def run(core: EngineCore) -> tuple[KvEvent, ...]:
    """To the end of all requests; the events of all steps."""
    events: list[KvEvent] = []
    while core.has_work:
        core.step()
        events += core.drain_kv_events()
    return tuple(events)


def stored(hashes: tuple[bytes, ...], parent: bytes | None, tokens: tuple[int, ...]) -> BlockStored:
    before = None if parent is None else event_hash(parent)
    return BlockStored(tuple(map(event_hash, hashes)), before, tokens, 2, None, "GPU", None)


def test_blocks_that_follow_each_other_are_one_event_and_others_are_not():
    journal = KvJournal(2)
    journal.stored(A, None, [1, 2])
    journal.stored(B, A, [3, 4])
    journal.stored(D, A, [5, 6])
    journal.stored(C, None, [7, 8])
    assert journal.drain() == (stored((A, B), None, (1, 2, 3, 4)), stored((D,), A, (5, 6)), stored((C,), None, (7, 8)))
    assert journal.drain() == ()


def test_events_keep_the_order_in_which_things_happened():
    journal = KvJournal(2)
    journal.removed(A)
    journal.removed(B)
    journal.stored(A, None, [1, 2])
    journal.removed(A)
    journal.stored(B, A, [3, 4])
    journal.cleared()
    assert journal.drain() == (
        BlockRemoved((event_hash(A), event_hash(B)), "GPU"),
        stored((A,), None, (1, 2)),
        BlockRemoved((event_hash(A),), "GPU"),
        stored((B,), A, (3, 4)),
        AllBlocksCleared(),
    )


def test_a_run_does_not_go_on_in_the_next_step():
    journal = KvJournal(2)
    journal.stored(A, None, [1, 2])
    journal.drain()
    journal.stored(B, A, [3, 4])
    assert journal.drain() == (stored((B,), A, (3, 4)),)


def test_events_are_maps_with_a_type_in_a_batch_that_is_an_array():
    batch = KvBatch(5.0, (stored((A, B), None, (1, 2, 3, 4)), BlockRemoved((7,), "GPU"), AllBlocksCleared()))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch)) == [
        5.0,
        [
            {
                "type": "BlockStored",
                "block_hashes": [0x0101010101010101, 0x0202020202020202],
                "parent_block_hash": None,
                "token_ids": [1, 2, 3, 4],
                "block_size": 2,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
            },
            {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"},
            {"type": "AllBlocksCleared"},
        ],
        0,
    ]


def test_a_prompt_is_stored_in_one_event_and_its_answer_block_by_block():
    core = mirror_core(kv_events=True)
    core.add("a", list(range(9)), greedy(4, ignore_eos=True))
    core.step()
    first = chain_hash(root_hash(None), range(4))
    second = chain_hash(first, range(4, 8))
    (event,) = core.drain_kv_events()
    assert event == msgspec.structs.replace(stored((first, second), None, tuple(range(8))), block_size=4)
    (event,) = run(core)
    assert isinstance(event, BlockStored)
    assert event.parent_block_hash == event_hash(second)
    assert event.token_ids[0] == 8


def test_a_hash_of_two_equal_blocks_is_stored_once_and_removed_with_the_last():
    core = mirror_core(num_blocks=8, max_model_len=32, kv_events=True)
    fold = KvFold()
    core.add("a", [1] * 9, greedy(1))
    core.add("b", [1] * 9, greedy(1, prompt_logprobs=0))  # computes all of its prompt
    fold.take(run(core))
    fold.check(core)
    assert fold.stored == 2
    assert [len(blocks) for blocks in core.pool.cache.by_hash.values()] == [2, 2]
    core.add("flood", [2] * 24, greedy(1))  # takes the four blocks that are free, and two more
    fold.take(run(core))
    fold.check(core)
    assert sorted(len(blocks) for blocks in core.pool.cache.by_hash.values())[:2] == [1, 1]
    assert fold.removed == 0
    core.add("flood on", [3] * 28, greedy(1))
    fold.take(run(core))
    fold.check(core)
    assert fold.removed > 0


def test_equal_prompts_of_different_salts_are_different_blocks_and_the_salt_is_not_told():
    core = mirror_core(kv_events=True)
    for name, salt in (("none", None), ("x", "x"), ("y", "y"), ("empty", "")):
        core.add(name, [1] * 9, greedy(1), SchedulingParams(cache_salt=salt))
    events = run(core)
    hashes = [event.block_hashes for event in events if isinstance(event, BlockStored)]
    assert len({block_hash for run_hashes in hashes for block_hash in run_hashes}) == 8
    keys = [event.extra_keys for event in events if isinstance(event, BlockStored)]
    assert keys == [None, *(((root_hash(salt).hex(),), None) for salt in ("x", "y", ""))]


def test_tokens_are_told_where_only_whole_blocks_are_found():
    core = mirror_core(kv_events=True, partial_hits=False)
    core.add("a", list(range(9)), greedy(1))
    (event,) = run(core)
    assert isinstance(event, BlockStored)
    assert event.token_ids == tuple(range(8))


def test_to_clear_the_cache_is_told_even_of_an_empty_one():
    """Whoever lost messages knows then where it stands."""
    core = mirror_core(kv_events=True)
    core.clear_cache()
    assert core.drain_kv_events() == (AllBlocksCleared(),)


def test_who_was_running_when_the_cache_was_cleared_goes_on_from_a_parent_that_is_gone():
    core = mirror_core(kv_events=True)
    core.add("a", list(range(8)), greedy(6, ignore_eos=True))
    core.step()
    fold = KvFold()
    core.clear_cache()
    fold.take(core.drain_kv_events())
    fold.check(core)
    assert not fold.blocks
    fold.take(run(core))
    fold.check(core)
    ((_, resident),) = fold.blocks.items()
    assert resident.parent is not None
    assert resident.parent not in fold.blocks


def test_nothing_is_kept_where_nobody_asked():
    core = mirror_core()
    core.add("a", list(range(9)), greedy(1))
    run(core)
    core.clear_cache()
    assert core.pool.kv_journal is None
    assert core.drain_kv_events() == ()


@pytest.mark.parametrize(
    "control",
    [Control(prefix_cache=False), Control(allocation="reserved"), Control(batching="static"), Control(preempt="swap")],
    ids=["off", "reserved", "static", "swap"],
)
def test_under_each_control_events_equal_the_cache_after_every_step(control):
    core = mirror_core(num_blocks=20, max_model_len=32, control=control, num_host_blocks=40, kv_events=True)
    fold = KvFold()
    for round_ in range(3):
        for index in range(8):
            prompt = [*range(4 * (index % 3)), 20 + index + 8 * round_, *range(5)]
            core.add(f"{round_}.{index}", prompt, greedy(12, ignore_eos=True))
        while core.has_work:
            core.step()
            fold.take(core.drain_kv_events())
            fold.check(core)
    told = (fold.stored > 0, fold.removed > 0)
    assert told == ((False, False) if control.allocation == "reserved" or not control.prefix_cache else (True, True))
