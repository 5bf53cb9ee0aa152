"""KV caches in float8 (e4m3: OCP 8-bit floating point, 2023): a byte an element, and one scale for a whole tensor.

An element stands for its value times the scale. Bytes, since few of torch's operators take float8 itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


def quantize(x: Tensor, scale: float) -> Tensor:
    """x / scale, clamped to what e4m3 holds and rounded to even; NaN stays."""
    return (x.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def as_bytes(cache: Tensor) -> Tensor:
    """The same memory as uint8."""
    return cache.view(torch.uint8)
