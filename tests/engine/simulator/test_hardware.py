"""Costs from hardware figures, against arithmetic by hand on a model of which everything is known."""

from __future__ import annotations

import pytest

from engine.simulator.hardware import kv_bytes_per_token, roofline
from engine.simulator.runner import StepWork
from engine.sizing.find import find_shape
from engine.sizing.memory import SizingError
from tests.engine.sizing.test_families import CONFIGS


def test_a_step_takes_the_longer_of_what_it_reads_and_what_it_computes() -> None:
    shape = find_shape(str(CONFIGS / "llama-3-8b.json"))
    cost = roofline(shape, flops=400e12, memory_bandwidth=3e12, overhead=0.001)
    # 8.03e9 parameters in bf16; 32 layers with 8 heads of 128, keys and values; 32 query heads of 128.
    assert cost.weight_bytes == 16_060_522_496
    assert cost.kv_bytes == kv_bytes_per_token(shape) == 2 * 32 * 8 * 128 * 2
    assert cost.pair_operations == 4 * 32 * 32 * 128
    assert cost.draw_operations == 2 * 4096 * 128_256
    decode = StepWork(computed=1, context=1000, drawn=1, pairs=1000)
    assert cost.seconds(decode) == pytest.approx(0.001 + (cost.weight_bytes + 1001 * cost.kv_bytes) / 3e12)
    prefill = StepWork(computed=8192, context=8192, drawn=1, pairs=8192 * 8193 // 2)
    operations = 8192 * cost.token_operations + cost.draw_operations + prefill.pairs * cost.pair_operations
    assert cost.seconds(prefill) == pytest.approx(0.001 + operations / 400e12)
    assert cost.move == 2 * cost.kv_bytes / 3e12


@pytest.mark.parametrize(("config", "words"), [("mixtral-8x7b", "experts"), ("deepseek-v3", "experts")])
def test_models_whose_tokens_compute_who_knows_what_are_refused(config: str, words: str) -> None:
    with pytest.raises(SizingError, match=words):
        roofline(find_shape(str(CONFIGS / f"{config}.json")), 1e15, 1e12, 0.0)
