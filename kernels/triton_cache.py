"""New keys and values into their slots, in Triton: as they are, or normed and rotated on the way."""

# ruff: noqa: N803 (compile-time constants are capitals by custom)
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_tile import PLAIN


@triton.jit
def narrow(x, scale, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """A tile of float32 as a cache holds it; e4m3 comes as its bytes, rounded to even and clamped to +-448."""
    if FORMAT == PLAIN:
        stored = x.to(dtype)
    else:
        x = tl.div_rn(x, scale)  # the plain division is an approximation, and may round elsewhere
        magnitude = tl.minimum(tl.abs(x), 448.0)
        sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
        bits = magnitude.to(tl.int32, bitcast=True)
        # float32's exponent counts from 127, e4m3's from 7; 20 bits of the mantissa are rounded away
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
        # below 2**-6, steps are 2**-9, and so they are of float32 just above 2**14
        small = (magnitude + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
        stored = (tl.where(magnitude < 0.015625, small, normal) | sign).to(tl.uint8)
        stored = tl.where(x == x, stored, 0x7F).to(tl.uint8)  # NaN stays NaN
    return stored


@triton.jit
def write_kernel(
    key_ptr, value_ptr, keys_ptr, values_ptr, slots_ptr, key_scale, value_scale,
    key_row, key_row_head, value_row, value_row_head,
    key_block, key_head, key_slot, value_block, value_head, value_slot,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """One token's key and value of one head to its slot; grid (tokens, Hkv)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    place = tl.load(slots_ptr + token)
    if place >= 0:
        block, slot = place // BLOCK_SIZE, place % BLOCK_SIZE
        dims = tl.arange(0, D)
        inside = dims < HEAD_DIM
        key = tl.load(key_ptr + token * key_row + head * key_row_head + dims, mask=inside).to(tl.float32)
        value = tl.load(value_ptr + token * value_row + head * value_row_head + dims, mask=inside).to(tl.float32)
        tl.store(
            keys_ptr + block * key_block + head * key_head + slot * key_slot + dims,
            narrow(key, key_scale, keys_ptr.dtype.element_ty, FORMAT), mask=inside,
        )  # fmt: skip
        tl.store(
            values_ptr + block * value_block + head * value_head + slot * value_slot + dims,
            narrow(value, value_scale, values_ptr.dtype.element_ty, FORMAT), mask=inside,
        )  # fmt: skip


@triton.jit
def rotate_and_write_kernel(
    qkv_ptr, norm_ptr, cos_ptr, sin_ptr, positions_ptr, keys_ptr, values_ptr, slots_ptr,
    key_scale, value_scale, eps, qkv_row, table_row,
    key_block, key_head, key_slot, value_block, value_head, value_slot,
    HQ: tl.constexpr, HKV: tl.constexpr, BLOCK_SIZE: tl.constexpr, HALF: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr, FORMAT: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """H heads of one token's fused row of HQ queries, HKV keys and HKV values; grid (tokens, cdiv(HQ + 2 HKV, H)).

    Queries are rotated where they lie, keys and values go to the token's slot alone. NORMED: queries and keys are
    first divided by their root mean square and multiplied by `norm` [HQ + HKV, 2 HALF]. D >= HALF.
    """
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * H + tl.arange(0, H)
    dims = tl.arange(0, D)
    inside = (heads < HQ + 2 * HKV)[:, None] & (dims < HALF)[None, :]
    rotated = heads < HQ + HKV
    at = qkv_ptr + token * qkv_row + heads[:, None] * (2 * HALF) + dims[None, :]
    low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    turning = inside & rotated[:, None]
    x, y = low, high
    if NORMED:
        squares = (tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / (2 * HALF)
        factor = tl.rsqrt(squares + eps)[:, None]
        norm = norm_ptr + heads[:, None] * (2 * HALF) + dims[None, :]
        x = x * factor * tl.load(norm, mask=turning, other=0.0).to(tl.float32)
        y = y * factor * tl.load(norm + HALF, mask=turning, other=0.0).to(tl.float32)
    position = tl.load(positions_ptr + token)
    # both halves of a table's row hold the same angles; the sines of the first are negative
    angle = position * table_row + dims
    cos = tl.load(cos_ptr + angle, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + angle + HALF, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    new_low = tl.where(rotated[:, None], x * cos - y * sin, low)
    new_high = tl.where(rotated[:, None], y * cos + x * sin, high)
    dtype = qkv_ptr.dtype.element_ty
    query = inside & (heads < HQ)[:, None]
    tl.store(at, new_low.to(dtype), mask=query)
    tl.store(at + HALF, new_high.to(dtype), mask=query)

    place = tl.load(slots_ptr + token)
    if place >= 0:
        block, slot = place // BLOCK_SIZE, place % BLOCK_SIZE
        cached = keys_ptr.dtype.element_ty
        is_key = turning & (heads >= HQ)[:, None]
        # the cache holds what the row would have held, also where it is narrower still
        new_low, new_high = new_low.to(dtype).to(tl.float32), new_high.to(dtype).to(tl.float32)
        key_at = keys_ptr + block * key_block + slot * key_slot + (heads - HQ)[:, None] * key_head + dims[None, :]
        tl.store(key_at, narrow(new_low, key_scale, cached, FORMAT), mask=is_key)
        tl.store(key_at + HALF, narrow(new_high, key_scale, cached, FORMAT), mask=is_key)
        is_value = inside & (heads >= HQ + HKV)[:, None]
        value_at = (
            values_ptr + block * value_block + slot * value_slot
            + (heads - HQ - HKV)[:, None] * value_head + dims[None, :]
        )  # fmt: skip
        tl.store(value_at, narrow(new_low, value_scale, cached, FORMAT), mask=is_value)
        tl.store(value_at + HALF, narrow(new_high, value_scale, cached, FORMAT), mask=is_value)
