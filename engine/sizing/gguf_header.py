"""What the head of a GGUF file says of the model. No tensor is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.loading.errors import ModelError
from engine.loading.gguf_head import TensorHead, read_gguf_head
from engine.sizing.shape import ModelShape, Parameters


def read_gguf_shape(path: Path, name: str) -> ModelShape:
    """The model of the GGUF file at `path`; its weights are counted as they are stored. Raises ModelError."""
    fields, tensors = read_gguf_head(path)
    return _shape(path, name, fields, tensors)


def _shape(path: Path, name: str, fields: dict[str, Any], tensors: Sequence[TensorHead]) -> ModelShape:
    architecture = fields.get("general.architecture")

    def field(key: str, default: int | None = None) -> int:
        value = fields.get(f"{architecture}.{key}", default)
        if value is None:
            raise ModelError(f"{path}: {architecture}.{key} is missing")
        if type(value) is not int or not 0 <= value < 10**9:
            raise ModelError(f"{path}: {architecture}.{key} must be a whole number, not {value!r}")
        return value

    if any(key.startswith(f"{architecture}.ssm.") for key in fields):
        raise ModelError(f"{path}: {architecture} has layers with a state instead of KV, which are not known")
    layers, heads = field("block_count"), _each(fields.get(f"{architecture}.attention.head_count"))
    if not 0 < layers <= 10_000:
        raise ModelError(f"{path}: {architecture}.block_count must be from 1 to 10,000, not {layers}")
    if not heads or not all(heads):
        raise ModelError(f"{path}: {architecture}.attention.head_count is missing")
    kv_heads = _each(fields.get(f"{architecture}.attention.head_count_kv")) or heads
    if len(kv_heads) == 1:
        kv_heads *= layers
    if len(kv_heads) != layers or not all(kv_heads):
        raise ModelError(f"{path}: {architecture}.attention.head_count_kv must name the heads of {layers} layers")
    hidden, key_length = field("embedding_length"), field("attention.key_length", 0)
    if not key_length and (not hidden or hidden % max(heads)):
        raise ModelError(
            f"{path}: {architecture}.attention.key_length is missing, and {architecture}.embedding_length ({hidden}) "
            f"is no multiple of {architecture}.attention.head_count ({max(heads)})"
        )
    head_dim = key_length or hidden // max(heads)
    rank = field("attention.kv_lora_rank", 0)
    window = field("attention.sliding_window", 0)
    parameters, stored = _count(path, tensors)
    notes = ("the file names a window, and not in which layers",) if window else ()
    return ModelShape(
        name=name,
        model_type=str(architecture),
        num_heads=max(heads),
        kv_heads=tuple(kv_heads),
        key_dim=head_dim,
        value_dim=field("attention.value_length", head_dim),
        latent_dim=rank + field("rope.dimension_count") if rank else 0,
        sliding_layers=0,
        window=0,
        max_context=field("context_length", 0) or None,
        dtype="float16",
        quantization=None,
        parameters=parameters,
        stored_bytes=stored,
        notes=notes,
    )


def _each(value: Any) -> list[int]:
    return [value] if type(value) is int else value if isinstance(value, list) else []


def _count(path: Path, tensors: Sequence[TensorHead]) -> tuple[Parameters, int]:
    """Parameters by kind, and the bytes of all tensors as they are packed."""
    from gguf.constants import GGML_QUANT_SIZES

    counts = dict.fromkeys(Parameters.__struct_fields__, 0)
    bits = 0
    sizes = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
    for name, elements, kind in tensors:
        if kind not in sizes:
            raise ModelError(f"{path}: tensor {name} is of type {kind}, which this version of gguf does not know")
        counts[_kind(name)] += elements
        block, block_bytes = sizes[kind]
        bits += elements * block_bytes * 8 // block
    if not tensors:
        raise ModelError(f"{path} lists no tensor")
    return Parameters(**counts), bits // 8


def _kind(name: str) -> str:
    words = (
        ("token_embd.", "embedding"),
        ("position_embd.", "embedding"),
        ("norm", "small"),
        (".bias", "small"),
        ("gate_inp", "small"),
        ("rope_", "small"),
        ("output.weight", "head" if name.startswith("output") else "attention"),
        ("_exps.", "experts"),
        ("attn_", "attention"),
    )
    return next((kind for word, kind in words if word in name), "mlp")
