"""The floor multiplies what a step must multiply, no less and no more; and the engine's steps are counted as such."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.messages import Do, Settings, StepShape
from benchmarks.peers.floor import Floor
from benchmarks.peers.offline import make as make_offline
from benchmarks.works import make_work
from engine.loading.resolve import resolve_model

SETTINGS = Settings("tiny", "float32", 8 << 20, 32)


@pytest.fixture(scope="module")
def floor() -> Floor:
    return Floor(resolve_model("tiny").config, torch.float32, torch.device("cpu"))


def made(floor: Floor, shape: StepShape) -> list[tuple[str, int]]:
    """Every product of one pass over the layers, by name and rows."""
    found: list[tuple[str, int]] = []
    names = {id(product): name for layer in floor.layers for name, product in layer.items()}
    names[id(floor.head)] = "head"
    floor._timed = lambda product, inputs: found.append((names[id(product)], len(inputs))) or 0.0
    try:
        floor._pass(shape, floor.layers)
    finally:
        del floor._timed
    return found


def test_the_last_layer_goes_on_for_sampled_rows_alone(floor):
    whole = [(name, 7) for name in ("qkv", "output", "gate_up", "down")]
    last = [("qkv", 7), ("output", 2), ("gate_up", 2), ("down", 2), ("head", 2)]
    assert made(floor, StepShape(7, 2, 1)) == whole + last
    assert made(floor, StepShape(7, 0, 1)) == [*whole, ("qkv", 7)]


def test_no_product_is_timed_at_its_first_size():
    """The first makes oneDNN compile for it, which is no matter of multiplying."""
    config = replace(resolve_model("tiny").config, num_layers=5, sliding_windows=(None,) * 5)
    floor = Floor(config, torch.float32, torch.device("cpu"))
    passes: list[set[tuple[str, int]]] = []
    names = {id(product): name for layer in floor.layers for name, product in layer.items()}
    one_pass = floor._pass

    def begin(shape, layers):
        passes.append(set())
        return one_pass(shape, layers)

    floor._pass = begin
    floor._timed = lambda product, inputs: passes[-1].add((names.get(id(product), "head"), len(inputs))) or 0.0
    try:
        floor.step(StepShape(40, 3, 1))
    finally:
        del floor._pass, floor._timed
    warming, timed = passes
    assert warming == timed


def test_the_floor_adds_up_over_the_schedule(floor):
    work = make_work("single", "1", 259, 0.1)
    run = floor.run(Do(work, schedule=(StepShape(1, 1, 12), StepShape(6, 1, 1))), lambda text: None)
    assert run.seconds == pytest.approx(sum(run.parts.values()))
    assert set(run.parts) == {"qkv", "output", "gate_up", "down", "head"}
    assert 0 < 12 * run.token_seconds < run.seconds
    with pytest.raises(ValueError, match="needs the schedule"):
        floor.run(Do(work), lambda text: None)


def test_the_schedule_is_what_the_engine_ran():
    offline = make_offline(SETTINGS)
    work = make_work("burst", "1", 259, 0.1)  # 6 requests of 26 tokens, 6 generated each
    run = offline.run(Do(work), lambda text: None)
    assert run.output_tokens == 36 == sum(shape.sampled * shape.count for shape in run.schedule)
    computed = sum(shape.tokens * shape.count for shape in run.schedule)
    assert computed == 6 * 26 + 6 * 5 == run.prefill_tokens + 30
    assert max(shape.tokens for shape in run.schedule) <= 32
    assert 0 < sum(run.durations.values()) <= run.seconds
    again = offline.run(Do(work), lambda text: None)
    assert again.prefill_tokens == run.prefill_tokens  # the cache was cleared
    held = offline.run(Do(work, batching="static"), lambda text: None)
    assert held.output_tokens == 36
