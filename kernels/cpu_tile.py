"""The inner step of CPU attention as vector instructions: a few keys and values against one GQA group.

The arithmetic is the running softmax of Milakov and Gimelshein (2018), in base 2. All of it is fp32.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kernels.cpu_vectors import F32, I32, I64, ITEM_SIZES, Lanes, emit_prefetch, lanes_for, offset

ACCUMULATORS = 24  # vector registers for sums; the other 8 hold operands


@intrinsic(prefer_literal=True)
def attend_tile(
    typingctx: Any,
    query: Any,
    sums: Any,
    maxima: Any,
    totals: Any,
    keys: Any,
    values: Any,
    key_stride: Any,
    value_stride: Any,
    cap: Any,
    group: Any,
    head_dim: Any,
    count: Any,
    kind: Any,
    capped: Any,
) -> Any:
    """Add `count` keys and values (`key_stride`, `value_stride` bytes apart) to a group's running softmax.

    fp32 query and sums [group, head_dim], maxima and totals [group]; queries come multiplied by log2(e) * scale
    (by scale / cap if `capped`), `cap` by log2(e).
    The last five arguments are compile-time constants.
    """
    g, d, n, stored, has_cap = (int(x.literal_value) for x in (group, head_dim, count, kind, capped))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        query, sums, maxima, totals, keys, values, key_stride, value_stride, cap = arguments[:9]
        b = builder
        lanes = Lanes(b, lanes_for(d))
        chunks = d // lanes.lanes
        item = ITEM_SIZES[stored]
        tile = Lanes(b, n)
        heads = Lanes(b, g)

        def row(base: Any, stride: Any, index: int) -> Any:
            return b.add(base, b.mul(stride, ir.Constant(I64, index))) if index else base

        # scores[head] = one vector over the tile's keys
        partial: list[list[Any]] = [[None] * n for _ in range(g)]
        for first in range(0, g, max(1, ACCUMULATORS // (2 * chunks))):
            some = range(first, min(g, first + max(1, ACCUMULATORS // (2 * chunks))))
            queries = {
                h: [lanes.load(offset(b, query, 4 * (h * d + c * lanes.lanes))) for c in range(chunks)] for h in some
            }
            for j in range(n):
                address = row(keys, key_stride, j)
                for c in range(chunks):
                    key = lanes.load(offset(b, address, c * lanes.lanes * item), stored)
                    for h in some:
                        if c == 0:
                            partial[h][j] = b.fmul(queries[h][c], key)
                        else:
                            partial[h][j] = lanes.fma(queries[h][c], key, partial[h][j])
        scores = [lanes.sum_each(partial[h]) for h in range(g)]
        if has_cap:
            factor = tile.splat(b.fptrunc(cap, F32))
            scores = [b.fmul(tile.tanh(s), factor) for s in scores]

        # new maxima, weights, and by how much the old sums shrink
        old_maxima = heads.load(maxima)
        best = ir.Constant(heads.type, ir.Undefined)
        for h in range(g):
            best = b.insert_element(best, tile.reduce("fmax", scores[h]), ir.Constant(I32, h))
        new_maxima = heads.call("maxnum", old_maxima, best)
        shrink = heads.exp2(b.fsub(old_maxima, new_maxima))
        weights, added = [], ir.Constant(heads.type, ir.Undefined)
        for h in range(g):
            maximum = b.extract_element(new_maxima, ir.Constant(I32, h))
            weights.append(tile.exp2(b.fsub(scores[h], tile.splat(maximum))))
            total = tile.reduce("fadd", weights[h], start=-0.0)
            added = b.insert_element(added, total, ir.Constant(I32, h))
        heads.store(new_maxima, maxima)
        heads.store(heads.fma(heads.load(totals), shrink, added), totals)

        # sums = sums * shrink + weights @ values, a register-full at a time
        head_step = min(g, 8)
        chunk_step = max(1, ACCUMULATORS // head_step)
        for first_head in range(0, g, head_step):
            some = range(first_head, min(g, first_head + head_step))
            for first_chunk in range(0, chunks, chunk_step):
                some_chunks = range(first_chunk, min(chunks, first_chunk + chunk_step))
                accumulators = {}
                for h in some:
                    factor = lanes.splat(b.extract_element(shrink, ir.Constant(I32, h)))
                    for c in some_chunks:
                        place = offset(b, sums, 4 * (h * d + c * lanes.lanes))
                        accumulators[h, c] = b.fmul(lanes.load(place), factor)
                for j in range(n):
                    address = row(values, value_stride, j)
                    spread = {h: lanes.splat(b.extract_element(weights[h], ir.Constant(I32, j))) for h in some}
                    for c in some_chunks:
                        value = lanes.load(offset(b, address, c * lanes.lanes * item), stored)
                        for h in some:
                            accumulators[h, c] = lanes.fma(spread[h], value, accumulators[h, c])
                for (h, c), vector in accumulators.items():
                    lanes.store(vector, offset(b, sums, 4 * (h * d + c * lanes.lanes)))
        return context.get_dummy_value()

    signature = types.void(*(types.int64 for _ in range(8)), types.float64, group, head_dim, count, kind, capped)
    return signature, generate


@intrinsic(prefer_literal=True)
def copy_scaled(
    typingctx: Any, source: Any, target: Any, factor: Any, size: Any, source_kind: Any, target_kind: Any
) -> Any:
    """target[i] = source[i] * factor for `size` elements; the last three arguments are compile-time constants."""
    count, from_kind, to_kind = (int(x.literal_value) for x in (size, source_kind, target_kind))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, factor = arguments[:3]
        lanes = Lanes(builder, lanes_for(count))
        scale = lanes.splat(builder.fptrunc(factor, F32))
        for start in range(0, count, lanes.lanes):
            vector = lanes.load(offset(builder, source, start * ITEM_SIZES[from_kind]), from_kind)
            place = offset(builder, target, start * ITEM_SIZES[to_kind])
            lanes.store(builder.fmul(vector, scale), place, to_kind)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float64, size, source_kind, target_kind), generate


@intrinsic(prefer_literal=True)
def copy_elements(typingctx: Any, source: Any, target: Any, size: Any, kind: Any) -> Any:
    """Copy `size` elements bit for bit; the last two arguments are compile-time constants."""
    bytes_ = int(size.literal_value) * ITEM_SIZES[int(kind.literal_value)]
    width = math.gcd(bytes_, 64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.VectorType(ir.IntType(8), width).as_pointer()
        for start in range(0, bytes_, width):
            source, target = (offset(builder, address, start) for address in arguments[:2])
            piece = builder.load(builder.inttoptr(source, pointer), align=1)
            builder.store(piece, builder.inttoptr(target, pointer), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, size, kind), generate


@intrinsic(prefer_literal=True)
def prefetch(typingctx: Any, address: Any, stride: Any, count: Any, size: Any) -> Any:
    """Ask for `count` rows of `size` bytes, `stride` bytes apart, to be brought near; the last two are constants.

    Blocks lie scattered, so the processor cannot guess the next one.
    """
    rows, bytes_ = int(count.literal_value), int(size.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, stride = arguments[:2]
        for row in range(rows):
            emit_prefetch(builder, builder.add(address, builder.mul(stride, ir.Constant(I64, row))), bytes_)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, count, size), generate


@intrinsic(prefer_literal=True)
def clear_state(typingctx: Any, state: Any, group: Any, head_dim: Any) -> Any:
    """Empty a running softmax: sums and totals 0, maxima -inf; its queries stay."""
    g, d = int(group.literal_value), int(head_dim.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, heads = Lanes(builder, lanes_for(d)), Lanes(builder, g)
        sums = offset(builder, arguments[0], 4 * g * d)
        for start in range(0, g * d, lanes.lanes):
            lanes.store(lanes.constant(0.0), offset(builder, sums, 4 * start))
        maxima = offset(builder, sums, 4 * g * d)
        heads.store(heads.constant(-math.inf), maxima)
        heads.store(heads.constant(0.0), offset(builder, maxima, 4 * g))
        return context.get_dummy_value()

    return types.void(types.int64, group, head_dim), generate


@intrinsic(prefer_literal=True)
def merge_state(typingctx: Any, target: Any, source: Any, group: Any, head_dim: Any) -> Any:
    """Add a running softmax over other keys, which may be none, to `target`, which has seen some."""
    g, d = int(group.literal_value), int(head_dim.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b = builder
        lanes, heads = Lanes(b, lanes_for(d)), Lanes(b, g)
        into, other = (offset(b, address, 4 * g * d) for address in arguments[:2])
        into_maxima, other_maxima = (offset(b, address, 4 * g * d) for address in (into, other))
        into_old, other_old = heads.load(into_maxima), heads.load(other_maxima)
        maxima = heads.call("maxnum", into_old, other_old)
        shrink, other_shrink = heads.exp2(b.fsub(into_old, maxima)), heads.exp2(b.fsub(other_old, maxima))
        into_totals, other_totals = (offset(b, address, 4 * g) for address in (into_maxima, other_maxima))
        kept = b.fmul(heads.load(into_totals), shrink)
        heads.store(heads.fma(heads.load(other_totals), other_shrink, kept), into_totals)
        heads.store(maxima, into_maxima)
        for h in range(g):
            index = ir.Constant(I32, h)
            factor = lanes.splat(b.extract_element(shrink, index))
            other_factor = lanes.splat(b.extract_element(other_shrink, index))
            for start in range(h * d, (h + 1) * d, lanes.lanes):
                place = offset(b, into, 4 * start)
                added = b.fmul(lanes.load(offset(b, other, 4 * start)), other_factor)
                lanes.store(lanes.fma(lanes.load(place), factor, added), place)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, group, head_dim), generate
