"""What two engines must have in common so that one can go on with the other's KV, and how a model's weights are told
from others without reading them all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

from engine.loading.config import ModelConfig
from engine.loading.errors import ModelError
from engine.protocol import Quantize
from engine.transfer.offer import Compatibility

LAYOUT = "blocks [layers, keys and values, heads, tokens, dimensions]"
SAMPLE = 64  # bytes that are read of each tensor's beginning, middle and end
_MAX_HEADER = 100 * 1024 * 1024  # bytes, as safetensors itself has it


def compatibility_of(
    name: str, folder: Path, model: ModelConfig, dtype: str, quantize: Quantize, block_size: int
) -> Compatibility:
    """Of an engine that serves the model in `folder`, which it calls `name`. How large its pool is, or how long a
    context may be, does not matter. Raises ModelError if weights cannot be read."""
    weights = fingerprint(folder)
    shape = dataclasses.asdict(model)
    parts = [LAYOUT, shape, dtype, quantize, block_size, weights]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
    quantized = "" if quantize == "none" else f" ({quantize} weights)"
    kv = f"KV of {model.num_layers} layers, {model.num_kv_heads} heads of {model.head_dim}"
    return Compatibility(digest, f"{name}, {dtype}{quantized}, blocks of {block_size}, {kv}, weights {weights[:8]}")


def fingerprint(folder: Path) -> str:
    """Tells these weights from others, by what tensors there are and a few bytes of each.

    A model that was trained further differs in all of them, an adapter merged into one in every layer's: that is seen.
    A few numbers changed by hand in the middle of a matrix are not.
    """
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            _add_file(found, path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{path} is not a whole safetensors file: {error}") from error
    return found.hexdigest()


def _add_file(found: hashlib._Hash, path: Path) -> None:
    """As safetensors has it: the header's length in 8 bytes, the header in JSON, and then the tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"its header would have {length:,} bytes")
        header = json.loads(file.read(length))
        for name in sorted(header.keys() - {"__metadata__"}):
            tensor = header[name]
            begin, end = tensor["data_offsets"]
            found.update(json.dumps([name, tensor["dtype"], tensor["shape"]]).encode())
            for place in sorted({begin, max(begin, (begin + end - SAMPLE) // 2), max(begin, end - SAMPLE)}):
                found.update(os.pread(file.fileno(), min(SAMPLE, end - place), 8 + length + place))
