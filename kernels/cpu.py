"""Paged attention on the CPU: compiled loops for decode rows, torch's fused attention for long chunks."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import thread_pool
from kernels.cpu_kernel import Call, Write, attend_worker, merge_worker, state_floats, write_worker
from kernels.cpu_tile import BFLOAT16, FLOAT16, FLOAT32
from kernels.metadata import AttentionMetadata, IntArray
from kernels.rows import single_rows

KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
# A chunk of at least this many queries is worth gathering its sequence for torch's matrix products (measured).
CHUNK_QUERIES = 24
# Queries are cut into tiles, so that early ones do not compute scores of keys they cannot see (measured).
TILE_QUERIES = 128
# Fewer pieces than this per thread leave threads idle; a split of fewer keys costs more than it gains.
PIECES_PER_THREAD = 4
SPLIT_KEYS = 128


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
    rows, chunks = _divide(metadata, by_products=soft_cap is None)
    for b in chunks:
        _attend_chunk(query, key_cache, value_cache, metadata, b, scale, sliding_window, out)
    if len(rows):
        _attend_rows(query, key_cache, value_cache, metadata, rows, scale, sliding_window, soft_cap, out)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata) -> None:
    """Copy key and value [T, Hkv, D] to their slots; slot -1 is skipped."""
    key, value = _dense_heads(key), _dense_heads(value)
    _require_dense(key_cache, value_cache)
    item = key.element_size()
    call = Write(
        num_tokens=metadata.num_tokens,
        num_kv_heads=key.shape[1],
        block_size=key_cache.shape[2],
        slots=metadata.slots.data_ptr(),
        key=key.data_ptr(),
        key_row=key.stride(0) * item,
        key_head=key.stride(1) * item,
        value=value.data_ptr(),
        value_row=value.stride(0) * item,
        value_head=value.stride(1) * item,
        **_cache_fields(key_cache, value_cache, "key_cache_head", "value_cache_head"),
    )
    write_worker(key.shape[2], KINDS[key.dtype]).ctypes(ctypes.addressof(call))


def _divide(metadata: AttentionMetadata, *, by_products: bool) -> tuple[IntArray, list[int]]:
    """Split a step into rows for the compiled loop and sequences whose chunk goes through matrix products."""
    key = ("cpu", by_products)
    if key not in metadata.prepared:
        long = np.diff(metadata.host_query_starts) >= CHUNK_QUERIES
        if not by_products:
            long[:] = False
        metadata.prepared[key] = (
            single_rows(metadata, np.flatnonzero(~long)),
            [int(b) for b in np.flatnonzero(long)],
        )
    divided: tuple[IntArray, list[int]] = metadata.prepared[key]
    return divided


def _attend_rows(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    rows: IntArray,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    out: Tensor,
) -> None:
    query = _dense_heads(query)
    _require_dense(key_cache, value_cache, out)
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    group, kind, item = query.shape[1] // num_kv_heads, KINDS[query.dtype], query.element_size()
    pieces = len(rows) * num_kv_heads
    longest = int(rows[:, 2].max())
    longest = min(longest, sliding_window or longest)
    wanted = -(-PIECES_PER_THREAD * thread_pool.threads() // pieces)
    splits = max(1, min(wanted, longest // SPLIT_KEYS)) if thread_pool.threads() > 1 else 1
    partial = np.empty(pieces * splits * state_floats(group, head_dim) if splits > 1 else 0, np.float32)
    call = Call(
        num_rows=len(rows),
        num_kv_heads=num_kv_heads,
        splits=splits,
        window=sliding_window or 0,
        query=query.data_ptr(),
        query_row=query.stride(0) * item,
        query_head=query.stride(1) * item,
        out=out.data_ptr(),
        out_row=out.stride(0) * item,
        out_head=out.stride(1) * item,
        tables=metadata.block_tables.data_ptr(),
        table_row=metadata.block_tables.stride(0) * 4,
        rows=rows.ctypes.data,
        partial=partial.ctypes.data,
        block_size=block_size,
        scale=scale,
        cap=soft_cap or 1.0,
        **_cache_fields(key_cache, value_cache, "key_head", "value_head"),
    )
    thread_pool.run(attend_worker(group, head_dim, block_size, kind, int(soft_cap is not None)), call)
    if splits > 1:
        merge_worker(group, head_dim, kind).ctypes(ctypes.addressof(call))


def _attend_chunk(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    b: int,
    scale: float,
    sliding_window: int | None,
    out: Tensor,
) -> None:
    """One sequence's chunk: gather its keys and values, then torch's fused attention per tile of queries."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    start, end = (int(x) for x in metadata.host_query_starts[b : b + 2])
    length = int(metadata.host_context_lengths[b])
    count, group = end - start, query.shape[1] // num_kv_heads
    oldest = max(0, length - count + 1 - sliding_window) // block_size if sliding_window else 0
    blocks = metadata.block_tables[b, oldest : -(-length // block_size)]
    first_key = oldest * block_size
    # [blocks, Hkv, block_size, D] -> [Hkv, group, keys, D], the group without copies
    keys, values = (
        cache.index_select(0, blocks).transpose(0, 1).reshape(num_kv_heads, 1, -1, head_dim).expand(-1, group, -1, -1)
        for cache in (key_cache, value_cache)
    )
    queries = query[start:end].unflatten(1, (num_kv_heads, group)).permute(1, 2, 0, 3)
    results = out[start:end].unflatten(1, (num_kv_heads, group)).permute(1, 2, 0, 3)
    for tile in range(0, count, TILE_QUERIES):
        tile_end = min(count, tile + TILE_QUERIES)
        newest = length - count + tile_end  # keys the tile's last query sees
        seen = slice(0, newest - first_key)
        mask = _mask(newest - tile_end + tile, tile_end - tile, first_key, newest, sliding_window, query.dtype)
        results[:, :, tile:tile_end] = F.scaled_dot_product_attention(
            queries[:, :, tile:tile_end], keys[:, :, seen], values[:, :, seen], attn_mask=mask, scale=scale
        )


def _mask(position: int, count: int, first_key: int, end_key: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """0 where the query of `position` + i may see key `first_key` + j, else -inf."""
    positions = torch.arange(position, position + count)[:, None]
    keys = torch.arange(first_key, end_key)[None, :]
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _cache_fields(key_cache: Tensor, value_cache: Tensor, key_head: str, value_head: str) -> dict[str, Any]:
    item = key_cache.element_size()
    fields = {}
    for name, head, cache in (("key", key_head, key_cache), ("value", value_head, value_cache)):
        block, per_head, slot, _ = cache.stride()
        fields[f"{name}s"] = cache.data_ptr()
        fields[f"{name}_block"], fields[head], fields[f"{name}_slot"] = block * item, per_head * item, slot * item
    return fields


def _dense_heads(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _require_dense(*tensors: Tensor) -> None:
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError("the last dimension of caches and out must be contiguous")
