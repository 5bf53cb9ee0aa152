"""Plans become the tensors they stand for, blocks go where they say, and only rows that sample get a token."""

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
from engine.plan import FixedRequest, PlannedRow, Sampled, StepPlan
from engine.protocol import Copy, Parts, RowKind
from engine.runner import ModelRunner, flatten
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams

CPU = torch.device("cpu")
BLOCK_SIZE = 4
GREEDY = SamplingParams(max_tokens=5, temperature=0)


def planned(
    name: str, kind: RowKind, history: Sequence[int], start: int, count: int, table: Sequence[int], samples: bool
) -> PlannedRow:
    return PlannedRow(FixedRequest(name, history, 3, table, GREEDY), kind, start, count, samples)


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


def make_runner(dtype: torch.dtype) -> ModelRunner:
    resolved = resolve_model("tiny")
    decoder = Decoder(resolved.config, Weights(resolved.folder, dtype, CPU), 64)
    return ModelRunner(decoder, Sampler(resolved.eos_token_ids), 12, BLOCK_SIZE, num_host_blocks=3)


@pytest.fixture
def runner() -> ModelRunner:
    return make_runner(torch.float32)


class Live:
    """A request whose table and tokens a test moves on by hand; it draws with log-probabilities, to tell any change."""

    prompt_length = 10

    def __init__(self, name: str, table: list[int], seed: int) -> None:
        self.id = name
        self.tokens = list(range(100, 110))
        self.table = table
        self.sampling = SamplingParams(max_tokens=9, seed=seed, logprobs=5)
        self.drawn: list[Sampled] = []

    def prefill(self, *siblings: Live) -> PlannedRow:
        return PlannedRow(self, "prefill", 0, len(self.tokens), True, siblings)

    def decode(self) -> PlannedRow:
        return PlannedRow(self, "decode", len(self.tokens) - 1, 1, True)

    def take(self, sampled: dict[str, Sampled]) -> None:
        self.drawn.append(sampled[self.id])
        self.tokens.append(self.drawn[-1].token_id)


def step(runner: ModelRunner, requests: Sequence[Live], plan: StepPlan) -> None:
    runner.move(plan)
    result = runner.compute(plan.rows)
    assert result.sampled.keys() == {request.id for request in requests}
    assert result.failed == {}
    for request in requests:
        request.take(result.sampled)


def decode(runner: ModelRunner, requests: Sequence[Live], steps: int) -> None:
    for _ in range(steps):
        step(runner, requests, StepPlan(tuple(request.decode() for request in requests)))


def undisturbed(dtype: torch.dtype, seeds: Sequence[int], decodes: int) -> list[Live]:
    """Prefilled alone, then decoded together, each on blocks of its own."""
    runner = make_runner(dtype)
    requests = [Live(str(seed), [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3], seed) for i, seed in enumerate(seeds)]
    for request in requests:
        step(runner, [request], StepPlan((request.prefill(),)))
    decode(runner, requests, decodes)
    return requests


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@DTYPES
def test_a_fork_on_a_copied_tail_is_a_request_of_its_own(dtype: torch.dtype) -> None:
    expected = undisturbed(dtype, [7, 8], decodes=4)
    runner = make_runner(dtype)
    parent, child = Live("7", [3, 1, 9], 7), Live("8", [3, 1, 9], 8)
    step(runner, [parent, child], StepPlan((parent.prefill(child),)))
    child.table = [3, 1, 5]
    rows = (parent.decode(), child.decode())
    step(runner, [parent, child], StepPlan(rows, copies=(Copy("8", 9, 5, 2),)))
    parent.table, child.table = [3, 1, 9, 0], [3, 1, 5, 2]
    decode(runner, [parent, child], 3)
    assert [parent.drawn, child.drawn] == [request.drawn for request in expected]
    assert parent.drawn != child.drawn


@DTYPES
def test_what_was_swapped_out_and_in_again_goes_on_undisturbed(dtype: torch.dtype) -> None:
    expected = undisturbed(dtype, [7], decodes=4)[0]
    runner = make_runner(dtype)
    request = Live("7", [3, 1, 9], 7)
    step(runner, [request], StepPlan((request.prefill(),)))
    decode(runner, [request], 1)
    assert runner.move(StepPlan((), swap_out=((3, 2), (1, 0), (9, 1)))) > 0
    runner.blocks.fill_(float("nan"))
    request.table = [8, 3, 0, 6]
    step(runner, [request], StepPlan((request.decode(),), swap_in=((2, 8), (0, 3), (1, 0))))
    decode(runner, [request], 2)
    assert request.drawn == expected.drawn


def test_blocks_leave_then_return_then_are_copied_then_read(runner: ModelRunner) -> None:
    """All in one plan, where each stage needs the one before."""
    expected = undisturbed(torch.float32, [7, 8], decodes=1)
    back, gone = Live("7", [0, 1, 2], 7), Live("8", [4, 1, 2], 8)
    step(runner, [back, gone], StepPlan((back.prefill(gone),)))
    runner.move(StepPlan((), swap_out=((0, 0), (1, 1)), copies=(Copy("8", 0, 4, 4),)))
    runner.blocks[[0, 1]] = float("nan")
    gone.table, back.table = [0, 7, 8], [4, 5, 2]
    step(
        runner,
        [back, gone],
        StepPlan(
            (back.decode(), gone.decode()),
            swap_out=((4, 2),),
            swap_in=((1, 5), (2, 0)),  # block 4 is back in block 0
            copies=(Copy("8", 5, 7, 4), Copy("8", 2, 8, 2)),
        ),
    )
    assert [back.drawn, gone.drawn] == [request.drawn for request in expected]


