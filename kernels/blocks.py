"""Whole KV blocks moved within a pool, for copy-on-write, and between pools, to host memory and back.

A pool is a tensor [num_blocks, ...] of any strides. A device's keeps each layer's blocks together, which its attention
reads some 5 % faster; a host's keeps each block together, so that one crosses in one transfer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STAGING_BYTES = 64 * 1024 * 1024  # on an accelerator, for blocks on their way to or from the host


def copy_blocks(source: Tensor, target: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """For each pair (s, t) copy block s of `source` to block t of `target`, all layers of it.

    Both are [num_blocks, ...] and alike but for the number of blocks; they may be the same pool. With one on an
    accelerator the work is only queued there, on its current stream. Raises ValueError for shapes or dtypes that
    differ, a block outside its pool, a target that comes twice, or one that is a source of the same pool.
    """
    if not pairs:
        return
    _check(source, target, pairs)
    if source.element_size() == 1:  # few operators take float8 itself
        source, target = source.view(torch.uint8), target.view(torch.uint8)
    if source.device.type == target.device.type == "cpu":
        for s, t in pairs:  # as fast as memory, where index_select and index_copy_ together take three times as long
            target[t].copy_(source[s])
        return
    count = max(1, STAGING_BYTES // (source[0].numel() * source.element_size()))
    for begin in range(0, len(pairs), count):
        copy_staged(source, target, pairs[begin : begin + count])


def copy_staged(source: Tensor, target: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """As `copy_blocks`, through blocks that lie together on the accelerator: its own are gathered and scattered in
    one launch each, the host's cross one by one and need no waiting where they are pinned."""
    device = target.device if source.device.type == "cpu" else source.device
    sources, targets = zip(*pairs, strict=True)
    if source.device == device:
        staging = source.index_select(0, torch.tensor(sources, device=device))
    else:
        staging = torch.empty((len(pairs), *source.shape[1:]), dtype=source.dtype, device=device)
        for block, s in zip(staging, sources, strict=True):
            block.copy_(source[s], non_blocking=True)
    if target.device == device:
        target.index_copy_(0, torch.tensor(targets, device=device), staging)
    else:
        for block, t in zip(staging, targets, strict=True):
            target[t].copy_(block, non_blocking=True)


def _check(source: Tensor, target: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype:
        raise ValueError(
            f"the pools' blocks must be alike, got {source.dtype} {list(source.shape[1:])} and "
            f"{target.dtype} {list(target.shape[1:])}"
        )
    sources, targets = {s for s, _ in pairs}, {t for _, t in pairs}
    for name, pool, blocks in (("source", source, sources), ("target", target, targets)):
        if min(blocks) < 0 or max(blocks) >= len(pool):
            raise ValueError(f"{name} blocks must lie in 0..{len(pool) - 1}, got {min(blocks)} to {max(blocks)}")
    if len(targets) < len(pairs):
        raise ValueError("a block is the target of two copies")
    if source.data_ptr() == target.data_ptr() and not sources.isdisjoint(targets):
        raise ValueError(f"blocks {sorted(sources & targets)} are both source and target: their order would matter")
