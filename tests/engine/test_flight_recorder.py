"""What is kept is bounded, and always goes on from a snapshot; `test_core_loop` folds it."""

from __future__ import annotations

import msgspec

from engine.flight_recorder import MAX_BYTES, MAX_RECORDS, FlightRecorder
from engine.protocol import Record, Snapshot, decode_item, encode
from tests.engine.mirror import greedy, mirror_core

SNAPSHOT = mirror_core().snapshot()


def filled(recorder: FlightRecorder, records: int, size: int) -> int:
    """Give it records of `size` bytes, and snapshots when it wants them; returns how often it did."""
    begun = 0
    for seq in range(1, records + 1):
        recorder.take(b"%0*d" % (size, seq))
        if recorder.is_full:
            recorder.begin(msgspec.structs.replace(SNAPSHOT, seq=seq))
            begun += 1
    return begun


def seqs(recorder: FlightRecorder) -> tuple[int, list[int]]:
    lines = recorder.lines()
    snapshot = decode_item(lines[0])
    assert isinstance(snapshot, Snapshot)
    return snapshot.seq, list(map(int, lines[1:]))


def test_all_is_kept_until_two_segments_are_full():
    recorder = FlightRecorder(SNAPSHOT, max_bytes=1 << 20, max_records=100)
    filled(recorder, 199, 10)
    assert seqs(recorder) == (0, list(range(1, 200)))
    filled_again = FlightRecorder(SNAPSHOT, max_bytes=1 << 20, max_records=100)
    assert filled(filled_again, 250, 10) == 2
    assert seqs(filled_again) == (100, list(range(101, 251)))


def test_large_records_are_bounded_by_their_bytes():
    recorder = FlightRecorder(SNAPSHOT)
    begun = filled(recorder, 1000, 100_000)
    assert begun == 1000 // -(-MAX_BYTES // 100_000)
    assert sum(map(len, recorder.lines())) <= 2 * (MAX_BYTES + 100_000) + len(encode(SNAPSHOT))


def test_small_records_are_bounded_by_their_count():
    recorder = FlightRecorder(SNAPSHOT)
    filled(recorder, 40_000, 5)
    assert MAX_RECORDS <= len(recorder.lines()) - 1 <= 2 * MAX_RECORDS


def test_a_large_pool_has_no_more_snapshots_than_a_fifth_of_what_is_written():
    core = mirror_core(num_blocks=4096, block_size=1, max_model_len=4096)
    core.add("a", [i % 30 for i in range(4000)], greedy(9, ignore_eos=True))
    while core.counters.sampled_tokens == 0:
        assert isinstance(core.step()[1], Record)
    large = core.snapshot()
    size = len(encode(large))
    recorder = FlightRecorder(large, max_bytes=1000)
    taken = 0
    while not recorder.is_full:
        recorder.take(bytes(1000))
        taken += 1000
    assert 4 * size <= taken <= 4 * size + 1000
