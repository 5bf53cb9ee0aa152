"""Paged attention in Triton: what the kernels of decode, prefill and the cache are launched with.

Decodes and chunks are launched apart, so that one chunk in a step does not take the splits from the decodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels import heuristics, triton_cache, triton_decode, triton_prefill, triton_tile
from kernels.fp8 import FP8, as_bytes
from kernels.launch import launch, target_of
from kernels.metadata import AttentionMetadata
from kernels.rows import query_tiles
from kernels.upload import upload

LOG2E = 1.4426950408889634
PLAIN, NATIVE_FP8, FP8_BITS = (
    int(kind.value) for kind in (triton_tile.PLAIN, triton_tile.NATIVE_FP8, triton_tile.FP8_BITS)
)
MERGED_TOGETHER = 16  # splits that the reduction holds at a time


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    out: Tensor,
    value_scale: float = 1.0,
) -> None:
    """Write the attention of `query` [T, Hq, D] into `out`; fp32 accumulation. Values count `value_scale` times.

    Raises ValueError unless the elements of each head of the caches and of `out` lie next to each other.
    """
    if query.stride(2) != 1:
        query = query.contiguous()
    _require_dense_heads(key_cache=key_cache, value_cache=value_cache, out=out)
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    group = query.shape[1] // num_kv_heads
    target = target_of(query.device)
    key_cache, value_cache, stored = _readable(key_cache, value_cache, target.converts_fp8)
    shape: dict[str, Any] = {
        "GROUP": group,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "D": heuristics.padded_head(head_dim),
        "CAPPED": soft_cap is not None,
        "FORMAT": stored,
    }
    # Scores are powers of two, not of e; what scales them anyway takes the factor along.
    scale, cap = (scale * LOG2E, 1.0) if soft_cap is None else (scale / soft_cap, soft_cap * LOG2E)
    window = sliding_window or 0
    tables = metadata.block_tables
    strides = (*query.stride()[:2], *out.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3])
    sizes = query.element_size(), key_cache.element_size()
    counts = np.diff(metadata.host_query_starts)

    longest_chunk = int(counts.max(initial=0))
    if longest_chunk > 1:
        tiles = heuristics.prefill_tiles(target, head_dim, group, *sizes, longest_chunk)
        chunks = _chunk_tiles(metadata, counts, tiles.rows // group, query.device)
        launch(
            triton_prefill.prefill_kernel, (num_kv_heads, len(chunks)),
            query, key_cache, value_cache, out, tables, chunks,
            scale, cap, value_scale, window, tables.stride(0), *strides,
            M=tiles.rows, N=tiles.keys, WINDOWED=window > 0, warps=tiles.warps, stages=tiles.stages, **shape,
        )  # fmt: skip
    sequences, longest = _decodes(metadata, counts, query.device)
    if len(sequences):
        tiles = heuristics.decode_tiles(target, head_dim, group, *sizes)
        keys = min(longest, window or longest)
        splits = heuristics.choose_splits(target, len(sequences) * num_kv_heads, keys, tiles.keys)
        places = len(sequences) * query.shape[1] * splits if splits > 1 else 1
        partial = torch.empty(places, head_dim, dtype=torch.float32, device=query.device)
        weight = torch.empty(places, dtype=torch.float32, device=query.device)
        layout = (metadata.query_starts, metadata.context_lengths, sequences)
        launch(
            triton_decode.decode_kernel, (len(sequences), num_kv_heads, splits),
            query, key_cache, value_cache, out, tables, *layout, partial, weight,
            scale, cap, value_scale, window, splits, tables.stride(0), *strides,
            M=tiles.rows, N=tiles.keys, SPLIT=splits > 1, warps=tiles.warps, stages=tiles.stages, **shape,
        )  # fmt: skip
        if splits > 1:
            launch(
                triton_decode.reduce_kernel, (len(sequences), query.shape[1]),
                partial, weight, out, *layout, window, splits, *out.stride()[:2],
                HEAD_DIM=head_dim, D=shape["D"], N=tiles.keys, S=MERGED_TOGETHER,
            )  # fmt: skip


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Copy key and value [T, Hkv, D] to their slots, into float8 caches divided by the scales; slot -1 is skipped."""
    key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (key, value))
    _require_dense_heads(key_cache=key_cache, value_cache=value_cache)
    tokens, heads, head_dim = key.shape
    key_cache, value_cache, stored = _readable(key_cache, value_cache, False)
    launch(
        triton_cache.write_kernel, (tokens, heads), key, value, key_cache, value_cache, metadata.slots,
        key_scale, value_scale, *key.stride()[:2], *value.stride()[:2],
        *key_cache.stride()[:3], *value_cache.stride()[:3],
        BLOCK_SIZE=key_cache.shape[2], HEAD_DIM=head_dim, D=heuristics.padded_head(head_dim), FORMAT=stored,
        warps=1,
    )  # fmt: skip


def rotate_and_write(
    qkv: Tensor,
    norm: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """See `kernels.attention.rotate_and_write`."""
    _require_dense_heads(key_cache=key_cache, value_cache=value_cache)
    tokens, heads, head_dim = qkv.shape
    num_kv_heads = key_cache.shape[1]
    key_cache, value_cache, stored = _readable(key_cache, value_cache, False)
    together = min(8, heuristics.power_of_two(heads))
    launch(
        triton_cache.rotate_and_write_kernel, (tokens, -(-heads // together)),
        qkv, cos if norm is None else norm, cos, sin, positions, key_cache, value_cache, metadata.slots,
        key_scale, value_scale, eps, qkv.stride(0), cos.stride(0),
        *key_cache.stride()[:3], *value_cache.stride()[:3],
        HQ=heads - 2 * num_kv_heads, HKV=num_kv_heads, BLOCK_SIZE=key_cache.shape[2], HALF=head_dim // 2,
        H=together, D=heuristics.power_of_two(head_dim // 2), FORMAT=stored, NORMED=norm is not None,
    )  # fmt: skip


def _readable(key_cache: Tensor, value_cache: Tensor, native: bool) -> tuple[Tensor, Tensor, int]:
    """Caches as a kernel takes them, and how it reads their elements."""
    if key_cache.dtype != FP8:
        return key_cache, value_cache, PLAIN
    if native:
        return key_cache, value_cache, NATIVE_FP8
    return as_bytes(key_cache), as_bytes(value_cache), FP8_BITS


def _require_dense_heads(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must have its last dimension contiguous, got strides {list(tensor.stride())}")


def _decodes(metadata: AttentionMetadata, counts: Any, device: torch.device) -> tuple[Tensor, int]:
    """Sequences with one query, int32, and the longest context of one; once per step."""
    key = "triton decodes"
    if key not in metadata.prepared:
        found = np.flatnonzero(counts == 1)
        (sequences,) = upload([torch.from_numpy(found.astype(np.int32))], device)
        metadata.prepared[key] = (sequences, int(metadata.host_context_lengths[found].max(initial=0)))
    decodes: tuple[Tensor, int] = metadata.prepared[key]
    return decodes


def _chunk_tiles(metadata: AttentionMetadata, counts: Any, tile_queries: int, device: torch.device) -> Tensor:
    """The tiles of all chunks, int32 [tiles, 4], those that take longest first; once per step."""
    key = ("triton tiles", tile_queries)
    if key not in metadata.prepared:
        tiles = query_tiles(metadata, np.flatnonzero(counts > 1), tile_queries)
        tiles = tiles[np.argsort(-tiles[:, 3], kind="stable")]
        (metadata.prepared[key],) = upload([torch.from_numpy(tiles)], device)
    places: Tensor = metadata.prepared[key]
    return places
