"""What a CPU step does between its matrix products, row by row: embedding, norms, rotation with the cache write.

Sums are float32 whatever is stored. Rows are padded with zeros to whole vectors, so that no loop has a tail.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kernels.compile_cache import compile_worker
from kernels.cpu_call import integers, load_float64, load_int64, offsets, take_rows
from kernels.cpu_tile import copy_scaled
from kernels.cpu_vectors import F32, FLOAT32, I64, ITEM_SIZES, Lanes, emit_loop, lanes_for, offset

LANES = 16


class Lookup(ctypes.Structure):
    """Rows of `table`, chosen by int64 `indexes`, widened to float32 (`lookup_worker`) or copied (`gather_worker`)."""

    _fields_ = integers("ticket", "num_rows", "vectors", "indexes", "table", "table_row", "out", "out_row")


class Norm(ctypes.Structure):
    """Root-mean-square norm of float32 rows times a float32 weight; `size` elements count, `vectors` are read."""

    _fields_ = (
        *integers("ticket", "num_rows", "vectors", "size", "input", "input_row", "weight", "out", "out_row"),
        ("eps", ctypes.c_double),
    )


class Rotation(ctypes.Structure):
    """Rotation of a step's float32 queries and keys, and the write of its keys and values to their slots.

    A row of `input` is its query heads, key heads, value heads; slot -1 is not written. cos and sin are float32
    [positions, head_dim / 2]. The norms (float32 [head_dim]) are used by workers compiled for them.
    """

    _fields_ = (
        *integers(
            "ticket", "num_rows", "num_heads", "num_kv_heads", "block_size", "input", "input_row",
            "positions", "slots", "cos", "sin", "query_norm", "key_norm", "query", "query_row",
            "keys", "key_block", "key_head", "key_slot", "values", "value_block", "value_head", "value_slot",
        ),
        ("eps", ctypes.c_double),
    )  # fmt: skip


def padded(size: int) -> int:
    """`size` elements in whole vectors."""
    return -(-size // LANES) * LANES


@intrinsic(prefer_literal=True)
def copy_row(typingctx: Any, source: Any, target: Any, vectors: Any, kind: Any, target_kind: Any) -> Any:
    """Copy whole vectors of one kind to another; the last two arguments are constants."""
    from_kind, to_kind = int(kind.literal_value), int(target_kind.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, vectors = arguments[:3]
        b, lanes = builder, Lanes(builder, LANES)

        def body(i: Any, carried: list[Any]) -> list[Any]:
            def place(base: Any, item: int) -> Any:
                return b.add(base, b.mul(i, ir.Constant(I64, LANES * item)))

            lanes.store(
                lanes.load(place(source, ITEM_SIZES[from_kind]), from_kind), place(target, ITEM_SIZES[to_kind]), to_kind
            )
            return carried

        emit_loop(b, vectors, [], body)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, kind, target_kind), generate


@intrinsic(prefer_literal=True)
def norm_row(
    typingctx: Any, source: Any, weight: Any, target: Any, vectors: Any, size: Any, eps: Any, kind: Any
) -> Any:
    """target = source / sqrt(mean(source**2) + eps) * weight, stored as `kind` (a constant)."""
    to_kind = int(kind.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, weight, target, vectors, size, eps = arguments[:6]
        b, lanes = builder, Lanes(builder, LANES)

        def place(base: Any, i: Any, item: int = 4) -> Any:
            return b.add(base, b.mul(i, ir.Constant(I64, LANES * item)))

        def add_square(i: Any, carried: list[Any]) -> list[Any]:
            x = lanes.load(place(source, i))
            return [lanes.fma(x, x, carried[0])]

        (squares,) = emit_loop(b, vectors, [lanes.constant(0.0)], add_square)
        factor = _inverse_root(b, lanes, squares, b.sitofp(size, F32), eps)

        def scale(i: Any, carried: list[Any]) -> list[Any]:
            x = b.fmul(b.fmul(lanes.load(place(source, i)), factor), lanes.load(place(weight, i)))
            lanes.store(x, place(target, i, ITEM_SIZES[to_kind]), to_kind)
            return carried

        emit_loop(b, vectors, [], scale)
        return context.get_dummy_value()

    return types.void(*(types.int64 for _ in range(5)), types.float64, kind), generate


def _inverse_root(b: Any, lanes: Lanes, squares: Any, size: Any, eps: Any) -> Any:
    """1 / sqrt(mean + eps) in every lane, of squares summed per lane."""
    mean = b.fdiv(lanes.reduce("fadd", squares, start=-0.0), size)
    deviation = Lanes(b, 1).call("sqrt", b.bitcast(b.fadd(mean, b.fptrunc(eps, F32)), ir.VectorType(F32, 1)))
    return lanes.splat(b.fdiv(ir.Constant(F32, 1.0), b.extract_element(deviation, ir.Constant(ir.IntType(32), 0))))


@intrinsic(prefer_literal=True)
def rotate_head(
    typingctx: Any,
    source: Any,
    target: Any,
    cos: Any,
    sin: Any,
    weight: Any,
    eps: Any,
    head_dim: Any,
    kind: Any,
    normed: Any,
) -> Any:
    """Rotate one float32 head by its position, after a norm of its own if `normed`; stored as `kind`.

    The last three arguments are constants. As in GPT-NeoX, dimension i turns with i + head_dim / 2.
    """
    d, to_kind, has_norm = (int(x.literal_value) for x in (head_dim, kind, normed))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, cos, sin, weight, eps = arguments[:6]
        b, half = builder, d // 2
        lanes = Lanes(b, lanes_for(half))
        starts = range(0, d, lanes.lanes)
        head = [lanes.load(offset(b, source, 4 * start)) for start in starts]
        if has_norm:
            squares = lanes.constant(0.0)
            for vector in head:
                squares = lanes.fma(vector, vector, squares)
            factor = _inverse_root(b, lanes, squares, ir.Constant(F32, float(d)), eps)
            head = [
                b.fmul(b.fmul(vector, factor), lanes.load(offset(b, weight, 4 * start)))
                for vector, start in zip(head, starts, strict=True)
            ]
        middle = len(head) // 2
        for i in range(middle):
            low, high = head[i], head[middle + i]
            c, s = (lanes.load(offset(b, table, 4 * i * lanes.lanes)) for table in (cos, sin))
            turned = (
                b.fsub(b.fmul(low, c), b.fmul(high, s)),
                b.fadd(b.fmul(high, c), b.fmul(low, s)),
            )
            for vector, start in zip(turned, (i * lanes.lanes, half + i * lanes.lanes), strict=True):
                lanes.store(vector, offset(b, target, start * ITEM_SIZES[to_kind]), to_kind)
        return context.get_dummy_value()

    return types.void(*(types.int64 for _ in range(5)), types.float64, head_dim, kind, normed), generate


@cache
def lookup_worker(kind: int, out_kind: int) -> Any:
    """A worker for `Lookup`: rows of `kind`, stored as `out_kind`."""
    at = offsets(Lookup)
    at_rows, at_vectors, at_indexes, at_table, at_table_row, at_out, at_out_row = (
        at[x] for x in ("num_rows", "vectors", "indexes", "table", "table_row", "out", "out_row")
    )

    def lookup(call: int) -> None:
        rows, vectors, indexes = (
            load_int64(call + at_rows),
            load_int64(call + at_vectors),
            load_int64(call + at_indexes),
        )
        table, table_row = load_int64(call + at_table), load_int64(call + at_table_row)
        out, out_row = load_int64(call + at_out), load_int64(call + at_out_row)
        first, end = take_rows(call, rows)
        while first < end:
            for row in range(first, end):
                source = table + load_int64(indexes + 8 * row) * table_row
                copy_row(source, out + row * out_row, vectors, kind, out_kind)
            first, end = take_rows(call, rows)

    return compile_worker(lookup)


@cache
def norm_worker(kind: int) -> Any:
    """A worker for `Norm`: rows are stored as `kind`."""
    at = offsets(Norm)
    at_rows, at_vectors, at_size, at_input, at_input_row, at_weight, at_out, at_out_row, at_eps = (
        at[x] for x in ("num_rows", "vectors", "size", "input", "input_row", "weight", "out", "out_row", "eps")
    )

    def norm(call: int) -> None:
        rows, vectors, size = load_int64(call + at_rows), load_int64(call + at_vectors), load_int64(call + at_size)
        input, input_row = load_int64(call + at_input), load_int64(call + at_input_row)
        weight, eps = load_int64(call + at_weight), load_float64(call + at_eps)
        out, out_row = load_int64(call + at_out), load_int64(call + at_out_row)
        first, end = take_rows(call, rows)
        while first < end:
            for row in range(first, end):
                norm_row(input + row * input_row, weight, out + row * out_row, vectors, size, eps, kind)
            first, end = take_rows(call, rows)

    return compile_worker(norm)


@cache
def rotation_worker(head_dim: int, kind: int, normed: int) -> Any:
    """A worker for `Rotation`: queries, keys and values are stored as `kind`."""
    at = offsets(Rotation)
    at_rows, at_heads, at_kv_heads, at_block_size = (
        at[x] for x in ("num_rows", "num_heads", "num_kv_heads", "block_size")
    )
    at_input, at_input_row, at_positions, at_slots = (at[x] for x in ("input", "input_row", "positions", "slots"))
    at_cos, at_sin, at_query_norm, at_key_norm = (at[x] for x in ("cos", "sin", "query_norm", "key_norm"))
    at_query, at_query_row, at_eps = at["query"], at["query_row"], at["eps"]
    at_keys, at_key_block, at_key_head, at_key_slot = (at[x] for x in ("keys", "key_block", "key_head", "key_slot"))
    at_values, at_value_block, at_value_head, at_value_slot = (
        at[x] for x in ("values", "value_block", "value_head", "value_slot")
    )
    item, head_bytes, table_bytes = ITEM_SIZES[kind], 4 * head_dim, 2 * head_dim

    def rotation(call: int) -> None:
        rows, heads = load_int64(call + at_rows), load_int64(call + at_heads)
        kv_heads, block_size = load_int64(call + at_kv_heads), load_int64(call + at_block_size)
        input, input_row = load_int64(call + at_input), load_int64(call + at_input_row)
        positions, slots = load_int64(call + at_positions), load_int64(call + at_slots)
        cosines, sines = load_int64(call + at_cos), load_int64(call + at_sin)
        query_norm, key_norm = load_int64(call + at_query_norm), load_int64(call + at_key_norm)
        query, query_row, eps = (
            load_int64(call + at_query),
            load_int64(call + at_query_row),
            load_float64(call + at_eps),
        )
        keys, key_block = load_int64(call + at_keys), load_int64(call + at_key_block)
        key_head, key_slot = load_int64(call + at_key_head), load_int64(call + at_key_slot)
        values, value_block = load_int64(call + at_values), load_int64(call + at_value_block)
        value_head, value_slot = load_int64(call + at_value_head), load_int64(call + at_value_slot)
        first, end = take_rows(call, rows)
        while first < end:
            for row in range(first, end):
                source = input + row * input_row
                turn = load_int64(positions + 8 * row) * table_bytes
                cos, sin = cosines + turn, sines + turn
                for head in range(heads):
                    target = query + row * query_row + head * head_dim * item
                    rotate_head(source, target, cos, sin, query_norm, eps, head_dim, kind, normed)
                    source += head_bytes
                slot = load_int64(slots + 8 * row)
                if slot < 0:
                    continue
                block, place = divmod(slot, block_size)
                for head in range(kv_heads):
                    target = keys + block * key_block + head * key_head + place * key_slot
                    rotate_head(source, target, cos, sin, key_norm, eps, head_dim, kind, normed)
                    source += head_bytes
                for head in range(kv_heads):
                    target = values + block * value_block + head * value_head + place * value_slot
                    copy_scaled(source, target, 1.0, head_dim, FLOAT32, kind)
                    source += head_bytes
            first, end = take_rows(call, rows)

    return compile_worker(rotation)
