"""The small work between a decoder's matrix products: the one door to plain torch and to Triton.

The residual is float32 whatever the model's dtype; products read the dtype of `normed`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def add_norm(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype, *, triton: bool
) -> Tensor:
    """Add `delta` to `residual` in place, and return the residual's RMS norm (Zhang and Sennrich, 2019) in `dtype`.

    residual float32 [T, W], contiguous; delta [T, W] of any float dtype, or None for nothing to add; weight float32
    [W]. `triton` runs it as one kernel.
    """
    if not triton:
        if delta is not None:
            residual.add_(delta)
        return F.rms_norm(residual, weight.shape, weight, eps).to(dtype)
    from kernels import triton_elementwise

    normed = torch.empty(residual.shape, dtype=dtype, device=residual.device)
    triton_elementwise.add_norm(residual, delta, weight, eps, normed)
    return normed


def silu_mul(gate_up: Tensor, *, triton: bool) -> Tensor:
    """silu(gate) * up [T, W] for gate_up [T, 2 W], contiguous; `triton` runs it as one kernel."""
    if not triton:
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate).mul_(up)
    from kernels import triton_elementwise

    out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, dtype=gate_up.dtype, device=gate_up.device)
    triton_elementwise.silu_mul(gate_up, out)
    return out
