"""Paged attention on the CPU: hands a step's rows to compiled workers in one region of torch's own thread pool."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels import cpu_dot_tile, cpu_shared_tile, thread_pool
from kernels.cpu_kernel import Call, Write, attend_worker, merge_worker, state_floats, write_worker
from kernels.cpu_vectors import BFLOAT16, FLOAT16, FLOAT32, has_dots
from kernels.metadata import AttentionMetadata
from kernels.rows import Rows, gather_rows

KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
TILE_BATCHES = 4  # batches of rows for which a tile of shared keys is laid out once (measured)
# Less work than this is done before another thread has woken (measured).
POOL_FLOPS = 4_000_000
# Fewer pieces than this leave threads idle; a split of fewer keys costs more than it gains.
PIECES = 8
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
    """Write the attention of `query` [T, Hq, D] into `out`; fp32 accumulation.

    In bf16, softmax weights are rounded to bf16 where the processor has bf16 dot products.
    """
    if query.stride(2) != 1:
        query = query.contiguous()
    _require_dense(key_cache, value_cache, out)
    work = plan_attention(
        metadata,
        num_heads=query.shape[1],
        num_kv_heads=key_cache.shape[1],
        block_size=key_cache.shape[2],
        head_dim=key_cache.shape[3],
        dtype=query.dtype,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
    )
    if work is None:
        return
    item = query.element_size()
    call = Call(
        query=query.data_ptr(),
        query_row=query.stride(0) * item,
        query_head=query.stride(1) * item,
        out=out.data_ptr(),
        out_row=out.stride(0) * item,
        out_head=out.stride(1) * item,
        scale=scale,
        **work.fields,
        **cache_fields(key_cache, value_cache, "key_head", "value_head"),
    )
    if work.pooled:
        thread_pool.run(work.attend, call)
    else:
        work.attend.ctypes(ctypes.addressof(call))
    if work.merge is not None:
        call.ticket = 0
        work.merge.ctypes(ctypes.addressof(call))


@dataclass(frozen=True)
class AttentionWork:
    """How a step's attention is done: the workers, the fields of `Call` that do not depend on tensors, and what
    these point to."""

    attend: Any
    merge: Any | None  # to run after `attend`, with a fresh ticket
    pooled: bool  # whether there is enough work to wake other threads for
    fields: dict[str, Any]
    kept: tuple[object, ...]


def plan_attention(
    metadata: AttentionMetadata,
    *,
    num_heads: int,
    num_kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: torch.dtype,
    sliding_window: int | None,
    soft_cap: float | None = None,
) -> AttentionWork | None:
    """Divide a step's attention into pieces; None if there are no rows."""
    group, kind = num_heads // num_kv_heads, KINDS[dtype]
    rows = _rows(metadata, group, head_dim, block_size, num_kv_heads, sliding_window)
    if not len(rows.entries):
        return None
    pieces, splits = len(rows.entries) * num_kv_heads, 1
    tile_rows = TILE_BATCHES * cpu_shared_tile.batch_rows(group) if rows.sharing else 1
    dots = int(kind == BFLOAT16 and has_dots() and cpu_dot_tile.fits(head_dim, block_size))
    pooled = thread_pool.threads() > 1 and 4 * num_heads * head_dim * rows.keys > POOL_FLOPS
    if pooled and pieces < PIECES and not rows.sharing:
        longest = min(rows.longest, sliding_window or rows.longest)
        splits = max(1, min(-(-PIECES // pieces), longest // SPLIT_KEYS))
    partial = np.empty(pieces * splits * state_floats(group, head_dim) if splits > 1 else 0, np.float32)
    fields = {
        "num_entries": len(rows.entries),
        "num_kv_heads": num_kv_heads,
        "splits": splits,
        "window": sliding_window or 0,
        "tables": metadata.block_tables.data_ptr(),
        "table_row": metadata.block_tables.stride(0) * 4,
        "rows": rows.table.ctypes.data,
        "entries": rows.entries.ctypes.data,
        "partial": partial.ctypes.data,
        "cap": soft_cap or 1.0,
    }
    attend = attend_worker(group, head_dim, block_size, kind, int(soft_cap is not None), tile_rows, dots)
    merge = merge_worker(group, head_dim, kind) if splits > 1 else None
    return AttentionWork(attend, merge, pooled, fields, (metadata, rows, partial))


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata) -> None:
    """Copy key and value [T, Hkv, D] to their slots; slot -1 is skipped."""
    key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (key, value))
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
        **cache_fields(key_cache, value_cache, "key_cache_head", "value_cache_head"),
    )
    write_worker(key.shape[2], KINDS[key.dtype]).ctypes(ctypes.addressof(call))


def _rows(
    metadata: AttentionMetadata,
    group: int,
    head_dim: int,
    block_size: int,
    num_kv_heads: int,
    window: int | None,
) -> Rows:
    """The step's rows, gathered once per layout and window and then used by every layer."""
    key = ("cpu", group, head_dim, block_size, window)
    if key not in metadata.prepared:
        batch_rows = cpu_shared_tile.batch_rows(group)
        fits = cpu_shared_tile.fits(head_dim, block_size)
        metadata.prepared[key] = gather_rows(
            metadata,
            tile_rows=TILE_BATCHES * batch_rows if fits else 1,
            batch_rows=batch_rows,
            block_size=block_size,
            window=window,
            aim=-(-PIECES // num_kv_heads),
        )
    rows: Rows = metadata.prepared[key]
    return rows


def cache_fields(key_cache: Tensor, value_cache: Tensor, key_head: str, value_head: str) -> dict[str, Any]:
    """Where two caches lie, under the names of `Call` or `Write`, which differ in what they call a head's stride."""
    item = key_cache.element_size()
    fields = {}
    for name, head, tensor in (("key", key_head, key_cache), ("value", value_head, value_cache)):
        block, per_head, slot, _ = tensor.stride()
        fields[f"{name}s"] = tensor.data_ptr()
        fields[f"{name}_block"], fields[head], fields[f"{name}_slot"] = block * item, per_head * item, slot * item
    return fields


def _require_dense(*tensors: Tensor) -> None:
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        raise ValueError("the last dimension of caches and out must be contiguous")
