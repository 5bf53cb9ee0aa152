"""Paged attention in Triton: a split decode kernel, a chunk kernel, and the write of new keys and values.

Decode and chunks are launched apart, so that one chunk in a step does not take the splits from the decodes. Decode
splits follow Flash-Decoding (Dao et al., 2023). A KV head's whole query group shares each load of keys and values.
"""

# ruff: noqa: N803 (compile-time constants are capitals by custom)
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.metadata import AttentionMetadata
from kernels.rows import query_tiles, single_rows

LOG2E = 1.4426950408889634
TILE_ROWS = 16  # the fewest rows a matrix unit takes
CHUNK_TILE_ROWS = 64
TILE_KEYS = 64
SPLIT_KEYS = 256  # fewer keys than this are not worth a split of their own
PROGRAMS_PER_PROCESSOR = 4


@triton.jit
def _tanh(x):
    # tl has no tanh on every target; this form neither overflows nor divides infinities
    e = tl.exp2(-2.0 * 1.4426950408889634 * tl.abs(x))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def _attend_range(
    q, limit, first, begin, end, maximum, total, sums,
    keys_ptr, values_ptr, table_ptr, head,
    key_block, key_head, key_slot, key_dim, value_block, value_head, value_slot, value_dim,
    scale, cap,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, N: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Running softmax of q [M, D] over keys begin..end; row m sees keys first[m]..limit[m]."""
    dims = tl.arange(0, D)
    for position in range(begin, end, N):
        keys = position + tl.arange(0, N)
        used = keys < end
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=used, other=0).to(tl.int64)
        slot = keys % BLOCK_SIZE
        inside = used[:, None] & (dims[None, :] < HEAD_DIM)
        k = tl.load(
            keys_ptr + (block * key_block + slot * key_slot)[:, None] + head * key_head
            + dims[None, :] * key_dim,
            mask=inside, other=0.0,
        )  # fmt: skip
        v = tl.load(
            values_ptr + (block * value_block + slot * value_slot)[:, None] + head * value_head
            + dims[None, :] * value_dim,
            mask=inside, other=0.0,
        )  # fmt: skip
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if CAPPED:
            scores = cap * _tanh(scores / cap)
        visible = used[None, :] & (keys[None, :] < limit[:, None]) & (keys[None, :] >= first[:, None])
        scores = tl.where(visible, scores * 1.4426950408889634, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row that has seen no key yet has maximum -inf: any finite stand-in gives weights of 0.
        safe = tl.where(new_maximum > float("-inf"), new_maximum, 0.0)
        weights = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(maximum - safe)
        total = total * shrink + tl.sum(weights, axis=1)
        sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        maximum = new_maximum
    return maximum, total, sums


@triton.jit
def _decode_kernel(
    query_ptr, keys_ptr, values_ptr, out_ptr, tables_ptr, rows_ptr, partial_ptr, statistics_ptr,
    query_row, query_head, query_dim, out_row, out_head, out_dim, table_row,
    key_block, key_head, key_slot, key_dim, value_block, value_head, value_slot, value_dim,
    scale, cap, window, splits,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, N: tl.constexpr, CAPPED: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One split of one row's keys for one KV head; grid (rows, Hkv, splits)."""
    entry, head, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    row = tl.load(rows_ptr + entry * 3).to(tl.int64)
    sequence = tl.load(rows_ptr + entry * 3 + 1).to(tl.int64)
    length = tl.load(rows_ptr + entry * 3 + 2)
    begin = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    share = tl.cdiv(tl.cdiv(length - begin, splits), N) * N
    begin = begin + split * share
    end = tl.minimum(begin + share, length)

    members, dims = tl.arange(0, M), tl.arange(0, D)
    heads = head * GROUP + members
    inside = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(
        query_ptr + row * query_row + heads[:, None] * query_head + dims[None, :] * query_dim,
        mask=inside, other=0.0,
    )  # fmt: skip
    limit = tl.zeros([M], tl.int32) + length
    maximum, total, sums = _attend_range(
        q, limit, tl.zeros([M], tl.int32), begin, end,
        tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, D], tl.float32),
        keys_ptr, values_ptr, tables_ptr + sequence * table_row, head,
        key_block, key_head, key_slot, key_dim, value_block, value_head, value_slot, value_dim,
        scale, cap, BLOCK_SIZE, HEAD_DIM, D, N, CAPPED,
    )  # fmt: skip
    if SPLIT:
        num_heads = tl.num_programs(1) * GROUP
        place = (entry.to(tl.int64) * num_heads + heads) * splits + split
        tl.store(statistics_ptr + place * 2, maximum, mask=members < GROUP)
        tl.store(statistics_ptr + place * 2 + 1, total, mask=members < GROUP)
        tl.store(partial_ptr + place[:, None] * HEAD_DIM + dims[None, :], sums, mask=inside)
    else:
        result = sums / total[:, None]
        tl.store(
            out_ptr + row * out_row + heads[:, None] * out_head + dims[None, :] * out_dim,
            result.to(out_ptr.dtype.element_ty), mask=inside,
        )  # fmt: skip


