"""Matrix products of a CPU step: packed weights times the rows of a step, with what follows fused into the store.

A weight [N, K] is packed into panels of 32 outputs. Within a panel the outputs of one k (fp32), or of a pair of
neighbouring k (bf16, as the dot-product instruction takes them), lie side by side: a panel is read once from front to
back, two vectors at a time, and stays in the core's cache while tile after tile of rows is multiplied with it.
The register tiling is that of BLIS (Van Zee and van de Geijn, 2015), without its copies of the rows.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from torch import Tensor

from kernels import cpu_tile
from kernels.compile_cache import compile_worker
from kernels.cpu_shared_tile import BFloat, has_dots
from kernels.cpu_tile import BFLOAT16, F32, FLOAT32, I64, ITEM_SIZES, LOG2E, Lanes, load_int64, offset, take_ticket


def _register_tile() -> tuple[int, int]:
    """Lanes of a vector, and rows multiplied at once: two accumulators each, with registers left for operands."""
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 12
    return (8, 6) if features.get("avx2") else (4, 12 if features.get("neon") else 6)


LANES, TILE_ROWS = _register_tile()
PANEL = 2 * LANES  # outputs of a panel
CHUNK_ROWS = 192  # rows of a piece: their inputs stay in the core's second cache
# What becomes of a product: stored, added to a float32 residual, or silu(first half of a panel) * second half.
STORE, ADD, SWIGLU = 0, 1, 2
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}

SOURCES = hashlib.sha256(Path(str(cpu_tile.__file__)).read_bytes()).hexdigest()


class Product(ctypes.Structure):
    """One product's arguments; strides in bytes. Rows of `input` are padded as `padded_inputs` says."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "ticket", "num_rows", "num_panels", "steps",
            "input", "input_row", "weight", "bias", "out", "out_row",
        )
    )  # fmt: skip


def padded_inputs(columns: int, kind: int) -> int:
    """Columns of an input row that a product reads; those past `columns` must be 0."""
    return columns + columns % 2 if kind == BFLOAT16 else columns


