"""Weights in 4 or 8 bits: blocks of 32 neighbours in a row, each with a scale and, in 4 bits, a minimum of its own.

They are the blocks of GGUF files (ggml's Q8_0 and Q4_1), made by ggml's own rules. Whole numbers are kept unsigned, as
the processor's dot product wants them: an int8 is stored with 128 added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32  # weights of a row that share a scale
ZERO = 128  # what stands for 0 in 8 bits


@dataclass(frozen=True)
class Blocks:
    """A weight [rows, columns]: scale * (value - 128) in 8 bits, scale * value + minimum in 4.

    `values` uint8 [rows, blocks * 32], zeros past `columns`; `scale` and `minimum` float16 [rows, blocks], the latter
    only in 4 bits.
    """

    values: Tensor
    scale: Tensor
    minimum: Tensor | None
    columns: int

    @property
    def bits(self) -> int:
        return 8 if self.minimum is None else 4

    @property
    def rows(self) -> int:
        return self.values.shape[0]

    def weight(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers that the blocks stand for [rows, columns]."""
        values = self.values.to(dtype).view(self.rows, -1, BLOCK)
        scale = self.scale.to(dtype)[:, :, None]
        if self.minimum is None:
            weight = (values - ZERO) * scale
        else:
            weight = values * scale + self.minimum.to(dtype)[:, :, None]
        return weight.view(self.rows, -1)[:, : self.columns]

    def rearranged(self, order: Callable[[Tensor], Tensor]) -> Blocks:
        """With the rows of all its tensors in another order, or between rows of zeros."""
        minimum = None if self.minimum is None else order(self.minimum)
        return Blocks(order(self.values), order(self.scale), minimum, self.columns)


def quantize(weight: Tensor, bits: int) -> Blocks:
    """Blocks of a weight [rows, columns], in 8 bits as ggml's Q8_0 or in 4 bits as its Q4_1.

    Raises ValueError for a weight that is not finite, or too large for a float16 scale.
    """
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % BLOCK)).view(rows, -1, BLOCK)
    if bits == 8:
        minimum = None
        scale = padded.abs().amax(-1) / 127
        # Rounded half away from zero, as C does.
        scaled = padded * _inverse(scale)
        values = torch.trunc(scaled + torch.copysign(torch.tensor(0.5), scaled)) + ZERO
    else:
        lowest, highest = padded.aminmax(dim=-1)
        minimum, scale = lowest.half(), (highest - lowest) / 15
        inverse = _inverse(scale)
        values = torch.floor((padded - lowest[:, :, None]) * inverse + 0.5).clamp(0, 15)
    if not all(bool(x.isfinite().all()) for x in (scale.half(), values, *([] if minimum is None else [minimum]))):
        raise ValueError("weights that are not finite, or beyond a float16 scale, cannot be quantized")
    values = values.to(torch.uint8).view(rows, -1)
    values[:, columns:] = 0
    return Blocks(values, scale.half(), minimum, columns)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, 1 / scale, 0.0)[:, :, None]


def concatenate(parts: Sequence[Blocks]) -> Blocks:
    """Weights of the same bits and columns, one below the other."""
    minima = [part.minimum for part in parts if part.minimum is not None]
    return Blocks(
        torch.cat([part.values for part in parts]),
        torch.cat([part.scale for part in parts]),
        torch.cat(minima) if minima else None,
        parts[0].columns,
    )
