"""Rotary position embedding (Su et al., 2021) and its scaled kinds, as tables over positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.loading.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """float32 [head_dim / 2], and the factor that cos and sin are multiplied by.

    `linear`: position interpolation (Chen et al., 2023). `llama3`: long wavelengths slowed, as Llama 3.1.
    `yarn`: YaRN (Peng et al., 2023). `dynamic` (NTK) only departs from `default` past the model's own length,
    which this engine never serves.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor, 1.0
    if rope.kind == "llama3":
        turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
        smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        smooth = smooth.clamp(0, 1)
        return frequencies * ((1 - smooth) / rope.factor + smooth), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, head_dim, frequencies)
    return frequencies, 1.0


def _yarn(rope: RopeConfig, head_dim: int, frequencies: Tensor) -> tuple[Tensor, float]:
    def dimension_with(turns: float) -> float:
        wavelength = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = dimension_with(rope.beta_fast), dimension_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    interpolated = ramp.clamp(0, 1)
    mixed = frequencies / rope.factor * interpolated + frequencies * (1 - interpolated)

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return mixed, rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mixed, magnitude(rope.mscale) / magnitude(rope.mscale_all_dim)
    return mixed, magnitude(1.0)


class RotaryTables:
    """cos and sin of every position, laid out so that rotating is two products and a swap of halves."""

    def __init__(
        self, rope: RopeConfig, head_dim: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        frequencies, factor = inverse_frequencies(rope, head_dim)
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
        cos, sin = angles.cos() * factor, angles.sin() * factor
        self.half = head_dim // 2
        self.cos = torch.cat((cos, cos), dim=1).to(device, dtype)
        self.sin = torch.cat((-sin, sin), dim=1).to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each [T, 1, head_dim], for positions int64 [T]."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)

    def rotate(self, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate heads [T, H, head_dim]; a new tensor."""
        return (heads * cos).addcmul_(heads.roll(self.half, -1), sin)
