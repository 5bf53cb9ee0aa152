"""The inner step of CPU attention in bf16 dot products: sixteen keys and values against one GQA group.

As `cpu_tile.attend_tile`, without widening: a key's products with a query add up in pairs, and values are taken two
keys at a time. What it adds to the running softmax is in fp32; weights are rounded to bf16, and totals add the rounded
ones, so that they still sum to one.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kernels.cpu_vectors import BFLOAT16, F32, I32, I64, Lanes, emit_prefetch, offset

TILE = 16
PAIRS = 32  # elements of a vector of pairs


def fits(head_dim: int, block_size: int) -> bool:
    """Whether heads are whole vectors of pairs, and blocks whole tiles."""
    return head_dim % PAIRS == 0 and block_size % TILE == 0


@intrinsic(prefer_literal=True)
def attend_dots(
    typingctx: Any,
    query: Any,
    sums: Any,
    maxima: Any,
    totals: Any,
    keys: Any,
    values: Any,
    key_stride: Any,
    value_stride: Any,
    keys_ahead: Any,
    values_ahead: Any,
    scratch: Any,
    factor: Any,
    cap: Any,
    group: Any,
    head_dim: Any,
    capped: Any,
) -> Any:
    """Add 16 keys and values (strides in bytes) to a group's running softmax.

    query bf16 [group, head_dim]; scores are multiplied by `factor`, and by `cap` after tanh if `capped`. `scratch` has
    room for 32 bytes a head. What lies at `keys_ahead` and `values_ahead` is asked for between the products: blocks lie
    scattered, and 64 requests at once would stop the core until most are answered (measured: 1.2 times as fast).
    sums, maxima and totals as in `attend_tile`. The last three arguments are constants.
    """
    g, d, has_cap = (int(x.literal_value) for x in (group, head_dim, capped))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        query, sums, maxima, totals, keys, values, key_stride, value_stride = arguments[:8]
        keys_ahead, values_ahead, scratch, factor, cap = arguments[8:13]
        b = builder
        lanes, heads = Lanes(b, TILE), Lanes(b, g)
        words = ir.VectorType(ir.IntType(16), PAIRS)

        def load_words(address: Any) -> Any:
            return b.load(b.inttoptr(address, words.as_pointer()), align=2)

        def row(base: Any, stride: Any, index: int) -> Any:
            return b.add(base, b.mul(stride, ir.Constant(I64, index))) if index else base

        scale = lanes.splat(b.fptrunc(factor, F32))
        scores = []
        for h in range(g):
            parts = [load_words(offset(b, query, 2 * (h * d + start))) for start in range(0, d, PAIRS)]
            products = []
            for j in range(TILE):
                address, total = row(keys, key_stride, j), lanes.constant(0.0)
                for start, part in zip(range(0, d, PAIRS), parts, strict=True):
                    total = lanes.dot(total, part, load_words(offset(b, address, 2 * start)))
                products.append(total)
                if h == 0:
                    emit_prefetch(b, row(keys_ahead, key_stride, j), 2 * d)
            score = b.fmul(lanes.sum_each(products), scale)
            if has_cap:
                score = b.fmul(lanes.tanh(score), lanes.splat(b.fptrunc(cap, F32)))
            scores.append(score)

        old_maxima = heads.load(maxima)
        best = ir.Constant(heads.type, ir.Undefined)
        for h in range(g):
            best = b.insert_element(best, lanes.reduce("fmax", scores[h]), ir.Constant(I32, h))
        new_maxima = heads.call("maxnum", old_maxima, best)
        shrink = heads.exp2(b.fsub(old_maxima, new_maxima))
        added = ir.Constant(heads.type, ir.Undefined)
        for h in range(g):
            maximum = lanes.splat(b.extract_element(new_maxima, ir.Constant(I32, h)))
            weights = lanes.exp2(b.fsub(scores[h], maximum))
            lanes.store(weights, offset(b, scratch, h * 2 * TILE), BFLOAT16)
            rounded = b.bitcast(lanes.round_to_bfloat16(weights), lanes.type)
            total = lanes.reduce("fadd", rounded, start=-0.0)
            added = b.insert_element(added, total, ir.Constant(I32, h))
        heads.store(new_maxima, maxima)
        heads.store(heads.fma(heads.load(totals), shrink, added), totals)
        # Weights are read back in pairs as broadcasts; without this LLVM would shuffle them out of registers.
        b.fence("seq_cst", targetscope="singlethread")

        # Interleaved, two keys' values lie as their weights do: neighbours of one dimension are a pair.
        order = [PAIRS * (i % 2) + i // 2 for i in range(2 * PAIRS)]
        masks = [
            ir.Constant(ir.VectorType(I32, PAIRS), [ir.Constant(I32, i) for i in part])
            for part in (order[:PAIRS], order[PAIRS:])
        ]
        for start in range(0, d, 2 * PAIRS):
            columns = range(start, min(d, start + 2 * PAIRS), PAIRS)
            accumulators = {}
            for h in range(g):
                less = lanes.splat(b.extract_element(shrink, ir.Constant(I32, h)))
                for column in columns:
                    for half in range(2):
                        at = column + half * TILE
                        accumulators[h, at] = b.fmul(lanes.load(offset(b, sums, 4 * (h * d + at))), less)
            for j in range(0, TILE, 2):
                even, odd = row(values, value_stride, j), row(values, value_stride, j + 1)
                if start == 0:
                    for ahead in (j, j + 1):
                        emit_prefetch(b, row(values_ahead, value_stride, ahead), 2 * d)
                pairs = [lanes.broadcast(offset(b, scratch, h * 2 * TILE + 2 * j)) for h in range(g)]
                for column in columns:
                    first, second = (load_words(offset(b, address, 2 * column)) for address in (even, odd))
                    for half, mask in enumerate(masks):
                        mixed = b.shuffle_vector(first, second, mask)
                        at = column + half * TILE
                        for h in range(g):
                            accumulators[h, at] = lanes.dot(accumulators[h, at], pairs[h], mixed)
            for (h, at), vector in accumulators.items():
                lanes.store(vector, offset(b, sums, 4 * (h * d + at)))
        return context.get_dummy_value()

    signature = types.void(*(types.int64 for _ in range(11)), types.float64, types.float64, group, head_dim, capped)
    return signature, generate
