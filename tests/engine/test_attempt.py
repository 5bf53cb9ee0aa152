"""Rows computed in parts where memory is short; what every part gives, put together, is what all at once would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.attempt import LONGEST_TOLD, attempt, halves, one_line
from engine.plan import FixedRequest, PlannedRow, Sampled, ScoredToken, StepResult
from engine.sampling_params import SamplingParams

SCORED = SamplingParams(max_tokens=1, prompt_logprobs=0)


def row(name: str, start: int, count: int, samples: bool = True, prompt: int = 50) -> PlannedRow:
    request = FixedRequest(name, range(prompt), prompt, range(20), SCORED)
    return PlannedRow(request, "prefill" if count > 1 else "decode", start, count, samples)


class Device:
    """Has memory for `most` tokens at once; remembers what it computed."""

    def __init__(self, most: int, failing: set[str] | None = None) -> None:
        self.most = most
        self.failing = failing or set()
        self.calls: list[list[tuple[str, int, int]]] = []

    def __call__(self, rows: Sequence[PlannedRow]) -> StepResult:
        if sum(row.count for row in rows) > self.most or any(row.request_id == "huge" for row in rows):
            raise MemoryError("no memory")
        self.calls.append([(row.request_id, row.start, row.count) for row in rows])
        sampled = {draw.request_id: Sampled(7) for row in rows for draw in row.draws}
        failed = dict.fromkeys((row.request_id for row in rows if row.request_id in self.failing), "nan")
        scored = {row.request_id: tuple(ScoredToken(-float(p), 1) for p in row.scored) for row in rows if row.scored}
        kept = {name: token for name, token in sampled.items() if name not in failed}
        return StepResult(kept, 1.0, 1.0, 1.0, failed, scored)


def test_what_fits_is_computed_once_and_untouched() -> None:
    rows, device = [row("a", 0, 5), row("b", 3, 1)], Device(6)
    assert attempt(device, rows) == Device(6)(rows)
    assert len(device.calls) == 1


def test_halves_split_a_row_of_several_tokens_where_the_half_ends() -> None:
    rows = [row("a", 10, 1), row("b", 4, 8), row("c", 7, 1)]
    first, second = halves(rows)
    assert [(one.request_id, one.start, one.count, one.samples) for one in first] == [
        ("a", 10, 1, True),
        ("b", 4, 4, False),
    ]
    assert [(one.request_id, one.start, one.count, one.samples) for one in second] == [
        ("b", 8, 4, True),
        ("c", 7, 1, True),
    ]


def test_only_the_last_part_of_a_row_draws_for_it_and_its_siblings() -> None:
    sibling = FixedRequest("b", range(9), 9, range(9), SCORED)
    whole = PlannedRow(row("a", 0, 9, prompt=9).request, "prefill", 0, 9, True, (sibling,))
    result = attempt(Device(2), [whole])
    assert result.sampled.keys() == {"a", "b"}
    first, second = halves([whole])
    assert [draw.request_id for draw in first[0].draws] == []
    assert [draw.request_id for draw in second[0].draws] == ["a", "b"]


@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    starts=st.lists(st.integers(0, 29), min_size=8, max_size=8),
    most=st.integers(1, 30),
)
def test_every_token_is_computed_once_in_order_and_every_place_scored(counts, starts, most) -> None:
    rows = [row(f"r{i}", start, count) for i, (count, start) in enumerate(zip(counts, starts, strict=False))]
    whole, device = Device(1 << 30)(rows), Device(most)
    result = attempt(device, rows)
    assert (result.sampled, result.scored, result.failed, result.lost) == (whole.sampled, whole.scored, {}, {})
    for one in rows:
        parts = [(start, count) for call in device.calls for name, start, count in call if name == one.request_id]
        places = [place for start, count in parts for place in range(start, start + count)]
        assert places == list(range(one.start, one.start + one.count))
    tokens = sum(counts)
    assert result.runs == len(device.calls)
    assert (result.fault == "") == (tokens <= most)
    if result.fault:
        assert result.runs >= -(-tokens // most)
        assert result.fault == f"not enough memory to compute {tokens} tokens at once: they were computed in " + (
            f"{result.runs} parts"
        )


def test_a_row_that_does_not_fit_even_alone_is_lost_alone() -> None:
    result = attempt(Device(100), [row("a", 0, 5), row("huge", 0, 6), row("b", 3, 1)])
    assert result.sampled.keys() == {"a", "b"}
    assert list(result.lost) == ["huge"]
    assert "not enough memory to compute this request (MemoryError: no memory)" in result.lost["huge"]
    assert result.fault.endswith("; 1 of its 3 rows did not fit even so")


def test_one_is_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    result = attempt(Device(0), [row("a", 3, 1)])
    assert result.fault.startswith("not enough memory to compute 1 token at once")
    assert result.fault.endswith("1 of its 1 row did not fit even so")

    def compute(rows: Sequence[PlannedRow]) -> StepResult:
        raise ValueError("wrong")

    attempt(compute, [row("a", 3, 1)])
    attempt(compute, [row("a", 3, 1), row("b", 3, 1)])
    told = [record.getMessage() for record in caplog.records if "computing a step" in record.getMessage()]
    assert [words.partition(" failed")[0] for words in told] == [
        "computing a step of 1 row",
        "computing a step of 2 rows",
    ]


def test_nothing_after_a_part_that_failed_is_computed() -> None:
    device = Device(2, failing={"a"})
    result = attempt(device, [row("a", 0, 6), row("b", 3, 1)])
    assert [start for call in device.calls for name, start, _ in call if name == "a"] == [0]
    assert (result.failed, result.sampled.keys(), result.lost) == ({"a": "nan"}, {"b"}, {})


def test_a_part_that_failed_fails_the_siblings_for_the_same_reason() -> None:
    sibling = FixedRequest("b", range(9), 9, range(9), SCORED)
    whole = PlannedRow(row("a", 0, 9, prompt=9).request, "prefill", 0, 9, True, (sibling,))
    assert attempt(Device(2, failing={"a"}), [whole]).failed == {"a": "nan", "b": "nan"}


def test_an_error_in_a_part_costs_all_rows() -> None:
    def compute(rows: Sequence[PlannedRow]) -> StepResult:
        if sum(row.count for row in rows) > 4:
            raise MemoryError
        raise ValueError("wrong")

    result = attempt(compute, [row("a", 0, 6), row("b", 3, 1)])
    assert (result.sampled, result.runs, result.lost.keys()) == ({}, 0, {"a", "b"})
    assert result.fault == "computing failed: ValueError: wrong"


def test_what_an_attempt_without_memory_held_is_free_before_the_next() -> None:
    class Tensor:
        live = 0

        def __init__(self) -> None:
            Tensor.live += 1

        def __del__(self) -> None:
            Tensor.live -= 1

    def compute(rows: Sequence[PlannedRow]) -> StepResult:
        assert not Tensor.live, "the attempt before still holds its memory"
        held = Tensor()
        if sum(row.count for row in rows) > 1:
            try:
                raise RuntimeError("out of memory")
            except RuntimeError as error:
                raise MemoryError(str(error)) from None
        del held
        return StepResult({}, 0.0, 0.0, 0.0)

    assert attempt(compute, [row("a", 0, 4)]).runs == 4


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("CUDA error\nat line 3\t x"), "RuntimeError: CUDA error at line 3 x"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_errors_are_told_in_one_line(error: Exception, told: str) -> None:
    assert one_line(error) == told


def test_long_errors_are_cut() -> None:
    told = one_line(RuntimeError("x" * 5000))
    assert len(told) == LONGEST_TOLD
    assert told.endswith("x…")
