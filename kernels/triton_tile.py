"""What the attention kernels share: one tile of queries over a range of a sequence's keys."""

# ruff: noqa: N803 (compile-time constants are capitals by custom)
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

# How the elements of a cache become those of the query.
PLAIN = tl.constexpr(0)  # they are alike
NATIVE_FP8 = tl.constexpr(1)  # e4m3, widened by the device
FP8_BITS = tl.constexpr(2)  # e4m3 as bytes, widened by moving bits


@triton.jit
def tanh(x):
    # tl has no tanh on every target; this form neither overflows nor divides infinities
    e = tl.exp2(-2.8853900817779268 * tl.abs(x))  # exp(-2 |x|)
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def widen(x, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """A tile of cached elements in the dtype that products are made in."""
    if FORMAT == PLAIN:
        wide = x
    elif FORMAT == NATIVE_FP8:
        wide = x.to(tl.float16).to(dtype)
    else:
        # e4m3 has float16's fields with a shorter exponent and mantissa: in place, it reads 2**8 too small
        bits = x.to(tl.int16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        wide = (half.to(tl.float16, bitcast=True) * 256.0).to(dtype)
    return wide


@triton.jit
def attend(
    q, limit, first, begin, end, maximum, total, sums,
    keys_ptr, values_ptr, table_ptr, key_block, key_slot, value_block, value_slot, scale, cap,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, N: tl.constexpr,
    CAPPED: tl.constexpr, FORMAT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Running softmax of q [M, D] over keys begin..end, N at a time, of one KV head.

    MASKED: row m sees keys first[m]..limit[m] of them. Otherwise every row sees all, and they are whole tiles.
    Scores are in powers of two: `scale` holds log2(e), or with CAPPED 1 / cap, and `cap` then cap * log2(e).
    """
    dims = tl.arange(0, D)
    for position in range(begin, end, N):
        keys = position + tl.arange(0, N)
        if MASKED:
            used = keys < end
            block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=used, other=0).to(tl.int64)
        else:
            block = tl.load(table_ptr + keys // BLOCK_SIZE).to(tl.int64)
        slot = keys % BLOCK_SIZE
        key_at = keys_ptr + (block * key_block + slot * key_slot)[:, None] + dims[None, :]
        value_at = values_ptr + (block * value_block + slot * value_slot)[:, None] + dims[None, :]
        if MASKED and D == HEAD_DIM:
            k = tl.load(key_at, mask=used[:, None], other=0.0)
            v = tl.load(value_at, mask=used[:, None], other=0.0)
        elif MASKED:
            k = tl.load(key_at, mask=used[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
            v = tl.load(value_at, mask=used[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        elif D == HEAD_DIM:
            k = tl.load(key_at)
            v = tl.load(value_at)
        else:
            k = tl.load(key_at, mask=(dims < HEAD_DIM)[None, :], other=0.0)
            v = tl.load(value_at, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(widen(k, q.dtype, FORMAT)), input_precision="ieee") * scale
        if CAPPED:
            scores = cap * tanh(scores)
        if MASKED:
            visible = used[None, :] & (keys[None, :] < limit[:, None]) & (keys[None, :] >= first[:, None])
            scores = tl.where(visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row that has seen no key yet has maximum -inf: any finite stand-in gives weights of 0.
        safe = tl.where(new_maximum > float("-inf"), new_maximum, 0.0)
        weights = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(maximum - safe)
        total = total * shrink + tl.sum(weights, axis=1)
        sums = sums * shrink[:, None]
        sums = tl.dot(weights.to(q.dtype), widen(v, q.dtype, FORMAT), sums, input_precision="ieee")
        maximum = new_maximum
    return maximum, total, sums
