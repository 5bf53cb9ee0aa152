"""Products of quantized weights: whole numbers times whole numbers, summed exactly within a block.

The rows of a step are quantized too (`kernels.cpu_quantized_rows`), in blocks of 32 as the weights are: VPDPBUSD then
multiplies four pairs of bytes per lane and adds them up in 32 bits, and what a block's two scales make of that is added
in float32. A panel's blocks hold their scales beside them.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from numba.core import cgutils
from torch import Tensor

from kernels.cpu_panels import INT4, INT8, LANES, PANEL, PackedWeight, load_bias, pack_bias, padded_outputs, store_rows
from kernels.cpu_quantized_rows import AT_SCALE, AT_START, AT_SUM, ROW_BLOCK
from kernels.cpu_vectors import FLOAT16, I64, Lanes, offset
from kernels.quantized_blocks import BLOCK, Blocks

QUADS = BLOCK // 4  # of a block: four bytes that one lane multiplies at once
TILE_ROWS = 6  # rows multiplied at once: 12 sums of whole numbers and 12 of float32 fill 24 vector registers
HALVES = PANEL * 2  # bytes of a panel's float16 scales


def missing_features() -> list[str]:
    """What this processor lacks of what the byte dot products take."""
    features = llvmlite.binding.get_host_cpu_features()
    return [name for name in ("avx512f", "avx512bw", "avx512vnni") if not features.get(name)]


def block_bytes(kind: int) -> int:
    """Bytes of one block of a panel: its 32 outputs' values and scales, in 4 bits their minima too."""
    return PANEL * BLOCK + HALVES if kind == INT8 else PANEL * BLOCK // 2 + 2 * HALVES


def pack_blocks(blocks: Blocks, bias: Tensor | None = None) -> PackedWeight:
    """Pack for `kernels.cpu_product`: uint8 [panels, blocks, block_bytes].

    Values lie as [quad, output, 4]; in 4 bits a byte holds one of an even quad (low) and one of the next.
    """
    rows, outputs = blocks.rows, padded_outputs(blocks.rows)

    def panels(numbers: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(numbers, (0, 0, 0, outputs - rows))
        return padded.view(outputs // PANEL, PANEL, padded.shape[1])

    values = panels(blocks.values).view(outputs // PANEL, PANEL, -1, QUADS, 4).permute(0, 2, 3, 1, 4)
    if blocks.bits == 4:
        values = values[:, :, ::2] | (values[:, :, 1::2] << 4)
    halves = [panels(x).transpose(1, 2).contiguous() for x in (blocks.scale, blocks.minimum) if x is not None]
    weight = torch.cat([values.flatten(2), *(x.view(torch.uint8) for x in halves)], dim=2)
    return PackedWeight(weight, pack_bias(bias, rows), rows, blocks.columns, blocks.bits)


def _bytes_times(b: Any, sums: Any, unsigned: Any, signed: Any) -> Any:
    """Per lane: sums + the products of four unsigned and four signed bytes."""
    name = "llvm.x86.avx512.vpdpbusd.512"
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(sums.type, [sums.type] * 3), name)
    return b.call(function, [sums, unsigned, signed])


def emit_tile(b: Any, height: int, arguments: list[Any], kind: int, mode: int, out_kind: int) -> None:
    """Emit the product of `height` quantized rows with one panel, and its store; `steps` counts blocks."""
    input, input_row, weight, bias, out, out_row, steps = arguments
    lanes = Lanes(b, LANES)
    starts = load_bias(b, lanes, bias)
    rows = [b.add(input, b.mul(input_row, ir.Constant(I64, r))) if r else input for r in range(height)]
    before, loop, done = b.basic_block, b.append_basic_block("block"), b.append_basic_block("summed")
    b.branch(loop)
    b.position_at_end(loop)
    step, place, panel = b.phi(I64), b.phi(I64), b.phi(I64)
    for phi, start in ((step, ir.Constant(I64, 0)), (place, ir.Constant(I64, 0)), (panel, weight)):
        phi.add_incoming(start, before)
    totals = [[b.phi(lanes.type) for _ in range(2)] for _ in rows]
    for pair in totals:
        for phi, start in zip(pair, starts, strict=True):
            phi.add_incoming(start, before)
    found = _add_block(b, lanes, [b.add(row, place) for row in rows], panel, totals, kind)
    following = b.add(step, ir.Constant(I64, 1))
    step.add_incoming(following, loop)
    place.add_incoming(b.add(place, ir.Constant(I64, ROW_BLOCK)), loop)
    panel.add_incoming(b.add(panel, ir.Constant(I64, block_bytes(kind))), loop)
    for pair, values in zip(totals, found, strict=True):
        for phi, value in zip(pair, values, strict=True):
            phi.add_incoming(value, loop)
    b.cbranch(b.icmp_signed("<", following, steps), loop, done)
    b.position_at_end(done)
    store_rows(b, lanes, found, out, out_row, mode, out_kind)


def _add_block(
    b: Any, lanes: Lanes, rows: list[Any], panel: Any, totals: list[list[Any]], kind: int
) -> list[list[Any]]:
    """`totals` plus one block's products."""

    def whole(address: Any) -> Any:
        return b.bitcast(lanes.broadcast(address), lanes.int_type)

    def vector(address: Any) -> Any:
        return b.load(b.inttoptr(address, lanes.int_type.as_pointer()), align=4)

    # In 8 bits a sum starts at what the added 128 must not count; in 4 bits the minimum is added at the end.
    none = lanes.int_constant(0)
    starts = [whole(offset(b, row, AT_START)) if kind == INT8 else none for row in rows]
    sums = [[start, start] for start in starts]
    low = lanes.int_constant(0x0F0F0F0F)
    for quad in range(QUADS):
        if kind == INT8:
            weights = [vector(offset(b, panel, quad * PANEL * 4 + j * 64)) for j in range(2)]
        elif quad % 2 == 0:
            both = [vector(offset(b, panel, quad // 2 * PANEL * 4 + j * 64)) for j in range(2)]
            weights = [b.and_(x, low) for x in both]
        else:
            weights = [b.and_(b.lshr(x, lanes.int_constant(4)), low) for x in both]
        for row, pair in zip(rows, sums, strict=True):
            element = whole(offset(b, row, 4 * quad))
            for j in range(2):
                pair[j] = _bytes_times(b, pair[j], weights[j], element)
    at_scales = block_bytes(kind) - (HALVES if kind == INT8 else 2 * HALVES)
    scales = [lanes.load(offset(b, panel, at_scales + j * 32), FLOAT16) for j in range(2)]
    results = []
    for row, pair, total in zip(rows, sums, totals, strict=True):
        scale = lanes.broadcast(offset(b, row, AT_SCALE))
        results.append([lanes.fma(b.sitofp(pair[j], lanes.type), b.fmul(scales[j], scale), total[j]) for j in range(2)])
    if kind == INT4:
        minima = [lanes.load(offset(b, panel, at_scales + HALVES + j * 32), FLOAT16) for j in range(2)]
        for row, result in zip(rows, results, strict=True):
            total = lanes.broadcast(offset(b, row, AT_SUM))
            result[:] = [lanes.fma(minima[j], total, result[j]) for j in range(2)]
    return results
