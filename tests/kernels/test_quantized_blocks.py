"""Quantized weights are ggml's blocks, to the bit, and stay within the error that their scales allow."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.quantized_blocks import BLOCK, concatenate, quantize

GGML = {8: gguf.GGMLQuantizationType.Q8_0, 4: gguf.GGMLQuantizationType.Q4_1}


def weights(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [8, 4])
@given(seed=st.integers(0, 1000), size=st.sampled_from([1e-6, 0.02, 1.0, 1000.0]))
@example(seed=664, size=1000.0)  # a tie, which goes the other way if the minimum is scaled first
def test_blocks_are_those_of_ggml(bits: int, seed: int, size: float) -> None:
    weight = weights(3, 96, seed) * size
    weight[0, :BLOCK] = 0.0
    weight[1, 5] = 40 * size
    weight[2] = weight[2].round()  # halves are met when it is scaled
    raw = gguf.quantize(weight.numpy(), GGML[bits])
    np.testing.assert_array_equal(quantize(weight, bits).weight().numpy(), gguf.dequantize(raw, GGML[bits]))


@given(bits=st.sampled_from([8, 4]), columns=st.integers(1, 100), seed=st.integers(0, 1000))
def test_no_weight_is_further_off_than_half_a_step(bits: int, columns: int, seed: int) -> None:
    weight = weights(2, columns, seed)
    blocks = quantize(weight, bits)
    assert blocks.weight().shape == weight.shape
    step = blocks.scale.float().repeat_interleave(BLOCK, dim=1)[:, :columns]
    # A scale, and in 4 bits a minimum, is rounded to 11 bits, which moves what stands furthest from it.
    slack = weight.abs().amax() * 2**-9
    assert bool(((blocks.weight() - weight).abs() <= step / 2 + slack).all())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e20])
def test_a_weight_that_no_block_can_hold_is_refused(bits: int, value: float) -> None:
    weight = weights(2, 64)
    weight[1, 3] = value
    with pytest.raises(ValueError, match="cannot be quantized"):
        quantize(weight, bits)


@pytest.mark.parametrize("bits", [8, 4])
def test_parts_lie_one_below_the_other(bits: int) -> None:
    parts = [weights(rows, 40, rows) for rows in (3, 1, 5)]
    whole = quantize(torch.cat(parts), bits)
    joined = concatenate([quantize(part, bits) for part in parts])
    torch.testing.assert_close(joined.weight(), whole.weight(), atol=0, rtol=0)
    assert joined.bits == bits
    assert joined.rows == 9
