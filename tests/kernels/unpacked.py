"""Packed quantized weights, read back."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu_panels import INT8, PANEL, PackedWeight
from kernels.cpu_quantized_tile import HALVES, QUADS
from kernels.quantized_blocks import BLOCK, Blocks


def unpack_blocks(packed: PackedWeight) -> Blocks:
    """What `pack_blocks` was given."""
    weight, rows = packed.weight, packed.rows
    panels, steps, _ = weight.shape

    def outputs(numbers: Tensor) -> Tensor:
        return numbers.flatten(0, 1)[:rows].contiguous()

    def halves(index: int) -> Tensor:
        end = weight.shape[2] - HALVES * index
        return outputs(weight[:, :, end - HALVES : end].contiguous().view(torch.float16).transpose(1, 2))

    if packed.kind == INT8:
        values, scale, minimum = weight[:, :, : PANEL * BLOCK], halves(0), None
    else:
        both = weight[:, :, : PANEL * BLOCK // 2].view(panels, steps, QUADS // 2, 1, PANEL * 4)
        values, scale, minimum = torch.cat((both & 15, both >> 4), dim=3), halves(1), halves(0)
    values = values.reshape(panels, steps, QUADS, PANEL, 4).permute(0, 3, 1, 2, 4).flatten(2)
    return Blocks(outputs(values), scale, minimum, packed.columns)