def padded_outputs(rows: int) -> int:
    """Outputs that a product of a weight with `rows` rows writes: whole panels."""
    return -(-rows // PANEL) * PANEL


def pack(weight: Tensor) -> Tensor:
    """[N, K] in bfloat16 or float32 as [panels, K / pair, PANEL, pair], zeros where it is padded."""
    rows, columns = weight.shape
    pair = 2 if weight.dtype == torch.bfloat16 else 1
    missing = (-columns % pair, padded_outputs(rows) - rows)
    padded = torch.nn.functional.pad(weight, (0, missing[0], 0, missing[1]))
    return padded.view(-1, PANEL, padded.shape[1] // pair, pair).transpose(1, 2).contiguous()


def pack_bias(bias: Tensor | None, rows: int) -> Tensor:
    """float32 [padded_outputs(rows)], zeros where there is none."""
    packed = torch.zeros(padded_outputs(rows))
    if bias is not None:
        packed[:rows] = bias
    return packed


def _multiply_tile(b: Any, height: int, arguments: list[Any], kind: int, mode: int, out_kind: int) -> None:
    """Emit the product of `height` rows with one panel, and its store."""
    input, input_row, weight, bias, out, out_row, steps = arguments
    lanes = Lanes(b, LANES)
    starts = [lanes.load(offset(b, bias, j * LANES * 4)) for j in range(2)]
    sums = _accumulate(b, lanes, kind, height, input, input_row, weight, steps, starts)
    store_rows(b, lanes, sums, out, out_row, mode, out_kind)


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
    panel = b.add(weight, b.mul(step, ir.Constant(I64, PANEL * 4)))
    weights = [lanes.load(offset(b, panel, j * LANES * 4)) for j in range(2)]
    results = []
    for r in range(height):
        address = b.add(b.add(pointers[r // 3], strides[r % 3]), column)
        element = lanes.splat(b.load(b.inttoptr(address, F32.as_pointer()), align=2))
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
    if not has_dots():
        for half in (_first_of_pairs, _second_of_pairs):
            sums = lanes.fma(half(b, lanes, element), half(b, lanes, weights), sums)
        return sums
    pairs = ir.VectorType(BFloat(), 2 * LANES)
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = cgutils.get_or_insert_function(b.module, ir.FunctionType(lanes.type, [lanes.type, pairs, pairs]), name)
    return b.call(function, [sums, b.bitcast(element, pairs), b.bitcast(weights, pairs)])


def _first_of_pairs(b: Any, lanes: Lanes, pairs: Any) -> Any:
    return b.bitcast(b.shl(b.bitcast(pairs, lanes.int_type), lanes.int_constant(16)), lanes.type)


def _second_of_pairs(b: Any, lanes: Lanes, pairs: Any) -> Any:
    return b.bitcast(b.and_(b.bitcast(pairs, lanes.int_type), lanes.int_constant(0xFFFF0000)), lanes.type)


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
    """Multiply 1 to TILE_ROWS rows with one panel; the last three arguments are constants.

    `steps` is K, or the number of pairs of it. Accumulators start at the bias (float32 [PANEL]).
    """
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
def product_worker(kind: int, mode: int, out_kind: int) -> Any:
    """A worker for `Product`: each piece is one panel times a chunk of rows."""
    at = {field[0]: getattr(Product, field[0]).offset for field in Product._fields_}
    at_rows, at_panels, at_steps, at_input, at_input_row, at_weight, at_bias, at_out, at_out_row = (
        at[name]
        for name in ("num_rows", "num_panels", "steps", "input", "input_row", "weight", "bias", "out", "out_row")
    )
    out_bytes = (1 if mode == SWIGLU else 2) * LANES * ITEM_SIZES[out_kind]
    stamp = SOURCES

    def product(call: int) -> None:
        stamp  # noqa: B018  (part of the cache key)
        rows, panels, steps = load_int64(call + at_rows), load_int64(call + at_panels), load_int64(call + at_steps)
        input, input_row = load_int64(call + at_input), load_int64(call + at_input_row)
        weight, bias = load_int64(call + at_weight), load_int64(call + at_bias)
        out, out_row = load_int64(call + at_out), load_int64(call + at_out_row)
        chunks = -(-rows // CHUNK_ROWS)
        pieces = panels * chunks
        while True:
            piece = take_ticket(call)
            if piece >= pieces:
                break
            chunk, panel = divmod(piece, panels)
            row, end = rows * chunk // chunks, rows * (chunk + 1) // chunks
            tiles = -(-(end - row) // TILE_ROWS)
            panel_weight, panel_bias = weight + panel * steps * PANEL * 4, bias + panel * PANEL * 4
            while row < end:
                height = -(-(end - row) // tiles)
                source, target = input + row * input_row, out + row * out_row + panel * out_bytes
                multiply_rows(
                    source, input_row, panel_weight, panel_bias, target, out_row, steps, height, kind, mode, out_kind
                )
                row += height
                tiles -= 1

    return compile_worker(product)


@dataclass(frozen=True)
class PackedWeight:
    """A weight [rows, columns] and its bias, packed for `product_worker`."""

    weight: Tensor
    bias: Tensor  # float32 [padded_outputs(rows)], zeros where there is none
    rows: int
    columns: int
    kind: int

    @property
    def steps(self) -> int:
        """What `Product.steps` must be."""
        return self.weight.shape[1]


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedWeight:
    """Pack [N, K] in bfloat16 or float32, and a bias [N]."""
    rows, columns = weight.shape
    return PackedWeight(pack(weight), pack_bias(bias, rows), rows, columns, KINDS[weight.dtype])


def pack_gated(weight: Tensor, bias: Tensor | None = None) -> PackedWeight:
    """Pack gate and up, one below the other in [2 * N, K], for SWIGLU: each panel has 16 of either."""
    return pack_linear(interleave_gated(weight), interleave_gated_bias(bias))


def interleave_gated(rows: Tensor) -> Tensor:
    """[2 * N, K] as SWIGLU wants its panels: 16 rows of the first half, 16 of the second, padded with zeros."""
    halves = rows.view(2, rows.shape[0] // 2, -1)
    halves = torch.nn.functional.pad(halves, (0, 0, 0, -halves.shape[1] % LANES))
    return halves.view(2, -1, LANES, halves.shape[2]).transpose(0, 1).reshape(-1, halves.shape[2])


def interleave_gated_bias(bias: Tensor | None) -> Tensor | None:
    """As `interleave_gated`, for [2 * N] or none."""
    return None if bias is None else interleave_gated(bias[:, None])[:, 0]


def multiplies(dtype: torch.dtype) -> bool:
    """Whether this processor has the vectors that `product_worker` wants, and it takes `dtype`."""
    features = llvmlite.binding.get_host_cpu_features()
    return dtype in KINDS and any(features.get(name) for name in ("avx512f", "avx2", "neon"))
