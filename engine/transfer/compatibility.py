"""What two engines must have in common so that one can go on with the other's KV, and how a model's weights are told
from others."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.loading.config import ModelConfig
from engine.loading.errors import ModelError
from engine.protocol import Quantize
from engine.transfer.offer import Compatibility

LAYOUT = "blocks [layers, keys and values, heads, tokens, dimensions]"
PIECE = 1 << 18  # bytes of a tensor that are added up
_FACTORS = np.arange(1, PIECE // 4, 2, dtype=np.uint64) ** 3  # odd, so that no change of a number is lost
_MAX_HEADER = 100 * 1024 * 1024  # bytes, as safetensors itself has it


def compatibility_of(
    name: str, folder: Path, model: ModelConfig, dtype: str, quantize: Quantize, block_size: int
) -> Compatibility:
    """Of an engine that serves the model in `folder`, which it calls `name`. How large its pool is, or how long a
    context may be, does not matter. Raises ModelError if weights cannot be read."""
    weights = fingerprint(folder)
    shape = dataclasses.asdict(model)
    parts = [LAYOUT, sys.byteorder, shape, dtype, quantize, block_size, weights]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
    quantized = "" if quantize == "none" else f" ({quantize} weights)"
    kv = f"KV of {model.num_layers} layers, {model.num_kv_heads} heads of {model.head_dim}"
    return Compatibility(digest, f"{name}, {dtype}{quantized}, blocks of {block_size}, {kv}, weights {weights[:8]}")


def fingerprint(folder: Path) -> str:
    """Tells these weights from others, by what tensors there are and all their numbers: a sum of each piece, in which
    every place has a factor of its own, takes a fraction of what a hash of all would, and only who means to makes two
    alike."""
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
        buffer = np.empty(PIECE, np.uint8)  # a mapping would take longer: each of its pages comes by itself
        for name in sorted(header.keys() - {"__metadata__"}):
            tensor = header[name]
            begin, end = tensor["data_offsets"]
            found.update(json.dumps([name, tensor["dtype"], tensor["shape"]]).encode())
            file.seek(8 + length + begin)
            for place in range(begin, end, PIECE):
                piece = buffer[: end - place]
                if file.readinto(piece.data) != len(piece):
                    raise ValueError(f"{name} ends outside it")
                _add_piece(found, piece)


def _add_piece(found: hashlib._Hash, piece: NDArray[np.uint8]) -> None:
    words = len(piece) // 8
    found.update(int(np.dot(piece[: 8 * words].view("<u8"), _FACTORS[:words])).to_bytes(8, "little"))
    found.update(piece[8 * words :].tobytes())