@triton.jit
def _merge_kernel(
    partial_ptr, statistics_ptr, out_ptr, rows_ptr, out_row, out_head, out_dim, splits,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Merge one row and head's splits, some of which may be empty; grid (rows, Hq)."""
    entry, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + entry * 3).to(tl.int64)
    parts, dims = tl.arange(0, S), tl.arange(0, D)
    place = (entry.to(tl.int64) * tl.num_programs(1) + head) * splits + parts
    used = parts < splits
    maxima = tl.load(statistics_ptr + place * 2, mask=used, other=float("-inf"))
    totals = tl.load(statistics_ptr + place * 2 + 1, mask=used, other=0.0)
    maximum = tl.max(maxima, axis=0)
    factors = tl.exp2(maxima - maximum)  # 0 for an empty split: its maximum is -inf, the first split's never
    sums = tl.load(
        partial_ptr + place[:, None] * HEAD_DIM + dims[None, :],
        mask=used[:, None] & (dims < HEAD_DIM)[None, :], other=0.0,
    )  # fmt: skip
    result = tl.sum(sums * factors[:, None], axis=0) / tl.sum(totals * factors, axis=0)
    tl.store(
        out_ptr + row * out_row + head * out_head + dims * out_dim,
        result.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM,
    )  # fmt: skip


@triton.jit
def _chunk_kernel(
    query_ptr, keys_ptr, values_ptr, out_ptr, tables_ptr, tiles_ptr,
    query_row, query_head, query_dim, out_row, out_head, out_dim, table_row,
    key_block, key_head, key_slot, key_dim, value_block, value_head, value_slot, value_dim,
    scale, cap, window,
    GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, N: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """A tile of M // GROUP queries of one sequence for one KV head; grid (tiles, Hkv)."""
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first_row = tl.load(tiles_ptr + tile * 4).to(tl.int64)
    count = tl.load(tiles_ptr + tile * 4 + 1)
    sequence = tl.load(tiles_ptr + tile * 4 + 2).to(tl.int64)
    first_length = tl.load(tiles_ptr + tile * 4 + 3)

    members, dims = tl.arange(0, M), tl.arange(0, D)
    nth = members // GROUP
    heads = head * GROUP + members % GROUP
    inside = (nth < count)[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(
        query_ptr + (first_row + nth)[:, None] * query_row + heads[:, None] * query_head
        + dims[None, :] * query_dim,
        mask=inside, other=0.0,
    )  # fmt: skip
    limit = first_length + nth
    first = tl.where(window > 0, tl.maximum(limit - window, 0), 0)
    begin = tl.where(window > 0, tl.maximum(first_length - window, 0), 0)
    end = first_length + count - 1
    _, total, sums = _attend_range(
        q, limit, first, begin, end,
        tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, D], tl.float32),
        keys_ptr, values_ptr, tables_ptr + sequence * table_row, head,
        key_block, key_head, key_slot, key_dim, value_block, value_head, value_slot, value_dim,
        scale, cap, BLOCK_SIZE, HEAD_DIM, D, N, CAPPED,
    )  # fmt: skip
    # Rows past the tile's count are computed but not stored; theirs may be the only empty ones.
    result = sums / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(
        out_ptr + (first_row + nth)[:, None] * out_row + heads[:, None] * out_head + dims[None, :] * out_dim,
        result.to(out_ptr.dtype.element_ty), mask=inside,
    )  # fmt: skip


