"""What lies between a decoder's matrix products, one pass over memory each, in Triton."""

# ruff: noqa: N803 (compile-time constants are capitals by custom)
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.heuristics import power_of_two
from kernels.launch import launch

COLUMNS = 1024


@triton.jit
def add_norm_kernel(
    residual_ptr, delta_ptr, weight_ptr, normed_ptr, eps, delta_row, width,
    W: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """One row: residual += delta (with ADDS), normed = RMS norm of it; grid (rows,)."""
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, W)
    inside = columns < width
    x = tl.load(residual_ptr + row * width + columns, mask=inside, other=0.0)
    if ADDS:
        x += tl.load(delta_ptr + row * delta_row + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual_ptr + row * width + columns, x, mask=inside)
    factor = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    tl.store(normed_ptr + row * width + columns, (x * factor * weight).to(normed_ptr.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul_kernel(gate_up_ptr, out_ptr, width, W: tl.constexpr):
    """out = silu(gate) * up for W columns of one row of [gate, up]; grid (rows, cdiv(width, W))."""
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * W + tl.arange(0, W)
    inside = columns < width
    at = gate_up_ptr + row * 2 * width + columns
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * width + columns, product.to(out_ptr.dtype.element_ty), mask=inside)


def add_norm(residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, normed: Tensor) -> None:
    """See `kernels.elementwise.add_norm`."""
    rows, width = residual.shape
    other = normed if delta is None else delta
    launch(
        add_norm_kernel, (rows,), residual, other, weight, normed, eps, other.stride(0), width,
        W=power_of_two(width), ADDS=delta is not None, warps=4 if width <= 2048 else 8,
    )  # fmt: skip


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """See `kernels.elementwise.silu_mul`."""
    rows, width = out.shape
    launch(silu_mul_kernel, (rows, -(-width // COLUMNS)), gate_up, out, width, W=COLUMNS)
