"""The decoder with its Triton kernels, in Triton's interpreter, and graphs of it; `test_cuda_graphs.py` runs them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import pytest
import torch

from engine.cuda_graphs import DecodeGraphs
from engine.loading.config import read_config
from engine.loading.resolve import resolve_model
from engine.loading.weights import Weights
from engine.model import Decoder, layer_caches
from engine.plan import FixedRequest, PlannedRow
from engine.runner import ModelRunner, flatten
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from kernels.fp8 import FP8
from tests.engine.test_model import CASES, save_random

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS = 4, 24
GREEDY = SamplingParams(max_tokens=9, temperature=0)
TOLERANCE = {"atol": 2e-5, "rtol": 2e-5}


@pytest.fixture(params=["qwen3", "mistral-sliding", "llama-biases-tied"])
def folder(request, tmp_path):
    save_random(CASES[request.param], tmp_path)
    return tmp_path


def decoder(folder, backend: str, monkeypatch, **options) -> Decoder:
    monkeypatch.setenv("PAGED_ENGINE_ATTENTION", backend)
    model = Decoder(read_config(folder), Weights(folder, torch.float32, CPU), 64, **options)
    assert model.triton == (backend == "triton")
    return model


def planned(start: int, count: int, table: Sequence[int], kind: str = "decode") -> PlannedRow:
    tokens = [(7 * i + table[0]) % 90 for i in range(start + count)]
    return PlannedRow(FixedRequest(str(table), tokens, 3, table, GREEDY), kind, start, count, True)


A, B, C, D = [5, 2, 9, 11, 17], [0, 1, 20], [13, 3], [7]
# Prefills, then decodes beside a chunk, then decodes alone; a held row writes no slot.
STEPS = [
    [planned(0, 13, A, "prefill"), planned(0, 1, B, "prefill"), planned(0, 4, C, "prefill")],
    [planned(13, 1, A), planned(1, 6, B, "prefill"), planned(4, 1, C)],
    [planned(14, 1, A), planned(7, 1, B), planned(4, 1, C, "held")],
    [planned(15, 1, A), planned(8, 1, B), planned(5, 1, C), planned(0, 1, D), planned(1, 1, D)],
    [planned(6, 1, C)],
    [planned(16, 1, A), planned(9, 1, B), planned(7, 1, C)],
]


def run(model: Decoder, caches, rows: list[PlannedRow]) -> torch.Tensor:
    tokens, positions, metadata, _ = flatten(rows, BLOCK_SIZE, CPU)
    return model.hidden(tokens, positions, metadata, caches, torch.arange(len(tokens)))


def test_every_step_equals_torchs(folder, monkeypatch):
    found, expected = (decoder(folder, backend, monkeypatch) for backend in ("triton", "reference"))
    blocks = [model.allocate_kv(NUM_BLOCKS, BLOCK_SIZE) for model in (found, expected)]
    for rows in STEPS:
        results = []
        for model, pool, backend in zip((found, expected), blocks, ("triton", "reference"), strict=True):
            monkeypatch.setenv("PAGED_ENGINE_ATTENTION", backend)
            results.append(run(model, layer_caches(pool), rows))
        torch.testing.assert_close(*results, **TOLERANCE)
        torch.testing.assert_close(*blocks, **TOLERANCE)


@pytest.mark.parametrize("folder", ["qwen3"], indirect=True)
def test_float8_caches_serve_as_they_do_in_torch(folder, monkeypatch):
    found, expected = (decoder(folder, backend, monkeypatch, cache_dtype=FP8) for backend in ("triton", "reference"))
    blocks = [model.allocate_kv(NUM_BLOCKS, BLOCK_SIZE) for model in (found, expected)]
    assert {pool.dtype for pool in blocks} == {FP8}
    for rows in STEPS[:2]:
        results = []
        for model, pool, backend in zip((found, expected), blocks, ("triton", "reference"), strict=True):
            monkeypatch.setenv("PAGED_ENGINE_ATTENTION", backend)
            results.append(run(model, layer_caches(pool), rows))
        assert (results[0] - results[1]).norm() < 0.02 * results[1].norm()  # a key may fall to the other side of a step


class Replayed:
    """Stands for a GPU's graphs: a replay computes again, from the same inputs in the same places, which are gone if
    nobody but the graph held them."""

    def __init__(self) -> None:
        self.captures = 0

    def __call__(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.captures += 1
        compute()  # over padding alone, as a capture
        held = weakref.ref(compute)

        def replay() -> torch.Tensor:
            alive = held()
            assert alive is not None, "the memory that the graph reads was let go"
            return alive()

        return replay


@pytest.mark.parametrize("folder", ["mistral-sliding"], indirect=True)
def test_graphs_give_what_their_rows_alone_give(folder, monkeypatch):
    model = decoder(folder, "triton", monkeypatch)
    pools = [model.allocate_kv(NUM_BLOCKS, BLOCK_SIZE) for _ in range(2)]
    capture = Replayed()
    graphs = DecodeGraphs(model, layer_caches(pools[0]), capture)
    for pool in pools:
        for rows in STEPS[:2]:
            run(model, layer_caches(pool), rows)
    for rows in STEPS[2:]:
        tokens, positions, metadata, _ = flatten(rows, BLOCK_SIZE, CPU)
        before = pools[0].clone()
        found = graphs.hidden(tokens, positions, metadata)
        torch.testing.assert_close(found, run(model, layer_caches(pools[1]), rows), **TOLERANCE)
        torch.testing.assert_close(*pools, **TOLERANCE)
        slots = set(metadata.slots.tolist()) - {-1}
        changed = (pools[0] != before).any(dim=(1, 2, 3, 5)).nonzero().tolist()
        assert {block * BLOCK_SIZE + slot for block, slot in changed} == slots
    assert capture.captures == 3  # for batches of 4, 8 and 1


@pytest.mark.parametrize("folder", ["qwen3"], indirect=True)
def test_graphs_refuse_more_rows_than_they_hold(folder, monkeypatch):
    model = decoder(folder, "triton", monkeypatch)
    graphs = DecodeGraphs(model, layer_caches(model.allocate_kv(NUM_BLOCKS, BLOCK_SIZE)), Replayed())
    tokens, positions, metadata, _ = flatten([planned(0, 1, D)] * 257, BLOCK_SIZE, CPU)
    with pytest.raises(ValueError, match="a graph holds at most 256 rows, got 257"):
        graphs.hidden(tokens, positions, metadata)


@pytest.mark.parametrize("folder", ["mistral-sliding"], indirect=True)
def test_warming_up_compiles_all_that_steps_need_and_changes_nothing(folder, monkeypatch):
    from kernels import launch, triton_attention, triton_elementwise

    launched = set()

    def watched(kernel, grid, *arguments, warps=4, stages=2, **constants):
        launched.add((kernel.fn.__name__, warps, stages, *sorted(constants.items())))
        launch.launch(kernel, grid, *arguments, warps=warps, stages=stages, **constants)

    for module in (triton_attention, triton_elementwise):
        monkeypatch.setattr(module, "launch", watched)
    monkeypatch.setattr(triton_attention, "target_of", lambda _: launch.H200)
    runner = ModelRunner(decoder(folder, "triton", monkeypatch), Sampler(frozenset()), 64, BLOCK_SIZE)
    runner.graphs = DecodeGraphs(runner.model, runner.caches, Replayed())
    before = runner.blocks.clone()
    runner.compile_kernels()
    assert torch.equal(runner.blocks, before)
    warm = set(launched)
    for rows in STEPS:
        runner.compute(rows)
    assert launched == warm


def test_a_runner_with_graphs_draws_the_same_tokens(monkeypatch):
    resolved = resolve_model("tiny")
    drawn = []
    for with_graphs in (False, True):
        model = decoder(resolved.folder, "triton", monkeypatch)
        runner = ModelRunner(model, Sampler(resolved.eos_token_ids), NUM_BLOCKS, BLOCK_SIZE)
        capture = Replayed()
        if with_graphs:
            runner.graphs = DecodeGraphs(model, runner.caches, capture)
        drawn.append([runner.compute(rows).sampled for rows in STEPS])
        assert capture.captures == (3 if with_graphs else 0)
    assert drawn[0] == drawn[1]
