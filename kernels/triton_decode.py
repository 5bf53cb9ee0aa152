"""Decode in Triton: one query a sequence, whose keys are cut into splits when there are few sequences.

Splits follow Flash-Decoding (Dao et al., 2023). A KV head's whole query group shares each load of keys and values.
What a sequence sees is read on the device, so that a CUDA graph of the launch serves any contexts.
"""

# ruff: noqa: N803 (compile-time constants are capitals by custom)
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_tile import attend


@triton.jit
def split_range(length, window, splits, N: tl.constexpr):
    """The first key a query sees, and how many keys each split takes: whole tiles, so the last splits may be empty."""
    begin = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    share = tl.cdiv(tl.cdiv(length - begin, splits), N) * N
    return begin, tl.maximum(share, N)


# Arguments that vary between steps must not become constants of a kernel, or serving would stop to compile another.
@triton.jit(do_not_specialize=["window", "splits", "table_row"])
def decode_kernel(
    query_ptr, keys_ptr, values_ptr, out_ptr, tables_ptr, starts_ptr, lengths_ptr, sequences_ptr,
    partial_ptr, weight_ptr, scale, cap, value_scale, window, splits, table_row,
    query_row, query_head, out_row, out_head,
    key_block, key_head, key_slot, value_block, value_head, value_slot,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, N: tl.constexpr, CAPPED: tl.constexpr, FORMAT: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """One split of one sequence's keys for one KV head; grid (sequences, Hkv, splits).

    SPLIT: the split's own result goes to `partial` [sequences, Hq, splits, HEAD_DIM], and the logarithm of the sum
    it was divided by to `weight` [sequences, Hq, splits]; an empty split writes nothing.
    """
    entry, head, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    sequence = tl.load(sequences_ptr + entry).to(tl.int64)
    row = tl.load(starts_ptr + sequence).to(tl.int64)
    length = tl.load(lengths_ptr + sequence)
    begin, share = split_range(length, window, splits, N)
    begin = begin + split * share
    end = tl.minimum(begin + share, length)
    if SPLIT:  # noqa: SIM102 (this is known when compiling, the next when running)
        if begin >= end:
            return

    members, dims = tl.arange(0, M), tl.arange(0, D)
    heads = head * GROUP + members
    inside = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query_ptr + row * query_row + heads[:, None] * query_head + dims[None, :], mask=inside, other=0.0)
    maximum, total, sums = attend(
        q, tl.zeros([M], tl.int32) + length, tl.zeros([M], tl.int32), begin, end,
        tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, D], tl.float32),
        keys_ptr + head * key_head, values_ptr + head * value_head, tables_ptr + sequence * table_row,
        key_block, key_slot, value_block, value_slot, scale, cap,
        BLOCK_SIZE, HEAD_DIM, D, N, CAPPED, FORMAT, True,
    )  # fmt: skip
    # A sequence without keys, as the padding of a batch has, gives 0.
    safe = tl.where(total > 0, total, 1.0)
    result = sums / safe[:, None] * value_scale
    if SPLIT:
        place = (entry.to(tl.int64) * tl.num_programs(1) * GROUP + heads) * splits + split
        tl.store(weight_ptr + place, maximum + tl.log2(safe), mask=members < GROUP)
        tl.store(partial_ptr + place[:, None] * HEAD_DIM + dims[None, :], result, mask=inside)
    else:
        tl.store(
            out_ptr + row * out_row + heads[:, None] * out_head + dims[None, :],
            result.to(out_ptr.dtype.element_ty), mask=inside,
        )  # fmt: skip


@triton.jit(do_not_specialize=["window", "splits"])
def reduce_kernel(
    partial_ptr, weight_ptr, out_ptr, starts_ptr, lengths_ptr, sequences_ptr, window, splits, out_row, out_head,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one sequence and head, S at a time; grid (sequences, Hq). N as in `decode_kernel`.

    Splits that hold no keys wrote nothing and are not read; a sequence without keys gives 0.
    """
    entry, head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(sequences_ptr + entry).to(tl.int64)
    row = tl.load(starts_ptr + sequence).to(tl.int64)
    length = tl.load(lengths_ptr + sequence)
    begin, share = split_range(length, window, splits, N)
    used = tl.cdiv(length - begin, share)
    base = (entry.to(tl.int64) * tl.num_programs(1) + head) * splits
    parts, dims = tl.arange(0, S), tl.arange(0, D)
    maximum = tl.full([1], float("-inf"), tl.float32)
    total, sums = tl.zeros([1], tl.float32), tl.zeros([D], tl.float32)
    for part in range(0, used, S):
        inside = part + parts < used
        place = base + part + parts
        weight = tl.load(weight_ptr + place, mask=inside, other=float("-inf"))
        partial = tl.load(
            partial_ptr + place[:, None] * HEAD_DIM + dims[None, :],
            mask=inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0,
        )  # fmt: skip
        # A used split holds a visible key, so the maximum is finite from the first round on.
        new_maximum = tl.maximum(maximum, tl.max(weight, axis=0))
        factors = tl.exp2(weight - new_maximum)
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(factors, axis=0)
        sums = sums * shrink + tl.sum(partial * factors[:, None], axis=0)
        maximum = new_maximum
    result = sums / tl.where(total > 0, total, 1.0)
    tl.store(
        out_ptr + row * out_row + head * out_head + dims,
        result.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM,
    )  # fmt: skip
