"""Paged attention in plain torch, one sequence at a time: slow, and the measure of the other backends."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.fp8 import FP8, as_bytes, quantize
from kernels.metadata import AttentionMetadata


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
    """Write the attention of `query` [T, Hq, D] into `out`; arithmetic in fp32 (fp64 for fp64).

    Values count `value_scale` times.
    """
    block_size = key_cache.shape[2]
    group = query.shape[1] // key_cache.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    for b in range(metadata.num_sequences):
        start, end = (int(x) for x in metadata.host_query_starts[b : b + 2])
        if start == end:
            continue
        length = int(metadata.host_context_lengths[b])
        blocks = metadata.block_tables[b, : -(-length // block_size)].long()
        # [blocks, Hkv, block_size, D] -> [Hkv, length, D]; slots past the length may hold anything, even NaN
        keys, values = (
            _blocks(cache, blocks).transpose(0, 1).flatten(1, 2)[:, :length].to(wide).repeat_interleave(group, dim=0)
            for cache in (key_cache, value_cache)
        )
        scores = torch.einsum("qhd,hkd->hqk", query[start:end].to(wide), keys) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        positions = torch.arange(length - (end - start), length, device=query.device)[:, None]
        key_positions = torch.arange(length, device=query.device)[None, :]
        visible = key_positions <= positions
        if sliding_window is not None:
            visible &= key_positions > positions - sliding_window
        scores.masked_fill_(~visible, float("-inf"))
        out[start:end] = torch.einsum("hqk,hkd->qhd", scores.softmax(dim=-1), values * value_scale).to(out.dtype)


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
    rows = (metadata.slots >= 0).nonzero().squeeze(1)
    slots = metadata.slots[rows]
    block_size = key_cache.shape[2]
    block, offset = slots // block_size, slots % block_size
    for new, cache, scale in ((key, key_cache, key_scale), (value, value_cache, value_scale)):
        if cache.dtype == FP8:
            as_bytes(cache)[block, :, offset] = as_bytes(quantize(new[rows], scale))
        else:
            cache[block, :, offset] = new[rows]


def _blocks(cache: Tensor, blocks: Tensor) -> Tensor:
    return as_bytes(cache)[blocks].view(FP8) if cache.dtype == FP8 else cache[blocks]