@triton.jit
def _write_kernel(
    key_ptr, value_ptr, keys_ptr, values_ptr, slots_ptr,
    key_row, key_row_head, key_row_dim, value_row, value_row_head, value_row_dim,
    key_block, key_head, key_slot, key_dim, value_block, value_head, value_slot, value_dim,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One token's key and value of one head to its slot; grid (tokens, Hkv)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    place = tl.load(slots_ptr + token)
    if place >= 0:
        block, slot = place // BLOCK_SIZE, place % BLOCK_SIZE
        dims = tl.arange(0, D)
        inside = dims < HEAD_DIM
        key = tl.load(key_ptr + token * key_row + head * key_row_head + dims * key_row_dim, mask=inside)
        value = tl.load(value_ptr + token * value_row + head * value_row_head + dims * value_row_dim, mask=inside)
        tl.store(
            keys_ptr + block * key_block + head * key_head + slot * key_slot + dims * key_dim,
            key, mask=inside,
        )  # fmt: skip
        tl.store(
            values_ptr + block * value_block + head * value_head + slot * value_slot + dims * value_dim,
            value, mask=inside,
        )  # fmt: skip


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    out: Tensor,
) -> None:
    """Write the attention of `query` [T, Hq, D] into `out`; fp32 accumulation."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    group = query.shape[1] // num_kv_heads
    chunk_rows = max(CHUNK_TILE_ROWS, triton.next_power_of_2(group))
    rows, longest, tiles = _divide(metadata, chunk_rows // group, query.device)
    window, cap = sliding_window or 0, soft_cap or 1.0
    constants: dict[str, Any] = {
        "GROUP": group,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "D": max(TILE_ROWS, triton.next_power_of_2(head_dim)),
        "N": TILE_KEYS,
        "CAPPED": soft_cap is not None,
    }
    strides = (
        *query.stride(),
        *out.stride(),
        metadata.block_tables.stride(0),
        *key_cache.stride(),
        *value_cache.stride(),
    )
    if len(tiles):
        _chunk_kernel[(len(tiles), num_kv_heads)](
            query, key_cache, value_cache, out, metadata.block_tables, tiles, *strides,
            scale, cap, window, M=chunk_rows, **constants,
        )  # fmt: skip
    if len(rows):
        keys = min(longest, sliding_window or longest)
        splits = _choose_splits(len(rows) * num_kv_heads, keys, query.device)
        places = len(rows) * query.shape[1] * splits if splits > 1 else 0
        partial = torch.empty(places, head_dim, dtype=torch.float32, device=query.device)
        statistics = torch.empty(places, 2, dtype=torch.float32, device=query.device)
        _decode_kernel[(len(rows), num_kv_heads, splits)](
            query, key_cache, value_cache, out, metadata.block_tables, rows, partial, statistics, *strides,
            scale, cap, window, splits,
            M=max(TILE_ROWS, triton.next_power_of_2(group)), SPLIT=splits > 1, **constants,
        )  # fmt: skip
        if splits > 1:
            _merge_kernel[(len(rows), query.shape[1])](
                partial, statistics, out, rows, *out.stride(), splits,
                HEAD_DIM=head_dim, D=constants["D"], S=triton.next_power_of_2(splits),
            )  # fmt: skip


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata) -> None:
    """Copy key and value [T, Hkv, D] to their slots; slot -1 is skipped."""
    if metadata.num_tokens == 0:
        return
    head_dim = key.shape[2]
    _write_kernel[(metadata.num_tokens, key.shape[1])](
        key, value, key_cache, value_cache, metadata.slots,
        *key.stride(), *value.stride(), *key_cache.stride(), *value_cache.stride(),
        BLOCK_SIZE=key_cache.shape[2], HEAD_DIM=head_dim, D=triton.next_power_of_2(head_dim),
    )  # fmt: skip


def _divide(metadata: AttentionMetadata, tile_queries: int, device: torch.device) -> tuple[Tensor, int, Tensor]:
    """Decode rows, the most keys one of them sees, and the tiles of all longer chunks; once per step."""
    key = ("triton", tile_queries)
    if key not in metadata.prepared:
        counts = np.diff(metadata.host_query_starts)
        rows = single_rows(metadata, np.flatnonzero(counts == 1))
        tiles = query_tiles(metadata, np.flatnonzero(counts > 1), tile_queries)
        metadata.prepared[key] = (
            torch.from_numpy(rows).to(device),
            int(rows[:, 2].max(initial=0)),
            torch.from_numpy(tiles).to(device),
        )
    divided: tuple[Tensor, int, Tensor] = metadata.prepared[key]
    return divided


def _choose_splits(programs: int, keys: int, device: torch.device) -> int:
    """Splits per row and head: enough to fill the device's processors, none shorter than SPLIT_KEYS."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    wanted = -(-processors * PROGRAMS_PER_PROCESSOR // programs)
    return max(1, min(wanted, keys // SPLIT_KEYS))
