"""What compiled CPU loops are written in: LLVM vectors of fp32, through numba's `intrinsic`.

A plain loop would leave accumulators in memory. bf16 and fp16 are widened as they are loaded, and rounded as they are
stored. Addresses are int64.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import chain
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # how elements are stored
LOG2E = math.log2(math.e)

F32 = ir.FloatType()
I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
ITEM_SIZES = {FLOAT32: 4, BFLOAT16: 2, FLOAT16: 2}
# 2**f on [-0.5, 0.5] by its Taylor series: the remainder is below 1e-8
EXP2_TERMS = [math.log(2) ** k / math.factorial(k) for k in range(8)]
LINE = 64  # bytes of the cache


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


@cache
def has_dots() -> bool:
    """Whether this processor multiplies pairs of bf16."""
    features = llvmlite.binding.get_host_cpu_features()
    return bool(features.get("avx512bf16") and features.get("avx512f"))


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

    def dot(self, sums: Any, x: Any, y: Any) -> Any:
        """sums + the products of two vectors of pairs of bf16, which may come as vectors of anything that wide.

        Only where `has_dots`, and with 16 lanes.
        """
        pairs = ir.VectorType(BFloat(), 2 * self.lanes)
        function_type = ir.FunctionType(self.type, [self.type, pairs, pairs])
        function = cgutils.get_or_insert_function(
            self.builder.module, function_type, "llvm.x86.avx512bf16.dpbf16ps.512"
        )
        return self.builder.call(function, [sums, self.builder.bitcast(x, pairs), self.builder.bitcast(y, pairs)])

    def broadcast(self, address: Any) -> Any:
        """The four bytes at an address, as fp32 in every lane."""
        b = self.builder
        return self.splat(b.load(b.inttoptr(address, F32.as_pointer()), align=2))


def lanes_for(head_dim: int) -> int:
    """The widest vector that divides a head."""
    return math.gcd(head_dim, 16)


def offset(builder: Any, address: Any, count: int) -> Any:
    """An address `count` bytes further."""
    return builder.add(address, ir.Constant(I64, count)) if count else address


def emit_loop(b: Any, count: Any, carried: list[Any], body: Any) -> list[Any]:
    """Emit `carried = body(i, carried)` for i below `count` (at least 1); returns what is carried last."""
    before, inside, after = b.basic_block, b.append_basic_block("row"), b.append_basic_block("done")
    b.branch(inside)
    b.position_at_end(inside)
    i = b.phi(I64)
    i.add_incoming(ir.Constant(I64, 0), before)
    phis = []
    for value in carried:
        phi = b.phi(value.type)
        phi.add_incoming(value, before)
        phis.append(phi)
    results = body(i, phis)
    following = b.add(i, ir.Constant(I64, 1))
    i.add_incoming(following, b.basic_block)
    for phi, value in zip(phis, results, strict=True):
        phi.add_incoming(value, b.basic_block)
    b.cbranch(b.icmp_signed("<", following, count), inside, after)
    b.position_at_end(after)
    return list(results)


def emit_prefetch(b: Any, address: Any, size: int) -> None:
    """Ask for `size` bytes at an address to be brought near, where the processor cannot guess them."""
    pointer = ir.IntType(8).as_pointer()
    function_type = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
    function = cgutils.get_or_insert_function(b.module, function_type, "llvm.prefetch.p0")
    hints = [ir.Constant(I32, hint) for hint in (0, 2, 1)]  # to read, into the second-level cache, data
    for line in range(0, size, LINE):
        b.call(function, [b.inttoptr(offset(b, address, line), pointer), *hints])
