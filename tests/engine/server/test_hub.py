"""The ring is bounded, readers cost nothing, and what they lose is told exactly."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Gap
from engine.server.hub import READ_BYTES, StepHub


def filled(count: int, **limits: int) -> StepHub:
    hub = StepHub(**limits)
    for seq in range(1, count + 1):
        hub.publish(seq, b"%d" % seq)
    return hub


def read_all(hub: StepHub, seq: int) -> list[object]:
    """Sequence numbers and gaps up to the newest."""
    seen: list[object] = []
    while seq <= hub.newest:
        batch = hub.read(seq)
        seen += [batch.gap] if batch.gap else []
        seen += [number for number, _ in batch.records]
        assert batch.next_seq > seq
        seq = batch.next_seq
    return seen


def test_all_records_in_order() -> None:
    assert read_all(filled(100), 1) == list(range(1, 101))
    assert read_all(filled(100), 98) == [98, 99, 100]


def test_the_count_is_bounded_and_the_loss_is_told() -> None:
    hub = filled(100, max_records=10)
    assert len(hub) == 10
    assert read_all(hub, 1) == [Gap(1, 90), *range(91, 101)]
    assert read_all(hub, 95) == list(range(95, 101))


def test_bytes_are_bounded() -> None:
    hub = StepHub(max_bytes=1000)
    for seq in range(1, 50):
        hub.publish(seq, b"x" * 300)
    assert hub.bytes == 900
    assert read_all(hub, 1) == [Gap(1, 46), 47, 48, 49]


def test_a_record_larger_than_the_ring_is_a_gap() -> None:
    hub = StepHub(max_bytes=100)
    hub.publish(1, b"x" * 101)
    assert (len(hub), hub.bytes) == (0, 0)
    assert read_all(hub, 1) == [Gap(1, 1)]


def test_records_that_never_came_are_a_gap() -> None:
    hub = StepHub()
    for seq in (1, 2, 5, 6):
        hub.publish(seq, b"x")
    assert read_all(hub, 1) == [1, 2, Gap(3, 4), 5, 6]
    hub.seen(8)
    assert read_all(hub, 6) == [6, Gap(7, 8)]
    hub.publish(9, b"x")
    assert read_all(hub, 7) == [Gap(7, 8), 9]
    hub.seen(3)
    assert hub.newest == 9


def test_a_reader_holds_little_at_once() -> None:
    hub = StepHub()
    for seq in range(1, 100):
        hub.publish(seq, b"x" * 10_000)
    assert sum(len(data) for _, data in hub.read(1).records) <= READ_BYTES
    assert read_all(hub, 1) == list(range(1, 100))


def test_a_number_cannot_come_twice() -> None:
    hub = filled(3)
    with pytest.raises(ValueError, match="3 came after 3"):
        hub.publish(3, b"x")


@given(st.sets(st.integers(1, 60), min_size=1), st.integers(1, 20), st.integers(1, 70))
def test_records_and_gaps_cover_all_numbers_once(came: set[int], max_records: int, start: int) -> None:
    hub = StepHub(max_records=max_records)
    for seq in sorted(came):
        hub.publish(seq, b"x")
    covered: list[int] = []
    for item in read_all(hub, start):
        covered += range(item.first, item.last + 1) if isinstance(item, Gap) else [item]
    assert covered == list(range(start, max(came) + 1))


async def test_waiting_readers_wake_for_news_and_for_the_end() -> None:
    hub = filled(3)
    await hub.wait(3)
    waiting = asyncio.create_task(hub.wait(4))
    await asyncio.sleep(0)
    assert not waiting.done()
    hub.publish(4, b"x")
    await waiting
    ending = asyncio.create_task(hub.wait(5))
    await asyncio.sleep(0)
    hub.close()
    await ending
