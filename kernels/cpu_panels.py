"""Weights of a CPU product in panels, and what becomes of a panel's sums.

A weight [N, K] is packed into panels of two vectors of outputs. Within a panel what belongs to one step over K lies
together, so that it is read once from front to back and stays in the core's cache while tile after tile of rows is
multiplied with it. How it is packed and multiplied: `kernels.cpu_float_tile`, `kernels.cpu_quantized_tile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu_vectors import BFLOAT16, FLOAT32, I64, ITEM_SIZES, LOG2E, Lanes, offset


def _lanes() -> int:
    """Lanes of the widest vectors that this processor has."""
    features = llvmlite.binding.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


LANES = _lanes()
PANEL = 2 * LANES  # outputs of a panel
# What becomes of a product: stored, added to a float32 residual, or silu(first half of a panel) * second half.
STORE, ADD, SWIGLU = 0, 1, 2
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}  # of weights that are not quantized
INT8, INT4 = 8, 4  # of those that are


@dataclass(frozen=True)
class PackedWeight:
    """A weight [rows, columns] and its bias, packed for `kernels.cpu_product`."""

    weight: Tensor
    bias: Tensor  # float32 [padded_outputs(rows)], zeros where there is none
    rows: int
    columns: int
    kind: int

    @property
    def steps(self) -> int:
        """What `Product.steps` must be."""
        return self.weight.shape[1]


def is_quantized(kind: int) -> bool:
    """Whether weights of that kind take quantized rows."""
    return kind in (INT8, INT4)


def padded_outputs(rows: int) -> int:
    """Outputs that a product of a weight with `rows` rows writes: whole panels."""
    return -(-rows // PANEL) * PANEL


def pack_bias(bias: Tensor | None, rows: int) -> Tensor:
    """float32 [padded_outputs(rows)], zeros where there is none."""
    packed = torch.zeros(padded_outputs(rows))
    if bias is not None:
        packed[:rows] = bias
    return packed


def interleave_gated(rows: Tensor) -> Tensor:
    """[2 * N, K] as SWIGLU wants its panels: 16 rows of the first half, 16 of the second, padded with zeros."""
    halves = rows.view(2, rows.shape[0] // 2, -1)
    halves = torch.nn.functional.pad(halves, (0, 0, 0, -halves.shape[1] % LANES))
    return halves.view(2, -1, LANES, halves.shape[2]).transpose(0, 1).reshape(-1, halves.shape[2])


def interleave_gated_bias(bias: Tensor | None) -> Tensor | None:
    """As `interleave_gated`, for [2 * N] or none."""
    return None if bias is None else interleave_gated(bias[:, None])[:, 0]


def load_bias(b: Any, lanes: Lanes, bias: Any) -> list[Any]:
    """Emit the two vectors that a row's sums start at."""
    return [lanes.load(offset(b, bias, j * LANES * 4)) for j in range(2)]


def store_rows(
    b: Any, lanes: Lanes, sums: Sequence[Sequence[Any]], out: Any, out_row: Any, mode: int, out_kind: int
) -> None:
    """Emit what becomes of a panel's sums, two vectors a row."""
    for r, (first, second) in enumerate(sums):
        place = b.add(out, b.mul(out_row, ir.Constant(I64, r))) if r else out
        if mode == SWIGLU:
            power = lanes.exp2(b.fmul(first, lanes.constant(-LOG2E)))
            gated = b.fdiv(first, b.fadd(lanes.constant(1.0), power))
            lanes.store(b.fmul(gated, second), place, out_kind)
            continue
        for j, vector in enumerate((first, second)):
            there = offset(b, place, j * LANES * ITEM_SIZES[out_kind])
            if mode == ADD:
                vector = b.fadd(vector, lanes.load(there))
            lanes.store(vector, there, out_kind)
