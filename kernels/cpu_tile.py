"""The inner step of CPU attention as vector instructions: a few keys and values against one GQA group.

Written as LLVM vectors through numba's `intrinsic`, because a plain loop leaves the group's accumulators in memory.
The arithmetic is the running softmax of Milakov and Gimelshein (2018), in base 2. All of it is fp32; bf16 and fp16
are widened as they are loaded. Addresses are int64.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # how elements are stored
LOG2E = math.log2(math.e)

F32 = ir.FloatType()
I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
ITEM_SIZES = {FLOAT32: 4, BFLOAT16: 2, FLOAT16: 2}
# 2**f on [-0.5, 0.5] by its Taylor series: the remainder is below 1e-8
EXP2_TERMS = [math.log(2) ** k / math.factorial(k) for k in range(8)]
ACCUMULATORS = 24  # vector registers for sums; the other 8 hold operands


class Lanes:
    """Emits operations on vectors of `lanes` fp32 numbers."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.type = ir.VectorType(F32, lanes)
        self.int_type = ir.VectorType(I32, lanes)

    def constant(self, value: float) -> Any:
        return ir.Constant(self.type, [ir.Constant(F32, value)] * self.lanes)

    def int_constant(self, value: int) -> Any:
        return ir.Constant(self.int_type, [ir.Constant(I32, value)] * self.lanes)

    def call(self, name: str, *arguments: Any) -> Any:
        function_type = ir.FunctionType(self.type, [self.type] * len(arguments))
        function = cgutils.get_or_insert_function(self.builder.module, function_type, f"llvm.{name}.v{self.lanes}f32")
        return self.builder.call(function, arguments)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call("fma", a, b, c)

    def splat(self, scalar: Any) -> Any:
        undefined = ir.Constant(self.type, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.shuffle(first, undefined, [0] * self.lanes)

    def shuffle(self, a: Any, b: Any, order: list[int]) -> Any:
        mask = ir.Constant(ir.VectorType(I32, len(order)), [ir.Constant(I32, i) for i in order])
        return self.builder.shuffle_vector(a, b, mask)

    def reduce(self, name: str, vector: Any, start: float | None = None) -> Any:
        """All lanes into one number, in whatever order is fast."""
        arguments = [vector] if start is None else [ir.Constant(F32, start), vector]
        function_type = ir.FunctionType(F32, [a.type for a in arguments])
        function = cgutils.get_or_insert_function(
            self.builder.module, function_type, f"llvm.vector.reduce.{name}.v{self.lanes}f32"
        )
        return self.builder.call(function, arguments, fastmath=("reassoc",))

    def load(self, address: Any, kind: int = FLOAT32) -> Any:
        b = self.builder
        if kind == FLOAT32:
            return b.load(b.inttoptr(address, self.type.as_pointer()), align=4)
        element = I16 if kind == BFLOAT16 else ir.HalfType()
        narrow_type = ir.VectorType(element, self.lanes)
        narrow = b.load(b.inttoptr(address, narrow_type.as_pointer()), align=2)
        if kind == FLOAT16:
            return b.fpext(narrow, self.type)
        return b.bitcast(b.shl(b.zext(narrow, self.int_type), self.int_constant(16)), self.type)

    def store(self, vector: Any, address: Any, kind: int = FLOAT32) -> None:
        b = self.builder
        if kind == FLOAT16:
            vector = b.fptrunc(vector, ir.VectorType(ir.HalfType(), self.lanes))
        elif kind == BFLOAT16:
            upper = b.lshr(self.round_to_bfloat16(vector), self.int_constant(16))
            vector = b.trunc(upper, ir.VectorType(I16, self.lanes))
        b.store(vector, b.inttoptr(address, vector.type.as_pointer()), align=ITEM_SIZES[kind])

    def round_to_bfloat16(self, vector: Any) -> Any:
        """The bits of the nearest bf16 numbers (ties to even), as fp32 with a zero lower half."""
        b = self.builder
        bits = b.bitcast(vector, self.int_type)
        odd = b.and_(b.lshr(bits, self.int_constant(16)), self.int_constant(1))
        bits = b.add(b.add(bits, self.int_constant(0x7FFF)), odd)
        return b.and_(bits, self.int_constant(0xFFFF0000))

    def exp2(self, x: Any) -> Any:
        """2**x for x up to 126; below -126 it stays at 2**-126."""
        b = self.builder
        x = self.call("minnum", self.call("maxnum", x, self.constant(-126.0)), self.constant(126.0))
        whole = self.call("nearbyint", x)
        fraction = b.fsub(x, whole)
        power = self.constant(EXP2_TERMS[-1])
        for term in reversed(EXP2_TERMS[:-1]):
            power = self.fma(power, fraction, self.constant(term))
        exponent = b.shl(b.fptosi(whole, self.int_type), self.int_constant(23))
        return b.bitcast(b.add(b.bitcast(power, self.int_type), exponent), self.type)

    def tanh(self, x: Any) -> Any:
        b = self.builder
        power = self.exp2(b.fmul(x, self.constant(2 * LOG2E)))
        return b.fsub(self.constant(1.0), b.fdiv(self.constant(2.0), b.fadd(power, self.constant(1.0))))

    def sum_each(self, vectors: list[Any]) -> Any:
        """Sum every vector: lane i of the result is the sum of vectors[i]."""
        b = self.builder
        if not len(vectors) == self.lanes == 16:
            sums = Lanes(b, len(vectors))
            result = ir.Constant(sums.type, ir.Undefined)
            for i, vector in enumerate(vectors):
                total = self.reduce("fadd", vector, start=-0.0)
                result = b.insert_element(result, total, ir.Constant(I32, i))
            return result
        # Four rounds of pairwise folding, as in a matrix transpose: numbers, pairs, then 128-bit quarters.
        quarters = range(0, 16, 4)
        rounds = [
            ([[q, 16 + q, q + 1, 17 + q] for q in quarters], [[q + 2, 18 + q, q + 3, 19 + q] for q in quarters]),
            ([[q, q + 1, 16 + q, 17 + q] for q in quarters], [[q + 2, q + 3, 18 + q, 19 + q] for q in quarters]),
            ([[q + i for i in range(4)] for q in (0, 8, 16, 24)], [[q + i for i in range(4)] for q in (4, 12, 20, 28)]),
        ]
        for low, high in [*rounds, rounds[-1]]:
            low_order, high_order = (list(chain.from_iterable(part)) for part in (low, high))
            vectors = [
                b.fadd(self.shuffle(x, y, low_order), self.shuffle(x, y, high_order))
                for x, y in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        return vectors[0]


def lanes_for(head_dim: int) -> int:
    """The widest vector that divides a head."""
    return math.gcd(head_dim, 16)


def offset(builder: Any, address: Any, count: int) -> Any:
    """An address `count` bytes further."""
    return builder.add(address, ir.Constant(I64, count)) if count else address


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
        pointer = ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        hints = [ir.Constant(I32, hint) for hint in (0, 2, 1)]  # to read, into the second-level cache, data
        for row in range(rows):
            start = builder.add(address, builder.mul(stride, ir.Constant(I64, row)))
            for line in range(0, bytes_, 64):
                builder.call(function, [builder.inttoptr(offset(builder, start, line), pointer), *hints])
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


@intrinsic
def take_ticket(typingctx: Any, address: Any) -> Any:
    """Atomically add one to the int64 at an address, and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(I64, 1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def load_int64(typingctx: Any, address: Any) -> Any:
    """The int64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], I64.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def load_float64(typingctx: Any, address: Any) -> Any:
    """The float64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.DoubleType().as_pointer()))

    return types.float64(types.int64), generate


@intrinsic
def load_int32(typingctx: Any, address: Any) -> Any:
    """The int32 at an address, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow = builder.load(builder.inttoptr(arguments[0], I32.as_pointer()))
        return builder.sext(narrow, I64)

    return types.int64(types.int64), generate


@intrinsic
def load_float32(typingctx: Any, address: Any) -> Any:
    """The float32 at an address, as float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow = builder.load(builder.inttoptr(arguments[0], F32.as_pointer()))
        return builder.fpext(narrow, ir.DoubleType())

    return types.float64(types.int64), generate
