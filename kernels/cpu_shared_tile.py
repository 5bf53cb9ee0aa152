"""Keys and values that many query rows see: laid out once, then multiplied with each row's heads.

The rows are a chunk's neighbouring queries, or sequences that share a leading run of blocks (as in Hydragen, Juravsky
et al. 2024, and cascade attention, Ye et al. 2024). What differs per row is left to `cpu_tile.attend_tile`: both add
to the same running softmax, so the result is the same.

A tile is 16 keys. Keys are transposed, so that a vector holds one dimension of all of them and no sum crosses lanes.
With `dots` (bf16 on processors with AVX512-BF16) elements stay bf16, in pairs for the dot-product instruction, which
adds in fp32; weights are then rounded to bf16, and totals add the rounded weights.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kernels.cpu_vectors import BFLOAT16, F32, FLOAT32, I32, I64, ITEM_SIZES, Lanes, emit_loop, offset

TILE = 16
TILES = 4  # taken together, so that maxima, sums and what they change are found once for all of them (measured)
VECTOR_BYTES = 64
BATCH_HEADS = 12  # query heads multiplied at once: one accumulator each, and the code fits the cache


def tile_bytes(head_dim: int) -> int:
    """How far apart prepared tiles lie."""
    return 2 * head_dim * VECTOR_BYTES


def scratch_bytes(head_dim: int, heads: int) -> int:
    """Room for prepared tiles and one batch's weights."""
    return TILES * (tile_bytes(head_dim) + heads * VECTOR_BYTES)


def _transpose(lanes: Lanes, vectors: list[Any]) -> list[Any]:
    """Sixteen vectors of sixteen lanes: swap the off-diagonal halves of ever larger squares."""
    for step in (1, 2, 4, 8):
        upper = [i if not i & step else TILE + i - step for i in range(TILE)]
        lower = [i + step if not i & step else TILE + i for i in range(TILE)]
        swapped = list(vectors)
        for i in range(TILE):
            if not i & step:
                swapped[i] = lanes.shuffle(vectors[i], vectors[i | step], upper)
                swapped[i | step] = lanes.shuffle(vectors[i], vectors[i | step], lower)
        vectors = swapped
    return vectors


