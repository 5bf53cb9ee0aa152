"""Attention over a paged KV cache: the one door to the three backends.

Per step `metadata = AttentionMetadata.build(block_tables, query_starts, context_lengths, slots)`; then per
layer `write_kv(key, value, key_cache, value_cache, metadata)` and
`paged_attention(query, key_cache, value_cache, metadata, scale)`.
A cache is [num_blocks, Hkv, block_size, D]. The idea is PagedAttention's (Kwon et al., SOSP 2023).
With float8 (e4m3) caches an element stands for its value times `key_scale` or `value_scale`.
"""

from __future__ import annotations

import importlib
import math
import os
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from kernels.fp8 import FP8
from kernels.metadata import AttentionMetadata

__all__ = [
    "BACKENDS",
    "AttentionMetadata",
    "choose_backend",
    "paged_attention",
    "rotate_and_write",
    "warm_up",
    "write_kv",
]

BACKENDS = {"reference": "kernels.reference", "cpu": "kernels.cpu", "triton": "kernels.triton_attention"}
BACKEND_VARIABLE = "PAGED_ENGINE_ATTENTION"
CACHE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def choose_backend(device: torch.device, backend: str | None = None) -> str:
    """Name the backend for a device: `backend`, else $PAGED_ENGINE_ATTENTION, else the device's own.

    Raises ValueError for a name that is not in BACKENDS.
    """
    name, source = backend, "backend"
    if name is None:
        name, source = os.environ.get(BACKEND_VARIABLE) or None, BACKEND_VARIABLE
    if name is None:
        if device.type == "cuda":
            return "triton" if _loads("triton") else "reference"
        return "cpu" if device.type == "cpu" and _loads("cpu") else "reference"
    if name not in BACKENDS:
        raise ValueError(f"{source} is {name!r}; allowed are {', '.join(BACKENDS)}")
    return name


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    *,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    out: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Causal attention of every row of a step over its sequence's cached keys and values.

    query [T, Hq, D]; key_cache and value_cache [num_blocks, Hkv, block_size, D], which already hold this
    step's KV; Hq is a multiple of Hkv, and query head h reads KV head h // (Hq / Hkv). Scores are
    query . key * `scale`, then `soft_cap * tanh(score / soft_cap)` if given. With `sliding_window` w a query
    at position p sees positions p - w + 1 to p. Accumulates in fp32; returns [T, Hq, D] in the dtype of
    `query` (in `out` if given). Caches have the dtype of `query`, or float8_e4m3fn with a scale each.
    Raises ValueError or TypeError for shapes, dtypes or layouts that do not fit, or that the backend lacks.
    """
    if key_cache.shape != value_cache.shape or key_cache.dim() != 4:
        raise ValueError(
            "key_cache and value_cache must both be [num_blocks, Hkv, block_size, D], "
            f"got {list(key_cache.shape)} and {list(value_cache.shape)}"
        )
    if query.dim() != 3 or query.shape[2] != key_cache.shape[3] or query.shape[1] % key_cache.shape[1]:
        raise ValueError(
            f"query must be [T, Hq, {key_cache.shape[3]}] with Hq a multiple of {key_cache.shape[1]}, "
            f"got {list(query.shape)}"
        )
    if query.shape[0] != metadata.num_tokens:
        raise ValueError(f"query has {query.shape[0]} rows, the metadata {metadata.num_tokens}")
    if query.dtype not in CACHE_DTYPES or not (key_cache.dtype == value_cache.dtype in (query.dtype, FP8)):
        raise TypeError(
            "query and caches must share bfloat16, float16 or float32, or the caches be float8_e4m3fn, "
            f"got {query.dtype}, {key_cache.dtype} and {value_cache.dtype}"
        )
    name = choose_backend(query.device, backend)
    scales = _cache_scales(name, key_cache.dtype, key_scale, value_scale)
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be at least 1, got {sliding_window}")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap must be above 0, got {soft_cap}")
    metadata.check_cache(key_cache.shape[0], key_cache.shape[2])
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    elif out.shape != query.shape or out.dtype != query.dtype:
        raise ValueError(f"out must be {query.dtype} {list(query.shape)}, got {out.dtype} {list(out.shape)}")
    # A scale of all keys is one of all scores.
    arguments = (query, key_cache, value_cache, metadata, scale * key_scale, sliding_window, soft_cap, out)
    _load(name).paged_attention(*arguments, *scales[1:])
    return out


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    *,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    backend: str | None = None,
) -> None:
    """Store a step's keys and values [T, Hkv, D] in their slots of the caches; slot -1 is skipped.

    Caches share their dtype, or are float8_e4m3fn: what is stored is then divided by its scale, clamped and rounded.
    Raises ValueError or TypeError for shapes, dtypes or slots that do not fit.
    """
    expected = (metadata.num_tokens, key_cache.shape[1], key_cache.shape[3])
    if key.shape != expected or value.shape != expected:
        raise ValueError(f"key and value must be {list(expected)}, got {list(key.shape)} and {list(value.shape)}")
    if not (key.dtype == value.dtype and key_cache.dtype == value_cache.dtype in (key.dtype, FP8)):
        raise TypeError(
            "key, value and caches must share one dtype, or the caches be float8_e4m3fn, "
            f"got {key.dtype}, {value.dtype}, {key_cache.dtype} and {value_cache.dtype}"
        )
    metadata.check_cache(key_cache.shape[0], key_cache.shape[2])
    name = choose_backend(key.device, backend)
    scales = _cache_scales(name, key_cache.dtype, key_scale, value_scale)
    _load(name).write_kv(key, value, key_cache, value_cache, metadata, *scales)


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
    *,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> Tensor:
    """Rotate a step's queries and keys by their positions and store keys and values, in one Triton kernel.

    qkv [T, Hq + 2 Hkv, D], contiguous: queries, keys and values, of which the queries are rotated in place and returned
    as a view [T, Hq, D]; the rest may be anything afterwards. norm [Hq + Hkv, D], if given: queries and keys are first
    divided by their root mean square over D (plus `eps`) and multiplied by it. cos and sin [positions, D], where both
    halves of D hold the same angles and the sines of the first are negative; positions int64 [T].
    Raises ValueError or TypeError for what does not fit.
    """
    heads, head_dim = qkv.shape[1] - 2 * key_cache.shape[1], key_cache.shape[3]
    if qkv.shape[0] != metadata.num_tokens or heads < 1 or qkv.shape[2] != head_dim or not qkv.is_contiguous():
        raise ValueError(
            f"qkv must be contiguous [{metadata.num_tokens}, Hq + {2 * key_cache.shape[1]}, {head_dim}], "
            f"got {list(qkv.shape)}"
        )
    if not (key_cache.dtype == value_cache.dtype in (qkv.dtype, FP8)):
        raise TypeError(
            "qkv and caches must share one dtype, or the caches be float8_e4m3fn, "
            f"got {qkv.dtype}, {key_cache.dtype} and {value_cache.dtype}"
        )
    scales = _cache_scales("triton", key_cache.dtype, key_scale, value_scale)
    metadata.check_cache(key_cache.shape[0], key_cache.shape[2])
    arguments = (qkv, norm, eps, cos, sin, positions, key_cache, value_cache, metadata)
    _load("triton").rotate_and_write(*arguments, *scales)
    return qkv[:, :heads]


def _cache_scales(backend: str, dtype: torch.dtype, key_scale: float, value_scale: float) -> tuple[float, ...]:
    """The scales that a backend must be given: none for caches that hold values as they are."""
    for name, scale in (("key_scale", key_scale), ("value_scale", value_scale)):
        if not (scale > 0 and math.isfinite(scale)):
            raise ValueError(f"{name} must be a finite number above 0, got {scale}")
    if dtype == FP8:
        if backend == "cpu":
            raise TypeError("the cpu backend has no float8 caches; the reference and triton backends do")
        return (key_scale, value_scale)
    if key_scale != 1.0 or value_scale != 1.0:
        raise ValueError(f"key_scale and value_scale are for float8_e4m3fn caches; with {dtype} they must be 1")
    return ()


def warm_up(
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    block_size: int,
    *,
    device: torch.device | str = "cpu",
    backend: str | None = None,
) -> None:
    """Compile what attention of this shape will need, by running a decode, a chunk and a write of it once."""
    device = torch.device(device)
    shape = (1, num_kv_heads, block_size, head_dim)
    key_cache, value_cache = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
    context = 4096  # long enough for whatever a backend does only with long contexts
    for tokens in (1, 16):
        metadata = AttentionMetadata.build(
            torch.zeros(1, -(-context // block_size), dtype=torch.int32),
            torch.tensor([0, tokens], dtype=torch.int32),
            torch.tensor([context], dtype=torch.int32),
            torch.full((tokens,), -1, dtype=torch.int64),
            device=device,
        )
        query = torch.zeros(tokens, num_q_heads, head_dim, dtype=dtype, device=device)
        new = torch.zeros(tokens, num_kv_heads, head_dim, dtype=dtype, device=device)
        write_kv(new, new, key_cache, value_cache, metadata, backend=backend)
        paged_attention(query, key_cache, value_cache, metadata, head_dim**-0.5, backend=backend)


@cache
def _load(name: str) -> ModuleType:
    return importlib.import_module(BACKENDS[name])


@cache
def _loads(name: str) -> bool:
    try:
        _load(name)
    except ImportError:
        return False
    return True
