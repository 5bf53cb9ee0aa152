"""Not a participant: looks a model up (converting it, if need be) and says what works are made from."""

from __future__ import annotations

import math

from safetensors import safe_open

from benchmarks.messages import Facts, Settings
from engine.build import choose_device, choose_dtype
from engine.loading.resolve import resolve_model


def make(settings: Settings) -> Facts:
    model = resolve_model(settings.model)
    dtype = choose_dtype(settings.dtype, choose_device("auto"))
    elements = 0
    for path in sorted(model.folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118 - not a mapping
            # A GGUF file's quantized blocks lie beside the same weights as floats.
            elements += sum(math.prod(tensor.get_shape()) for tensor in tensors if tensor.get_dtype() != "U8")
    size = dtype.itemsize
    return Facts(
        vocab_size=model.config.vocab_size,
        max_model_len=model.config.max_position_embeddings,
        weight_bytes=elements * size,
        kv_bytes_per_token=model.config.kv_bytes_per_token(size),
        dtype=str(dtype).removeprefix("torch."),
    )
