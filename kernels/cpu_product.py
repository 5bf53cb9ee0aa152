"""Matrix products of a CPU step: packed weights of any kind times its rows, with what follows fused into the store."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from torch import Tensor

from kernels import cpu_float_tile, cpu_quantized_tile
from kernels.compile_cache import compile_worker
from kernels.cpu_call import integers, load_int64, offsets, take_ticket
from kernels.cpu_panels import LANES, PANEL, SWIGLU, PackedWeight, is_quantized
from kernels.cpu_vectors import I64, ITEM_SIZES

CHUNK_ROWS = 192  # rows of a piece: their inputs stay in the core's second cache
# A product of few rows waits for memory, which is fastest where a thread reads on: its pieces are several panels long,
# but not fewer than can be shared.
PIECE_BYTES, FEWEST_PIECES = 64 * 1024, 8


class Product(ctypes.Structure):
    """One product's arguments; strides in bytes. Rows of `input` are padded with zeros to whole steps.

    `steps` is `PackedWeight.steps`, and quantized weights take quantized rows.
    """

    _fields_ = integers(
        "ticket", "num_rows", "num_panels", "steps", "input", "input_row", "weight", "bias", "out", "out_row"
    )


def product_call(input: Tensor, packed: PackedWeight, out: Tensor) -> Product:
    """The call that multiplies the rows of `input` into those of `out`, which must both outlive it."""
    return Product(
        num_rows=input.shape[0],
        num_panels=len(packed.bias) // PANEL,
        steps=packed.steps,
        input=input.data_ptr(),
        input_row=input.stride(0) * input.element_size(),
        weight=packed.weight.data_ptr(),
        bias=packed.bias.data_ptr(),
        out=out.data_ptr(),
        out_row=out.stride(0) * out.element_size(),
    )


@intrinsic(prefer_literal=True)
def multiply_rows(
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
    """Multiply 1 to `tile_rows(kind)` rows with one panel; the last three arguments are constants.

    Sums start at the bias (float32 [PANEL]).
    """
    stored, what, written = (int(x.literal_value) for x in (kind, mode, out_kind))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        after = b.append_basic_block("multiplied")
        cases = [b.append_basic_block(f"rows{height}") for height in range(1, tile_rows(stored) + 1)]
        switch = b.switch(arguments[7], after)
        emit = cpu_quantized_tile.emit_tile if is_quantized(stored) else cpu_float_tile.emit_tile
        for height, case in enumerate(cases, 1):
            switch.add_case(ir.Constant(I64, height), case)
            b.position_at_end(case)
            emit(b, height, arguments[:7], stored, what, written)
            b.branch(after)
        b.position_at_end(after)
        return context.get_dummy_value()

    return types.void(*(types.int64 for _ in range(8)), kind, mode, out_kind), generate


def tile_rows(kind: int) -> int:
    """Rows that are multiplied at once with weights of that kind."""
    return cpu_quantized_tile.TILE_ROWS if is_quantized(kind) else cpu_float_tile.TILE_ROWS


def step_bytes(kind: int) -> int:
    """Bytes of a panel for each of its steps."""
    return cpu_quantized_tile.block_bytes(kind) if is_quantized(kind) else cpu_float_tile.STEP_BYTES


@cache
def product_worker(kind: int, mode: int, out_kind: int) -> Any:
    """A worker for `Product` with weights of `kind`: each piece is some panels times a chunk of rows."""
    at = offsets(Product)
    at_rows, at_panels, at_steps, at_input, at_input_row, at_weight, at_bias, at_out, at_out_row = (
        at[name]
        for name in ("num_rows", "num_panels", "steps", "input", "input_row", "weight", "bias", "out", "out_row")
    )
    out_bytes = (1 if mode == SWIGLU else 2) * LANES * ITEM_SIZES[out_kind]
    most_rows, bytes_of_step, bias_bytes = tile_rows(kind), step_bytes(kind), PANEL * 4

    def product(call: int) -> None:
        rows, panels, steps = load_int64(call + at_rows), load_int64(call + at_panels), load_int64(call + at_steps)
        input, input_row = load_int64(call + at_input), load_int64(call + at_input_row)
        weight, bias = load_int64(call + at_weight), load_int64(call + at_bias)
        out, out_row = load_int64(call + at_out), load_int64(call + at_out_row)
        panel_bytes = steps * bytes_of_step
        chunks, together = -(-rows // CHUNK_ROWS), 1
        if rows <= most_rows:
            together = max(1, min(PIECE_BYTES // panel_bytes, panels // FEWEST_PIECES))
        groups = -(-panels // together)
        pieces = groups * chunks
        while True:
            piece = take_ticket(call)
            if piece >= pieces:
                break
            chunk, group = divmod(piece, groups)
            first, end = rows * chunk // chunks, rows * (chunk + 1) // chunks
            for panel in range(group * together, min(panels, (group + 1) * together)):
                row, tiles = first, -(-(end - first) // most_rows)
                while row < end:
                    height = -(-(end - row) // tiles)
                    multiply_rows(
                        input + row * input_row, input_row, weight + panel * panel_bytes, bias + panel * bias_bytes,
                        out + row * out_row + panel * out_bytes, out_row, steps, height, kind, mode, out_kind,
                    )  # fmt: skip
                    row += height
                    tiles -= 1

    return compile_worker(product)
