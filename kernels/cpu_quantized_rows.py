"""Rows of a step as whole numbers, for the products of `kernels.cpu_quantized`: blocks of 32 int8 and what they need.

A block is ggml's Q8_1 with float32 scales: values are rounded to the nearest of 255 multiples of max(abs) / 127.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from torch import Tensor

from kernels.compile_cache import compile_worker
from kernels.cpu_call import integers, load_int64, offsets, take_rows
from kernels.cpu_elementwise import LANES
from kernels.cpu_vectors import F32, I32, I64, ITEM_SIZES, Lanes, emit_loop, offset
from kernels.quantized_blocks import BLOCK, ZERO

# A row's block: 32 int8, then float32 scale, float32 scale * sum, int32 -128 * sum.
ROW_BLOCK = BLOCK + 12
AT_SCALE, AT_SUM, AT_START = BLOCK, BLOCK + 4, BLOCK + 8

I8 = ir.IntType(8)


def row_bytes(columns: int) -> int:
    """Bytes of a quantized row."""
    return -(-columns // BLOCK) * ROW_BLOCK


class Quantization(ctypes.Structure):
    """Rows to be quantized, `blocks` blocks each; input rows are padded with zeros."""

    _fields_ = integers("ticket", "num_rows", "blocks", "input", "input_row", "out", "out_row")


def quantized_rows(rows: Tensor, columns: int) -> tuple[Tensor, Quantization]:
    """Room for `rows` [T, columns] quantized, uint8 [T, row_bytes], and the call that fills it.

    The rows lie in memory with zeros after them, up to whole blocks.
    """
    out = torch.empty(rows.shape[0], row_bytes(columns), dtype=torch.uint8)
    call = Quantization(
        num_rows=rows.shape[0],
        blocks=-(-columns // BLOCK),
        input=rows.data_ptr(),
        input_row=rows.stride(0) * rows.element_size(),
        out=out.data_ptr(),
        out_row=out.stride(0),
    )
    return out, call


@intrinsic(prefer_literal=True)
def quantize_row(typingctx: Any, source: Any, target: Any, blocks: Any, kind: Any) -> Any:
    """Quantize a row of `kind`, a constant, block after block."""
    from_kind = int(kind.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, blocks = arguments[:3]
        b, lanes = builder, Lanes(builder, LANES)

        def place(base: Any, i: Any, size: int) -> Any:
            return b.add(base, b.mul(i, ir.Constant(I64, size)))

        def reduce(name: str, vector: Any) -> Any:
            function = ir.FunctionType(I32, [vector.type])
            name = f"llvm.vector.reduce.{name}.v{LANES}i32"
            return b.call(cgutils.get_or_insert_function(b.module, function, name), [vector])

        def store(value: Any, address: Any, align: int) -> None:
            b.store(value, b.inttoptr(address, value.type.as_pointer()), align=align)

        def body(i: Any, carried: list[Any]) -> list[Any]:
            block, out = place(source, i, BLOCK * ITEM_SIZES[from_kind]), place(target, i, ROW_BLOCK)
            halves = [lanes.load(offset(b, block, j * LANES * ITEM_SIZES[from_kind]), from_kind) for j in range(2)]
            # Compared as whole numbers, magnitudes keep their order, and one that is no number is the largest.
            bits = [b.and_(b.bitcast(half, lanes.int_type), lanes.int_constant(0x7FFFFFFF)) for half in halves]
            largest = b.bitcast(reduce("smax", b.select(b.icmp_signed(">", bits[0], bits[1]), bits[0], bits[1])), F32)
            inverse = b.fdiv(ir.Constant(F32, 127.0), largest)
            inverse = b.select(b.fcmp_ordered("==", largest, ir.Constant(F32, 0.0)), ir.Constant(F32, 0.0), inverse)
            wholes = [
                b.fptosi(lanes.call("nearbyint", b.fmul(half, lanes.splat(inverse))), lanes.int_type) for half in halves
            ]
            for j, vector in enumerate(wholes):
                store(b.trunc(vector, ir.VectorType(I8, LANES)), offset(b, out, j * LANES), 4)
            scale = b.fmul(largest, ir.Constant(F32, 1 / 127))
            total = reduce("add", b.add(*wholes))
            store(scale, offset(b, out, AT_SCALE), 4)
            store(b.fmul(scale, b.sitofp(total, F32)), offset(b, out, AT_SUM), 4)
            store(b.mul(total, ir.Constant(I32, -ZERO)), offset(b, out, AT_START), 4)
            return carried

        emit_loop(b, blocks, [], body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, kind), generate


@cache
def quantize_worker(kind: int) -> Any:
    """A worker for `Quantization`: rows of `kind`."""
    at = offsets(Quantization)
    at_rows, at_blocks, at_input, at_input_row, at_out, at_out_row = (
        at[x] for x in ("num_rows", "blocks", "input", "input_row", "out", "out_row")
    )

    def quantize(call: int) -> None:
        rows, blocks = load_int64(call + at_rows), load_int64(call + at_blocks)
        input, input_row = load_int64(call + at_input), load_int64(call + at_input_row)
        out, out_row = load_int64(call + at_out), load_int64(call + at_out_row)
        first, end = take_rows(call, rows)
        while first < end:
            for row in range(first, end):
                quantize_row(input + row * input_row, out + row * out_row, blocks, kind)
            first, end = take_rows(call, rows)

    return compile_worker(quantize)
