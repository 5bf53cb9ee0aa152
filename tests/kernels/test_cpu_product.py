"""Packed products equal torch's in float64, for every number of rows, with every kind of store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import cpu_float_tile, thread_pool
from kernels.cpu_float_tile import TILE_ROWS, pack_gated, pack_linear
from kernels.cpu_panels import ADD, KINDS, STORE, SWIGLU, PackedWeight
from kernels.cpu_product import CHUNK_ROWS, product_call, product_worker
from kernels.cpu_vectors import FLOAT32

DTYPES = [dtype for dtype in KINDS if cpu_float_tile.multiplies(dtype)]
pytestmark = [
    pytest.mark.skipif(not DTYPES, reason="this processor has no compiled products"),
    pytest.mark.usefixtures("two_threads"),
]
ROWS = [*range(1, TILE_ROWS + 2), 64, CHUNK_ROWS - 1, CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 5]


def multiply(x: Tensor, packed: PackedWeight, mode: int, out: Tensor) -> Tensor:
    """Run the product; `x` is padded as its reader wants, `out` keeps what lies past the packed outputs."""
    padded = F.pad(x, (0, x.shape[1] % 2)).contiguous()
    thread_pool.run(product_worker(packed.kind, mode, KINDS[out.dtype]), product_call(padded, packed, out))
    return out


def random(dtype: torch.dtype, rows: int, columns: int, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + columns + outputs)
    x, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in ((rows, columns), (outputs, columns), (outputs,))
    )
    return x, weight, bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_every_number_of_rows(dtype: torch.dtype, rows: int) -> None:
    x, weight, bias = random(dtype, rows, 48, 96)
    found = multiply(x, pack_linear(weight, bias), STORE, torch.full((rows, 96), torch.nan))
    torch.testing.assert_close(
        found.double(), F.linear(x.double(), weight.double(), bias.double()), atol=1e-4, rtol=1e-5
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 7, 33])
@pytest.mark.parametrize("outputs", [1, 31, 33, 80])
def test_sizes_that_fill_no_panel(dtype: torch.dtype, columns: int, outputs: int) -> None:
    x, weight, _ = random(dtype, 5, columns, outputs)
    packed = pack_linear(weight)
    found = multiply(x, packed, STORE, torch.full((5, len(packed.bias)), torch.nan))
    torch.testing.assert_close(found[:, :outputs].double(), x.double() @ weight.double().T, atol=1e-4, rtol=1e-5)
    assert not found[:, outputs:].any()  # zeros, so that whoever reads whole panels reads no rubbish


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_is_added_to(dtype: torch.dtype) -> None:
    x, weight, bias = random(dtype, 30, 40, 64)
    residual = torch.randn(30, 64)
    expected = residual.double() + F.linear(x.double(), weight.double(), bias.double())
    found = multiply(x, pack_linear(weight, bias), ADD, residual)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [16, 40, 100])
def test_gate_and_up_become_one(dtype: torch.dtype, inner: int) -> None:
    x, weight, bias = random(dtype, 20, 24, 2 * inner)
    packed = pack_gated(weight, bias)
    found = multiply(x, packed, SWIGLU, torch.full((20, len(packed.bias) // 2), torch.nan))
    gate, up = F.linear(x.double(), weight.double(), bias.double()).chunk(2, dim=1)
    torch.testing.assert_close(found[:, :inner].double(), F.silu(gate) * up, atol=2e-4, rtol=1e-5)
    assert not found[:, inner:].any()


@pytest.mark.skipif(torch.bfloat16 not in DTYPES, reason="this processor has no bf16 dot products")
def test_bfloat16_is_stored_rounded_to_nearest() -> None:
    x, weight, _ = random(torch.bfloat16, 9, 64, 64)
    packed = pack_linear(weight)
    exact = multiply(x, packed, STORE, torch.empty(9, 64))
    assert torch.equal(multiply(x, packed, STORE, torch.empty(9, 64, dtype=torch.bfloat16)), exact.bfloat16())


@pytest.mark.parametrize("gate", [-200.0, -90.0, 90.0, 200.0])
def test_large_gates_neither_overflow_nor_vanish(gate: float) -> None:
    weight = torch.zeros(32, 1)
    packed = pack_gated(weight, torch.cat((torch.full((16,), gate), torch.ones(16))))
    found = multiply(torch.zeros(1, 1), packed, SWIGLU, torch.empty(1, 16))
    torch.testing.assert_close(found, F.silu(torch.full((1, 16), gate)))


def test_without_the_vectors_no_product_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_float_tile.llvmlite.binding, "get_host_cpu_features", dict)
    assert not any(cpu_float_tile.multiplies(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16))
    assert FLOAT32 in KINDS.values()


def test_a_processor_with_half_as_wide_vectors_computes_the_same() -> None:
    """In a process of its own: how wide vectors are is known when the kernels are imported."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.kernels.older_processor"]
    chosen = [str(Path(__file__)), "-k", "every_number_of_rows or fill_no_panel or gate_and_up"]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, *chosen], cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
