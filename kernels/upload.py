"""Small arrays from the host to a device, together and without waiting."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes: kernels are compiled for pointers that are aligned so


def upload(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """These CPU tensors on `device`; on the CPU, themselves.

    A GPU gets them as parts of one pinned buffer in one copy that is only queued: from pageable memory every tensor
    would make the host wait until the device has done all before it.
    """
    if device.type == "cpu":
        return list(tensors)
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    packed, offsets = pack(tensors, pinned=True)
    there = packed.to(device, non_blocking=True)
    return [view(there, tensor, offset) for tensor, offset in zip(tensors, offsets, strict=True)]


def pack(tensors: Sequence[Tensor], *, pinned: bool = False) -> tuple[Tensor, list[int]]:
    """One uint8 tensor that holds them all, and where in it each begins."""
    offsets, size = [], 0
    for tensor in tensors:
        offsets.append(size)
        size += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    packed = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    for tensor, offset in zip(tensors, offsets, strict=True):
        view(packed, tensor, offset).copy_(tensor)
    return packed, offsets


def view(packed: Tensor, like: Tensor, offset: int) -> Tensor:
    """The part of `packed` that holds a tensor of the shape and dtype of `like`."""
    size = like.numel() * like.element_size()
    return packed[offset : offset + size].view(like.dtype).view(like.shape)