def test_the_models_parts_are_told_with_what_it_computed(runner: ModelRunner) -> None:
    request = Live("7", [3, 1, 9], 7)
    rows = [request.prefill()]
    assert runner.compute(rows).parts is None
    parts = Parts(norm=0.1, qkv=0.2, rope=0.3, attention=0.4, output=0.5, gate_up=0.6, down=0.7, head=0.8)
    runner.model.parts = parts
    assert runner.compute(rows).parts is parts


def test_transfers_that_cannot_be_are_refused(runner: ModelRunner) -> None:
    with pytest.raises(ValueError, match=r"target blocks must lie in 0\.\.2"):
        runner.move(StepPlan((), swap_out=((0, 3),)))
    with pytest.raises(ValueError, match="both source and target"):
        runner.move(StepPlan((), copies=(Copy("a", 0, 1, 4), Copy("a", 1, 2, 4))))


def test_siblings_draw_as_requests_of_their_own_would(runner: ModelRunner) -> None:
    """Each by its own settings, beside rows that do not fork, and none disturbs another's logits."""
    prompt = list(range(20, 26))
    settings = [
        SamplingParams(max_tokens=5, seed=3),
        SamplingParams(max_tokens=5, seed=4, logit_bias={7: 100.0}, logprobs=3),
        SamplingParams(max_tokens=5, temperature=0, logprobs=4),
        SamplingParams(max_tokens=5, seed=5, top_p=0.5),
    ]
    family = [FixedRequest(f"r{i}", prompt, 6, [0, 1], sampling) for i, sampling in enumerate(settings)]
    alone = [runner.compute([PlannedRow(one, "prefill", 0, 6, True)]).sampled[one.id] for one in family]
    before = planned("before", "prefill", range(5), 0, 5, [2, 3], True)
    after = planned("after", "prefill", range(30, 33), 0, 3, [4], True)
    forked = PlannedRow(family[0], "prefill", 0, 6, True, tuple(family[1:]))
    chunk = PlannedRow(FixedRequest("chunk", prompt, 6, [5], settings[0]), "prefill", 0, 3, False)
    others = runner.compute([before, after]).sampled
    found = runner.compute([before, forked, chunk, after]).sampled
    assert [found[one.id].token_id for one in family] == [one.token_id for one in alone]
    assert found["r1"].token_id == 7
    for one, expected in zip(family[1:3], alone[1:3], strict=True):
        assert found[one.id].logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert [token for token, _ in found[one.id].top] == [token for token, _ in expected.top]
    assert found.keys() == {"before", "after", *(one.id for one in family)}
    assert {name: found[name] for name in others} == others


def test_logits_that_are_no_numbers_fail_every_draw_of_their_row(runner: ModelRunner) -> None:
    good = planned("good", "prefill", range(5), 0, 5, [0, 1], True)
    family = [FixedRequest(name, range(6), 6, [2, 3], GREEDY) for name in ("bad", "worse")]
    bad = PlannedRow(family[0], "prefill", 5, 1, True, (family[1],))
    runner.blocks[2] = float("nan")
    result = runner.compute([good, bad])
    assert result.sampled.keys() == {"good"}
    assert result.failed.keys() == {"bad", "worse"}


def test_only_rows_that_sample_get_a_token_and_every_part_is_timed(runner: ModelRunner) -> None:
    rows = (
        planned("chunk", "prefill", range(10), 0, 6, [0, 1], False),
        planned("whole", "prefill", range(20, 27), 0, 7, [2, 3], True),
    )
    result = runner.compute(rows)
    assert result.sampled.keys() == {"whole"}
    assert min(result.prepare, result.forward, result.sample) > 0
    assert runner.move(StepPlan(rows)) == 0
    nothing = runner.compute(rows[:1])
    assert nothing.sampled == {}
    # The chunk's second half goes on from what the first wrote.
    rest = runner.compute([planned("chunk", "prefill", range(10), 6, 4, [0, 1, 5], True)])
    at_once = runner.compute([planned("x", "prefill", range(10), 0, 10, [6, 7, 8], True)])
    assert rest.sampled["chunk"] == at_once.sampled["x"]


def test_poisoned_memory_fails_its_own_request_alone(runner: ModelRunner) -> None:
    good = planned("good", "prefill", range(5), 0, 5, [0, 1], True)
    bad = planned("bad", "decode", range(6), 5, 1, [2, 3], True)
    keys, values = runner.caches[0]
    keys[2] = values[2] = float("nan")
    alone = runner.compute([good])
    result = runner.compute([good, bad])
    assert result.sampled == alone.sampled
    assert result.failed.keys() == {"bad"}


def test_a_small_step_takes_one_thread_where_threads_sleep(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    hidden = runner.model.hidden

    def watched(*arguments: Any) -> torch.Tensor:
        used.append(torch.get_num_threads())
        return hidden(*arguments)

    monkeypatch.setattr(runner.model, "hidden", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for policy, count in (("PASSIVE", 16), ("PASSIVE", 17), ("ACTIVE", 16)):
            monkeypatch.setenv("OMP_WAIT_POLICY", policy)
            runner.compute([planned("a", "prefill", range(count), 0, count, range(5), True)])
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert used == [1, 2, 2]
