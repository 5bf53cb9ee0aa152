from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cluster.block_index import BlockIndex, Level

NAMES = st.lists(st.integers(0, 12), max_size=8)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "remove", "forget", "expect", "expect", "end"]),
        st.integers(0, 70),
        NAMES,
    ),
    max_size=40,
)
Sets = dict[int, set[int]]


def changed(changes: Sequence[tuple[str, int, list[int]]]) -> tuple[BlockIndex, Sets, Sets]:
    """An index, what it must have, and what must be expected: by slot."""
    index = BlockIndex()
    told, expected = ({slot: set[int]() for slot in range(71)} for _ in range(2))
    prompts: list[tuple[int, list[int]]] = []
    for change, slot, names in changes:
        match change:
            case "store":
                index.store(slot, names)
                told[slot] |= set(names)
            case "remove":
                index.remove(slot, names)
                told[slot] -= set(names)
            case "forget":
                index.forget(slot)
                told[slot] = set()
            case "expect":
                new = index.expect(slot, dict.fromkeys(names))
                assert set(new) == set(names) - told[slot] - expected[slot]
                expected[slot] |= set(new)
                prompts.append((slot, new))
            case _ if prompts:
                slot, names = prompts.pop(0)
                index.expect_no_more(slot, names)
                expected[slot] -= set(names)
    return index, told, expected


def depth(prompt: Sequence[int], *sets: set[int]) -> int:
    """How many first blocks are in one of the sets."""
    return next((place for place, name in enumerate(prompt) if not any(name in one for one in sets)), len(prompt))


@given(CHANGES)
def test_it_has_what_plain_sets_have(changes: list[tuple[str, int, list[int]]]) -> None:
    index, told, expected = changed(changes)
    assert len(index) == len(set().union(*told.values(), *expected.values()))
    assert {slot: set(index.names(slot)) for slot in told} == told
    assert {slot: set(index.expected(slot)) for slot in told} == expected


@settings(max_examples=150)
@given(CHANGES, st.lists(st.integers(0, 12), max_size=10, unique=True), st.sets(st.integers(0, 70), min_size=1))
def test_levels_are_how_far_each_worker_follows(
    changes: list[tuple[str, int, list[int]]], prompt: list[int], among: set[int]
) -> None:
    index, told, expected = changed(changes)
    depths = {slot: depth(prompt, told[slot], expected[slot]) for slot in among}
    assert index.levels(prompt, sum(1 << slot for slot in among)) == [
        Level(least, sum(1 << slot for slot in among if depths[slot] >= least))
        for least in sorted(set(depths.values()))
    ]
    assert {slot: index.depth(prompt, slot) for slot in told} == {slot: depth(prompt, told[slot]) for slot in told}


def test_to_forget_a_worker_leaves_nothing_of_it() -> None:
    index = BlockIndex()
    index.store(0, range(10))
    index.store(64, range(5, 15))
    index.forget(0)
    assert len(index) == 10
    assert index.levels([5, 6], 1 | 1 << 64) == [Level(0, 1 | 1 << 64), Level(2, 1 << 64)]
    index.forget(64)
    assert len(index) == 0


def test_what_is_told_twice_or_was_never_there_is_no_error() -> None:
    index = BlockIndex()
    index.remove(3, [1])
    index.forget(3)
    index.store(3, [1, 1, 2])
    index.store(3, [1])
    index.remove(3, [1, 1])
    assert set(index.names(3)) == {2}
    assert len(index) == 1
