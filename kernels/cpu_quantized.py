"""Matrix products of quantized weights on a CPU: whole numbers times whole numbers, summed exactly within a block.

The rows of a step are quantized too (`kernels.cpu_quantized_rows`), in blocks of 32 as the weights are: VPDPBUSD then
multiplies four pairs of bytes per lane and adds them up in 32 bits, and what a block's two scales make of that is added
in float32.
Panels and pieces are those of `kernels.cpu_product`; a panel's blocks hold their scales beside them, so that a weight
is read once from front to back.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from torch import Tensor

from kernels import cpu_product, cpu_quantized_rows, cpu_tile, thread_pool
from kernels.compile_cache import compile_worker
from kernels.cpu_elementwise import offsets
from kernels.cpu_product import LANES, PANEL, SWIGLU, PackedWeight, Product, pack_bias, padded_outputs
from kernels.cpu_quantized_rows import AT_SCALE, AT_START, AT_SUM, ROW_BLOCK
from kernels.cpu_tile import F32, FLOAT16, I64, ITEM_SIZES, Lanes, load_int64, offset, take_ticket
from kernels.quantized_blocks import BLOCK, Blocks

INT8, INT4 = 8, 4  # kinds of packed weights, beside those of `kernels.cpu_tile`
QUADS = BLOCK // 4  # of a block: four bytes that one lane multiplies at once
TILE_ROWS = 6  # rows multiplied at once: 12 sums of whole numbers and 12 of float32 fill 24 vector registers
CHUNK_ROWS = 32 * TILE_ROWS
# A product of few rows waits for memory, which is fastest where a thread reads on: its pieces are several panels long.
PIECE_BYTES = 64 * 1024
HALVES = PANEL * 2  # bytes of a panel's float16 scales

SOURCES = hashlib.sha256(
    b"".join(Path(str(module.__file__)).read_bytes() for module in (cpu_tile, cpu_product, cpu_quantized_rows))
).hexdigest()


def missing_features() -> list[str]:
    """What this processor lacks of what the byte dot products take."""
    features = llvmlite.binding.get_host_cpu_features()
    return [name for name in ("avx512f", "avx512bw", "avx512vnni") if not features.get(name)]


def is_quantized(kind: int) -> bool:
    """Whether weights of that kind take quantized rows."""
    return kind in (INT8, INT4)


def worker_for(kind: int, mode: int, out_kind: int) -> Any:
    """A worker for `Product` with weights of any kind."""
    make = quantized_product_worker if is_quantized(kind) else cpu_product.product_worker
    return make(kind, mode, out_kind)


def block_bytes(kind: int) -> int:
    """Bytes of one block of a panel: its 32 outputs' values and scales, in 4 bits their minima too."""
    return PANEL * BLOCK + HALVES if kind == INT8 else PANEL * BLOCK // 2 + 2 * HALVES


def pack_blocks(blocks: Blocks, bias: Tensor | None = None) -> PackedWeight:
    """Pack for `quantized_product_worker`: uint8 [panels, blocks, block_bytes].

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


def unpack_blocks(packed: PackedWeight) -> Blocks:
    """What `pack_blocks` was given."""
    weight, rows = packed.weight, packed.rows
    panels, steps, _ = weight.shape

    def outputs(numbers: Tensor) -> Tensor:
        return numbers.flatten(0, 1)[:rows].contiguous()

    def halves(index: int) -> Tensor:
        end = weight.shape[2] - HALVES * index
        return outputs(weight[:, :, end - HALVES : end].contiguous().view(torch.float16).transpose(1, 2))

    if packed.kind == INT8:
        values, scale, minimum = weight[:, :, : PANEL * BLOCK], halves(0), None
    else:
        both = weight[:, :, : PANEL * BLOCK // 2].view(panels, steps, QUADS // 2, 1, PANEL * 4)
        values, scale, minimum = torch.cat((both & 15, both >> 4), dim=3), halves(1), halves(0)
    values = values.reshape(panels, steps, QUADS, PANEL, 4).permute(0, 3, 1, 2, 4).flatten(2)
    return Blocks(outputs(values), scale, minimum, packed.columns)


def _bytes_times(b: Any, sums: Any, unsigned: Any, signed: Any) -> Any:
    """Per lane: sums + the products of four unsigned and four signed bytes."""
    name = "llvm.x86.avx512.vpdpbusd.512"
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(sums.type, [sums.type] * 3), name)
    return b.call(function, [sums, unsigned, signed])


def _multiply_tile(b: Any, height: int, arguments: list[Any], kind: int, mode: int, out_kind: int) -> None:
    """Emit the product of `height` rows with one panel, and its store."""
    input, input_row, weight, bias, out, out_row, steps = arguments
    lanes = Lanes(b, LANES)
    starts = [lanes.load(offset(b, bias, j * LANES * 4)) for j in range(2)]
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
    cpu_product.store_rows(b, lanes, found, out, out_row, mode, out_kind)


def _add_block(
    b: Any, lanes: Lanes, rows: list[Any], panel: Any, totals: list[list[Any]], kind: int
) -> list[list[Any]]:
    """`totals` plus one block's products."""

    def number(address: Any) -> Any:
        return b.load(b.inttoptr(address, F32.as_pointer()), align=4)

    def whole(address: Any) -> Any:
        return b.bitcast(lanes.splat(number(address)), lanes.int_type)

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
        scale = lanes.splat(number(offset(b, row, AT_SCALE)))
        results.append([lanes.fma(b.sitofp(pair[j], lanes.type), b.fmul(scales[j], scale), total[j]) for j in range(2)])
    if kind == INT4:
        minima = [lanes.load(offset(b, panel, at_scales + HALVES + j * 32), FLOAT16) for j in range(2)]
        for row, result in zip(rows, results, strict=True):
            total = lanes.splat(number(offset(b, row, AT_SUM)))
            result[:] = [lanes.fma(minima[j], total, result[j]) for j in range(2)]
    return results


