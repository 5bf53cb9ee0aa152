"""Plans become the tensors they stand for, and only rows that sample get a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder
from engine.plan import FixedRequest, PlannedRow, StepPlan
from engine.protocol import RowKind
from engine.runner import ModelRunner, flatten
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams

CPU = torch.device("cpu")
BLOCK_SIZE = 4


def planned(
    name: str, kind: RowKind, history: Sequence[int], start: int, count: int, table: Sequence[int], samples: bool
) -> PlannedRow:
    sampling = SamplingParams(max_tokens=5, temperature=0)
    return PlannedRow(FixedRequest(name, history, 3, table, sampling), kind, start, count, samples)


def test_a_step_is_flattened_row_after_row() -> None:
    rows = [
        planned("a", "prefill", [10, 11, 12, 13, 14, 15, 16], 2, 4, [7, 2, 9], False),
        planned("b", "decode", [20, 21, 22, 23, 24], 4, 1, [5, 0], True),
        planned("c", "held", [30, 31, 32], 2, 1, [3], False),
    ]
    tokens, positions, metadata, last_rows = flatten(rows, BLOCK_SIZE, CPU)
    assert tokens.tolist() == [12, 13, 14, 15, 24, 32]
    assert positions.tolist() == [2, 3, 4, 5, 4, 2]
    assert metadata.slots.tolist() == [30, 31, 8, 9, 0, -1]
    assert metadata.query_starts.tolist() == [0, 4, 5, 6]
    assert metadata.context_lengths.tolist() == [6, 5, 3]
    assert metadata.block_tables.tolist() == [[7, 2], [5, 0], [3, 0]]
    assert last_rows.tolist() == [3, 4, 5]
    assert [t.dtype for t in (tokens, positions, last_rows)] == [torch.int64] * 3


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_slots_are_those_the_plan_names(data: st.DataObject) -> None:
    rows = []
    for i in range(data.draw(st.integers(1, 5))):
        length = data.draw(st.integers(1, 40))
        start = data.draw(st.integers(0, length - 1))
        held = data.draw(st.booleans())
        count = 1 if held else data.draw(st.integers(1, length - start))
        table = data.draw(st.lists(st.integers(0, 99), min_size=-(-length // BLOCK_SIZE), max_size=15))
        rows.append(planned(str(i), "held" if held else "prefill", range(length), start, count, table, False))
    tokens, positions, metadata, _ = flatten(rows, BLOCK_SIZE, CPU)
    assert metadata.slots.tolist() == [slot for row in rows for slot in row.slots(BLOCK_SIZE)]
    assert tokens.tolist() == positions.tolist()
    assert len(tokens) == StepPlan(tuple(rows)).num_tokens


@pytest.fixture
def runner() -> ModelRunner:
    resolved = resolve_model("tiny")
    decoder = Decoder(resolved.config, Weights(resolved.folder, torch.float32, CPU), 64)
    return ModelRunner(decoder, Sampler(resolved.eos_token_ids), num_blocks=12, block_size=BLOCK_SIZE)


def test_only_rows_that_sample_get_a_token_and_every_part_is_timed(runner: ModelRunner) -> None:
    rows = (
        planned("chunk", "prefill", range(10), 0, 6, [0, 1], False),
        planned("whole", "prefill", range(20, 27), 0, 7, [2, 3], True),
    )
    result = runner.run(StepPlan(rows))
    assert result.sampled.keys() == {"whole"}
    assert min(result.prepare, result.forward, result.sample) > 0
    nothing = runner.run(StepPlan(rows[:1]))
    assert nothing.sampled == {}
    # The chunk's second half goes on from what the first wrote.
    rest = runner.run(StepPlan((planned("chunk", "prefill", range(10), 6, 4, [0, 1, 5], True),)))
    at_once = runner.run(StepPlan((planned("x", "prefill", range(10), 0, 10, [6, 7, 8], True),)))
    assert rest.sampled["chunk"] == at_once.sampled["x"]


def test_poisoned_memory_fails_its_own_request_alone(runner: ModelRunner) -> None:
    good = planned("good", "prefill", range(5), 0, 5, [0, 1], True)
    bad = planned("bad", "decode", range(6), 5, 1, [2, 3], True)
    keys, values = runner.caches[0]
    keys[2] = values[2] = float("nan")
    alone = runner.run(StepPlan((good,)))
    result = runner.run(StepPlan((good, bad)))
    assert result.sampled == alone.sampled
    assert result.failed.keys() == {"bad"}


def test_a_small_step_takes_one_thread_where_threads_sleep(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    forward = runner.model.forward

    def watched(*arguments: Any) -> torch.Tensor:
        used.append(torch.get_num_threads())
        return forward(*arguments)

    monkeypatch.setattr(runner.model, "forward", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for policy, count in (("PASSIVE", 16), ("PASSIVE", 17), ("ACTIVE", 16)):
            monkeypatch.setenv("OMP_WAIT_POLICY", policy)
            runner.run(StepPlan((planned("a", "prefill", range(count), 0, count, range(5), True),)))
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert used == [1, 2, 2]
