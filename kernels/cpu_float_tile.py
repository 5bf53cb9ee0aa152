"""Products of float32 and bfloat16 weights: a tile of rows times a panel.

Outputs of one k (fp32), or of a pair of neighbouring k (bf16, as the dot-product instruction takes them), lie side by
side. The register tiling is that of BLIS (Van Zee and van de Geijn, 2015), without its copies of the rows.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu_panels import (
    KINDS,
    LANES,
    PANEL,
    PackedWeight,
    interleave_gated,
    interleave_gated_bias,
    load_bias,
    pack_bias,
    padded_outputs,
    store_rows,
)
from kernels.cpu_vectors import FLOAT32, I64, Lanes, has_dots, offset


def _tile_rows() -> int:
    """Rows multiplied at once, two accumulators each: what leaves registers for operands."""
    features = llvmlite.binding.get_host_cpu_features()
    return 12 if features.get("avx512f") or features.get("neon") else 6


TILE_ROWS = _tile_rows()
STEP_BYTES = PANEL * 4  # of one k, or a pair of them


def multiplies(dtype: torch.dtype) -> bool:
    """Whether this processor has the vectors that products want, and they take `dtype`."""
    features = llvmlite.binding.get_host_cpu_features()
    return dtype in KINDS and any(features.get(name) for name in ("avx512f", "avx2", "neon"))


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedWeight:
    """Pack [N, K] in bfloat16 or float32, and a bias [N]: as [panels, K / pair, PANEL, pair], padded with zeros."""
    rows, columns = weight.shape
    pair = 2 if weight.dtype == torch.bfloat16 else 1
    missing = (-columns % pair, padded_outputs(rows) - rows)
    padded = torch.nn.functional.pad(weight, (0, missing[0], 0, missing[1]))
    packed = padded.view(-1, PANEL, padded.shape[1] // pair, pair).transpose(1, 2).contiguous()
    return PackedWeight(packed, pack_bias(bias, rows), rows, columns, KINDS[weight.dtype])


def pack_gated(weight: Tensor, bias: Tensor | None = None) -> PackedWeight:
    """Pack gate and up, one below the other in [2 * N, K], for SWIGLU: half of each panel is of either."""
    return pack_linear(interleave_gated(weight), interleave_gated_bias(bias))


def emit_tile(b: Any, height: int, arguments: list[Any], kind: int, mode: int, out_kind: int) -> None:
    """Emit the product of `height` rows with one panel, and its store; see `kernels.cpu_product.multiply_rows`."""
    input, input_row, weight, bias, out, out_row, steps = arguments
    lanes = Lanes(b, LANES)
    sums = _accumulate(b, lanes, kind, height, input, input_row, weight, steps, load_bias(b, lanes, bias))
    store_rows(b, lanes, sums, out, out_row, mode, out_kind)


def _accumulate(
    b: Any, lanes: Lanes, kind: int, height: int, input: Any, input_row: Any, weight: Any, steps: Any, starts: list[Any]
) -> list[tuple[Any, Any]]:
    """The loop over k: two accumulators a row, kept in registers from the first step to the last."""
    # Three rows to a pointer, at 0, 1 and 2 strides: twelve pointers would not fit the registers.
    pointers = [b.add(input, b.mul(input_row, ir.Constant(I64, 3 * i))) for i in range(-(-height // 3))]
    strides = [ir.Constant(I64, 0), input_row, b.shl(input_row, ir.Constant(I64, 1))]
    before = b.basic_block
    loop, done = b.append_basic_block("k"), b.append_basic_block("summed")
    b.branch(loop)
    b.position_at_end(loop)
    step = b.phi(I64)
    step.add_incoming(ir.Constant(I64, 0), before)
    accumulators = []
    for _ in range(height):
        pair = []
        for j in range(2):
            phi = b.phi(lanes.type)
            phi.add_incoming(starts[j], before)
            pair.append(phi)
        accumulators.append(pair)
    column = b.shl(step, ir.Constant(I64, 2))
    panel = b.add(weight, b.mul(step, ir.Constant(I64, STEP_BYTES)))
    weights = [lanes.load(offset(b, panel, j * LANES * 4)) for j in range(2)]
    results = []
    for r in range(height):
        address = b.add(b.add(pointers[r // 3], strides[r % 3]), column)
        element = lanes.broadcast(address)
        results.append([_multiply_add(b, lanes, kind, accumulators[r][j], element, weights[j]) for j in range(2)])
    after = b.add(step, ir.Constant(I64, 1))
    step.add_incoming(after, loop)
    for pair, result in zip(accumulators, results, strict=True):
        for phi, value in zip(pair, result, strict=True):
            phi.add_incoming(value, loop)
    b.cbranch(b.icmp_signed("<", after, steps), loop, done)
    b.position_at_end(done)
    return [(first, second) for first, second in results]


def _multiply_add(b: Any, lanes: Lanes, kind: int, sums: Any, element: Any, weights: Any) -> Any:
    if kind == FLOAT32:
        return lanes.fma(element, weights, sums)
    if has_dots():
        return lanes.dot(sums, element, weights)
    for half in (_first_of_pairs, _second_of_pairs):
        sums = lanes.fma(half(b, lanes, element), half(b, lanes, weights), sums)
    return sums


def _first_of_pairs(b: Any, lanes: Lanes, pairs: Any) -> Any:
    return b.bitcast(b.shl(b.bitcast(pairs, lanes.int_type), lanes.int_constant(16)), lanes.type)


def _second_of_pairs(b: Any, lanes: Lanes, pairs: Any) -> Any:
    return b.bitcast(b.and_(b.bitcast(pairs, lanes.int_type), lanes.int_constant(0xFFFF0000)), lanes.type)
