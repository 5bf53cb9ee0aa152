"""Chunks of prompts in Triton: a tile holds some queries of one sequence, each with all heads of one KV head's group,
so that keys and values are loaded once for the whole group. The running softmax is FlashAttention's (Dao et al., 2022).
"""

# ruff: noqa: N803 (compile-time constants are capitals by custom)
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton_tile import attend


@triton.jit(do_not_specialize=["window", "table_row"])
def prefill_kernel(
    query_ptr, keys_ptr, values_ptr, out_ptr, tables_ptr, tiles_ptr,
    scale, cap, value_scale, window, table_row,
    query_row, query_head, out_row, out_head,
    key_block, key_head, key_slot, value_block, value_head, value_slot,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, N: tl.constexpr, CAPPED: tl.constexpr, FORMAT: tl.constexpr,
    WINDOWED: tl.constexpr,
):  # fmt: skip
    """A tile of at most M // GROUP queries of one sequence for one KV head; grid (Hkv, tiles).

    tiles int32 [tiles, 4]: first row, number of rows, sequence, number of keys the first row sees.
    """
    head, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first_row = tl.load(tiles_ptr + tile * 4).to(tl.int64)
    count = tl.load(tiles_ptr + tile * 4 + 1)
    sequence = tl.load(tiles_ptr + tile * 4 + 2).to(tl.int64)
    first_length = tl.load(tiles_ptr + tile * 4 + 3)
    keys_ptr += head * key_head
    values_ptr += head * value_head
    table_ptr = tables_ptr + sequence * table_row

    members, dims = tl.arange(0, M), tl.arange(0, D)
    nth = members // GROUP
    heads = head * GROUP + members % GROUP
    inside = (nth < count)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(
        query_ptr + (first_row + nth)[:, None] * query_row + heads[:, None] * query_head + dims[None, :],
        mask=inside, other=0.0,
    )  # fmt: skip
    limit = first_length + nth
    maximum, total = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)
    sums = tl.zeros([M, D], tl.float32)
    if WINDOWED:
        first = tl.maximum(limit - window, 0)
        begin = tl.maximum(first_length - window, 0)
    else:
        first = tl.zeros([M], tl.int32)
        # Every row sees the whole tiles before the first query's own position: no masks there.
        begin = first_length // N * N
        maximum, total, sums = attend(
            q, limit, first, 0, begin, maximum, total, sums, keys_ptr, values_ptr, table_ptr,
            key_block, key_slot, value_block, value_slot, scale, cap,
            BLOCK_SIZE, HEAD_DIM, D, N, CAPPED, FORMAT, False,
        )  # fmt: skip
    maximum, total, sums = attend(
        q, limit, first, begin, first_length + count - 1, maximum, total, sums, keys_ptr, values_ptr, table_ptr,
        key_block, key_slot, value_block, value_slot, scale, cap,
        BLOCK_SIZE, HEAD_DIM, D, N, CAPPED, FORMAT, True,
    )  # fmt: skip
    # Rows past the tile's count are computed but not stored; theirs may be the only empty ones.
    result = sums / tl.where(total > 0, total, 1.0)[:, None] * value_scale
    tl.store(
        out_ptr + (first_row + nth)[:, None] * out_row + heads[:, None] * out_head + dims[None, :],
        result.to(out_ptr.dtype.element_ty), mask=inside,
    )  # fmt: skip