@intrinsic(prefer_literal=True)
def prepare_tile(
    typingctx: Any,
    keys: Any,
    values: Any,
    key_stride: Any,
    value_stride: Any,
    scratch: Any,
    head_dim: Any,
    kind: Any,
    dots: Any,
) -> Any:
    """Lay out 16 keys and values at `scratch` for `attend_prepared`; strides are in bytes.

    fp32: keys [head_dim, 16], values [16, head_dim]. With dots, pairs of bf16: keys [head_dim / 2, 16] of
    neighbouring dimensions, values [8, head_dim] of neighbouring keys. The last three arguments are constants.
    """
    d, stored, paired = (int(x.literal_value) for x in (head_dim, kind, dots))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys, values, key_stride, value_stride, scratch = arguments[:5]
        b = builder
        lanes = Lanes(b, TILE)
        item = ITEM_SIZES[stored]

        def row(base: Any, stride: Any, index: int) -> Any:
            return b.add(base, b.mul(stride, ir.Constant(ir.IntType(64), index)))

        # a vector of keys is 16 dimensions, or 16 pairs of them, which move as fp32 would
        columns = d // 2 if paired else d
        for start in range(0, columns, TILE):
            rows = [
                lanes.load(
                    offset(b, row(keys, key_stride, j), start * (4 if paired else item)),
                    FLOAT32 if paired else stored,
                )
                for j in range(TILE)
            ]
            for i, vector in enumerate(_transpose(lanes, rows)):
                lanes.store(vector, offset(b, scratch, (start + i) * VECTOR_BYTES))
        laid = offset(b, scratch, columns * VECTOR_BYTES)
        narrow = ir.VectorType(ir.IntType(16), TILE).as_pointer()
        for start in range(0, d, TILE):
            if paired:
                for j in range(0, TILE, 2):
                    even, odd = (
                        b.zext(
                            b.load(
                                b.inttoptr(offset(b, row(values, value_stride, j + i), start * item), narrow),
                                align=2,
                            ),
                            lanes.int_type,
                        )
                        for i in range(2)
                    )
                    pair = b.or_(even, b.shl(odd, lanes.int_constant(16)))
                    place = offset(b, laid, (j // 2 * d + start) * 4)
                    lanes.store(b.bitcast(pair, lanes.type), place)
            else:
                for j in range(TILE):
                    vector = lanes.load(offset(b, row(values, value_stride, j), start * item), stored)
                    lanes.store(vector, offset(b, laid, (j * d + start) * 4))
        return context.get_dummy_value()

    return types.void(*(types.int64 for _ in range(5)), head_dim, kind, dots), generate


@intrinsic(prefer_literal=True)
def attend_prepared(
    typingctx: Any,
    query: Any,
    sums: Any,
    maxima: Any,
    totals: Any,
    scratch: Any,
    tiles: Any,
    factor: Any,
    cap: Any,
    heads: Any,
    head_dim: Any,
    dots: Any,
    capped: Any,
) -> Any:
    """Add prepared tiles, from 1 to TILES, to the running softmax of `heads` query heads.

    query [heads, head_dim] as fp32, or as bf16 with dots; scores are multiplied by `factor`, and by `cap` after
    tanh if `capped`. sums, maxima and totals as in `attend_tile`. The last four arguments are constants.
    """
    g, d, paired, has_cap = (int(x.literal_value) for x in (heads, head_dim, dots, capped))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        query, sums, maxima, totals, scratch, tiles, factor, cap = arguments[:8]
        b = builder
        lanes, batch = Lanes(b, TILE), Lanes(b, g)
        columns = d // 2 if paired else d
        weights_at = TILES * tile_bytes(d)

        def multiply_add(sums: Any, x: Any, y: Any) -> Any:
            return lanes.dot(sums, x, y) if paired else lanes.fma(x, y, sums)

        def of_tile(t: Any, count: int) -> Any:
            return b.add(scratch, b.mul(t, ir.Constant(I64, count)))

        def weights_of(t: Any, h: int) -> Any:
            return offset(b, of_tile(t, g * VECTOR_BYTES), weights_at + h * VECTOR_BYTES)

        scale = lanes.splat(b.fptrunc(factor, F32))
        limit = lanes.splat(b.fptrunc(cap, F32))

        def score(t: Any, best: list[Any]) -> list[Any]:
            """Leave a tile's scores where its weights will be; the highest so far of each lane."""
            prepared = of_tile(t, tile_bytes(d))
            scores = [lanes.constant(0.0)] * g
            for column in range(columns):
                key = lanes.load(offset(b, prepared, column * VECTOR_BYTES))
                for h in range(g):
                    element = lanes.broadcast(offset(b, query, (h * columns + column) * 4))
                    scores[h] = multiply_add(scores[h], element, key)
            scores = [b.fmul(s, scale) for s in scores]
            if has_cap:
                scores = [b.fmul(lanes.tanh(s), limit) for s in scores]
            for h in range(g):
                lanes.store(scores[h], weights_of(t, h))
            return [lanes.call("maxnum", old, new) for old, new in zip(best, scores, strict=True)]

        highest = emit_loop(b, tiles, [lanes.constant(-math.inf)] * g, score)
        old_maxima = batch.load(maxima)
        best = ir.Constant(batch.type, ir.Undefined)
        for h in range(g):
            best = b.insert_element(best, lanes.reduce("fmax", highest[h]), ir.Constant(I32, h))
        new_maxima = batch.call("maxnum", old_maxima, best)
        shrink = batch.exp2(b.fsub(old_maxima, new_maxima))
        batch.store(new_maxima, maxima)

        def weigh(t: Any, sums_of_weights: list[Any]) -> list[Any]:
            """A tile's scores become weights; their sum so far in each lane."""
            added = []
            for h in range(g):
                place = weights_of(t, h)
                maximum = lanes.broadcast(offset(b, maxima, 4 * h))
                weights = lanes.exp2(b.fsub(lanes.load(place), maximum))
                lanes.store(weights, place, BFLOAT16 if paired else FLOAT32)
                if paired:  # totals add what the products will
                    weights = b.bitcast(lanes.round_to_bfloat16(weights), lanes.type)
                added.append(b.fadd(sums_of_weights[h], weights))
            return added

        weighed = emit_loop(b, tiles, [lanes.constant(0.0)] * g, weigh)
        added = ir.Constant(batch.type, ir.Undefined)
        for h in range(g):
            added = b.insert_element(added, lanes.reduce("fadd", weighed[h], start=-0.0), ir.Constant(I32, h))
        batch.store(batch.fma(batch.load(totals), shrink, added), totals)
        # Weights are read back one by one as broadcasts; without this LLVM would shuffle them out of registers.
        b.fence("seq_cst", targetscope="singlethread")

        chunks = d // TILE
        chunk_step = min(chunks, 4)
        head_step = max(1, 24 // chunk_step)
        for first_head in range(0, g, head_step):
            some = range(first_head, min(g, first_head + head_step))
            for first_chunk in range(0, chunks, chunk_step):
                some_chunks = range(first_chunk, min(chunks, first_chunk + chunk_step))
                places = [(h, c) for h in some for c in some_chunks]
                accumulators = []
                for h, c in places:
                    less = lanes.splat(b.extract_element(shrink, ir.Constant(I32, h)))
                    place = offset(b, sums, 4 * (h * d + c * TILE))
                    accumulators.append(b.fmul(lanes.load(place), less))

                def add_values(
                    t: Any, carried: list[Any], some: range = some, some_chunks: range = some_chunks
                ) -> list[Any]:
                    laid = offset(b, of_tile(t, tile_bytes(d)), columns * VECTOR_BYTES)
                    sums_of = dict(zip(((h, c) for h in some for c in some_chunks), carried, strict=True))
                    for j in range(TILE // 2 if paired else TILE):
                        loaded = {c: lanes.load(offset(b, laid, (j * d + c * TILE) * 4)) for c in some_chunks}
                        for h in some:
                            weight = lanes.broadcast(offset(b, weights_of(t, h), j * 4))
                            for c in some_chunks:
                                sums_of[h, c] = multiply_add(sums_of[h, c], weight, loaded[c])
                    return list(sums_of.values())

                results = emit_loop(b, tiles, accumulators, add_values)
                for (h, c), vector in zip(places, results, strict=True):
                    lanes.store(vector, offset(b, sums, 4 * (h * d + c * TILE)))
        return context.get_dummy_value()

    signature = types.void(
        *(types.int64 for _ in range(6)), types.float64, types.float64, heads, head_dim, dots, capped
    )
    return signature, generate


def batch_rows(group: int) -> int:
    """Query rows whose heads are multiplied at once."""
    return max(1, BATCH_HEADS // group)


def fits(head_dim: int, block_size: int) -> bool:
    """Whether tiles of this shape can be shared: whole vectors, and whole tiles in a block."""
    return head_dim % (2 * TILE) == 0 and math.gcd(block_size, TILE) == TILE
