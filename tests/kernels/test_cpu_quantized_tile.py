"""Products of quantized weights equal a float64 reference made from the very same whole numbers and scales."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import thread_pool
from kernels.cpu_panels import ADD, KINDS, STORE, SWIGLU, PackedWeight, interleave_gated
from kernels.cpu_product import product_call, product_worker
from kernels.cpu_quantized_rows import ROW_BLOCK, quantize_worker, quantized_rows
from kernels.cpu_quantized_tile import TILE_ROWS, block_bytes, missing_features, pack_blocks
from kernels.quantized_blocks import BLOCK, ZERO, quantize
from tests.kernels.unpacked import unpack_blocks

pytestmark = pytest.mark.usefixtures("two_threads")
needs_vnni = pytest.mark.skipif(bool(missing_features()), reason="this processor has no AVX512-VNNI")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quantized(rows: Tensor) -> Tensor:
    """The rows [T, K] as the products take them."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
    out, call = quantized_rows(padded, rows.shape[1])
    thread_pool.run(quantize_worker(KINDS[rows.dtype]), call)
    return out


def parts(row: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values [T, blocks, 32], scale, scale * sum, start [T, blocks] of quantized rows, in float64."""
    blocks = row.view(row.shape[0], -1, ROW_BLOCK)
    scale, total = (blocks[..., 32 + 4 * i : 36 + 4 * i].contiguous().view(torch.float32)[..., 0] for i in (0, 1))
    start = blocks[..., 40:44].contiguous().view(torch.int32)[..., 0]
    return blocks[..., :32].contiguous().view(torch.int8).double(), scale.double(), total.double(), start.double()


def multiply(rows: Tensor, packed: PackedWeight, mode: int, out: Tensor) -> Tensor:
    thread_pool.run(product_worker(packed.kind, mode, KINDS[out.dtype]), product_call(rows, packed, out))
    return out


def expected(rows: Tensor, packed: PackedWeight) -> Tensor:
    values, scale, _, _ = parts(rows)
    inputs = (values * scale[..., None]).flatten(1)[:, : packed.columns]
    return inputs @ unpack_blocks(packed).weight(torch.float64).T + packed.bias[: packed.rows].double()


@settings(deadline=None)
@given(rows=st.integers(1, 70), columns=st.integers(1, 200), bits=st.sampled_from([8, 4]), seed=st.integers(0, 1000))
def test_packing_and_unpacking_gives_the_same_blocks(rows: int, columns: int, bits: int, seed: int) -> None:
    blocks = quantize(random(rows, columns, seed=seed), bits)
    packed = pack_blocks(blocks)
    assert packed.weight.shape[2] == block_bytes(bits) == packed.weight.stride(1)
    found = unpack_blocks(packed)
    assert found.columns == blocks.columns
    assert torch.equal(found.values, blocks.values)
    assert torch.equal(found.scale, blocks.scale)
    if blocks.minimum is None:
        assert found.minimum is None
    else:
        assert found.minimum is not None
        assert torch.equal(found.minimum, blocks.minimum)


@needs_vnni
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_quantized_to_the_nearest_of_255_values(dtype: torch.dtype) -> None:
    rows = random(70, 100).to(dtype)
    rows[3, 32:64] = 0
    rows[4, 40] = 1000
    values, scale, total, start = parts(quantized(rows))
    wanted = torch.nn.functional.pad(rows, (0, 28)).double().view(70, 4, BLOCK)
    largest = wanted.abs().amax(-1)
    torch.testing.assert_close(scale, largest / 127, atol=0, rtol=1e-6)
    assert bool((values.abs().amax(-1) == torch.where(largest > 0, 127, 0)).all())
    assert bool(((values * scale[..., None] - wanted).abs() <= scale[..., None] * 0.50001).all())
    torch.testing.assert_close(total, scale * values.sum(-1), atol=0, rtol=1e-6)
    assert torch.equal(start, -ZERO * values.sum(-1))


@needs_vnni
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("columns", [32, 96, 70, 576])
@pytest.mark.parametrize("count", [*range(1, TILE_ROWS + 1), 13, 200])
def test_products_equal_a_float64_reference(bits: int, columns: int, count: int) -> None:
    packed = pack_blocks(quantize(random(77, columns), bits), random(77, seed=1))
    rows = quantized(random(count, columns, seed=2))
    found = multiply(rows, packed, STORE, torch.empty(count, 96))[:, :77]
    wanted = expected(rows, packed)
    assert float((found - wanted).abs().max()) <= 2e-6 * float(wanted.abs().max())


@needs_vnni
@pytest.mark.parametrize("bits", [8, 4])
def test_few_rows_take_several_panels_at_once(bits: int) -> None:
    packed = pack_blocks(quantize(random(100 * thread_pool.threads() + 1, 576), bits))
    rows = quantized(random(3, 576, seed=2))
    found = multiply(rows, packed, STORE, torch.full((3, len(packed.bias)), math.nan))[:, : packed.rows]
    wanted = expected(rows, packed)
    assert float((found - wanted).abs().max()) <= 2e-6 * float(wanted.abs().max())


@needs_vnni
@pytest.mark.parametrize("bits", [8, 4])
def test_the_largest_values_do_not_overflow(bits: int) -> None:
    weight = torch.ones(32, 1024)
    if bits == 4:
        weight[:, ::2] = -1  # a block needs two values to use its range
    rows = quantized(weight[:1].repeat(2, 1))
    packed = pack_blocks(quantize(weight, bits))
    found = multiply(rows, packed, STORE, torch.empty(2, 32))
    torch.testing.assert_close(found, torch.full((2, 32), 1024.0), atol=0, rtol=2**-11)


@needs_vnni
@pytest.mark.parametrize("bits", [8, 4])
def test_a_product_is_added_to_what_is_there(bits: int) -> None:
    packed = pack_blocks(quantize(random(64, 96), bits))
    rows, there = quantized(random(9, 96, seed=1)), random(9, 64, seed=2)
    found = multiply(rows, packed, ADD, there.clone())
    torch.testing.assert_close(found.double(), there + expected(rows, packed), atol=1e-4, rtol=1e-5)


@needs_vnni
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
def test_gate_and_up_become_one(bits: int, dtype: torch.dtype) -> None:
    blocks = quantize(random(2 * 40, 96), bits)
    packed = pack_blocks(blocks.rearranged(interleave_gated))
    rows = quantized(random(9, 96, seed=1))
    found = multiply(rows, packed, SWIGLU, torch.empty(9, 48, dtype=dtype))
    gate, up = expected(rows, pack_blocks(blocks)).split(40, dim=1)
    tolerance = 1e-5 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(found[:, :40].double(), torch.nn.functional.silu(gate) * up, atol=1e-4, rtol=tolerance)
    assert not found[:, 40:].any()


@needs_vnni
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_stays_none(bits: int, value: float) -> None:
    rows = random(3, 96)
    rows[1, 50] = value
    packed = pack_blocks(quantize(random(32, 96), bits))
    found = multiply(quantized(rows), packed, STORE, torch.empty(3, 32))
    assert not found[1].isfinite().any()
    assert found[[0, 2]].isfinite().all()