@intrinsic(prefer_literal=True)
def multiply_quantized_rows(
    typingctx: Any,
    input: Any,
    input_row: Any,
    weight: Any,
    bias: Any,
    out: Any,
    out_row: Any,
    steps: Any,
    rows: Any,
    kind: Any,
    mode: Any,
    out_kind: Any,
) -> Any:
    """Multiply 1 to TILE_ROWS quantized rows with one panel; the last three arguments are constants."""
    stored, what, written = (int(x.literal_value) for x in (kind, mode, out_kind))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        after = b.append_basic_block("multiplied")
        cases = [b.append_basic_block(f"rows{height}") for height in range(1, TILE_ROWS + 1)]
        switch = b.switch(arguments[7], after)
        for height, case in enumerate(cases, 1):
            switch.add_case(ir.Constant(I64, height), case)
            b.position_at_end(case)
            _multiply_tile(b, height, arguments[:7], stored, what, written)
            b.branch(after)
        b.position_at_end(after)
        return context.get_dummy_value()

    return types.void(*(types.int64 for _ in range(8)), kind, mode, out_kind), generate


@cache
def quantized_product_worker(kind: int, mode: int, out_kind: int) -> Any:
    """A worker for `Product` whose `input` is quantized rows and `steps` blocks; pieces are panels times rows."""
    at = offsets(Product)
    at_rows, at_panels, at_steps, at_input, at_input_row, at_weight, at_bias, at_out, at_out_row = (
        at[name]
        for name in ("num_rows", "num_panels", "steps", "input", "input_row", "weight", "bias", "out", "out_row")
    )
    out_bytes = (1 if mode == SWIGLU else 2) * LANES * ITEM_SIZES[out_kind]
    step_bytes, threads = block_bytes(kind), thread_pool.threads()
    stamp = SOURCES

    def quantized_product(call: int) -> None:
        stamp  # noqa: B018  (part of the cache key)
        rows, panels, steps = load_int64(call + at_rows), load_int64(call + at_panels), load_int64(call + at_steps)
        input, input_row = load_int64(call + at_input), load_int64(call + at_input_row)
        weight, bias = load_int64(call + at_weight), load_int64(call + at_bias)
        out, out_row = load_int64(call + at_out), load_int64(call + at_out_row)
        panel_bytes = steps * step_bytes
        chunks, groups = -(-rows // CHUNK_ROWS), panels
        if rows <= TILE_ROWS:
            wanted = panels * panel_bytes // PIECE_BYTES // threads * threads
            groups = min(panels, max(wanted, 4 * threads))
        pieces = groups * chunks
        while True:
            piece = take_ticket(call)
            if piece >= pieces:
                break
            chunk, group = divmod(piece, groups)
            for panel in range(panels * group // groups, panels * (group + 1) // groups):
                row, end = rows * chunk // chunks, rows * (chunk + 1) // chunks
                tiles = -(-(end - row) // TILE_ROWS)
                source, target = input + row * input_row, out + row * out_row + panel * out_bytes
                panel_weight, panel_bias = weight + panel * panel_bytes, bias + panel * 128
                while tiles:
                    height = -(-(end - row) // tiles)
                    multiply_quantized_rows(
                        source,
                        input_row,
                        panel_weight,
                        panel_bias,
                        target,
                        out_row,
                        steps,
                        height,
                        kind,
                        mode,
                        out_kind,
                    )
                    row, source, target = row + height, source + height * input_row, target + height * out_row
                    tiles -= 1

    return compile_worker(quantized_product)
