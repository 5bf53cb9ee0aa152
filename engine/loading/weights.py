"""Read a folder's safetensors: tensors by name, each checked against the shape the configuration asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.loading.cache import cache_folder
from engine.loading.config import read_json
from engine.loading.errors import ModelError, shortened
from engine.loading.gguf_blocks import KINDS, to_blocks
from kernels.quantized_blocks import BLOCK, Blocks

INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Weights:
    """A checkpoint's tensors, read one at a time and cast to `dtype` on `device`.

    The files stay mapped until `close`, or the end of a `with`: what was read of them counts as this process's memory.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.folder = folder
        self.dtype = dtype
        self.device = device
        self._files: dict[str, Any] = {}
        for path in _files(folder):
            try:
                opened = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                remedy = f"; delete {folder} to have it made again" if cache_folder() in folder.parents else ""
                raise ModelError(f"{path} is not a whole safetensors file: {error}{remedy}") from error
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                self._files[name] = opened

    def close(self) -> None:
        """Let go of the files."""
        self._files.clear()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    @property
    def has_four_bits(self) -> bool:
        """Whether any matrix comes from a GGUF file's blocks of 4 bits."""
        return any(name.endswith((".q4_0", ".q4_1")) for name in self._files)

    def get(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """The tensor `name`, in `dtype` if it is to be another; ModelError if it is missing or has another shape."""
        opened = self._files.get(name)
        if opened is None:
            raise ModelError(f"{self.folder}: tensor {name} is missing")
        found = list(opened.get_slice(name).get_shape())
        if found != list(shape):
            raise ModelError(f"{self.folder}: tensor {name} has shape {found}, config.json asks for {list(shape)}")
        tensor: Tensor = opened.get_tensor(name)
        if not tensor.is_floating_point():
            raise ModelError(f"{self.folder}: tensor {name} holds {tensor.dtype}, not floats")
        return tensor.to(self.device, dtype or self.dtype)

    def blocks(self, name: str, shape: Sequence[int]) -> Blocks | None:
        """The matrix `name` as the quantized blocks of the GGUF file it came from, None if it had none of KINDS."""
        for kind, size in KINDS.items():
            opened = self._files.get(f"{name}.{kind}")
            if opened is not None:
                raw: Tensor = opened.get_tensor(f"{name}.{kind}")
                bytes_ = [shape[0], -(-shape[1] // BLOCK) * size]
                if list(raw.shape) != bytes_ or raw.dtype != torch.uint8:
                    raise ModelError(f"{self.folder}: tensor {name}.{kind} is not uint8 {bytes_}")
                return to_blocks(raw, kind, shape[1])
        return None

    def stacked(self, names: Sequence[str], rows: Sequence[int], columns: int | None) -> Tensor:
        """Matrices (vectors if `columns` is None) one below the other, as one."""
        tail = [] if columns is None else [columns]
        parts = [self.get(name, [n, *tail]) for name, n in zip(names, rows, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index}: weight_map is missing")
        if not all(isinstance(name, str) for name in weight_map.values()):
            raise ModelError(f"{index}: weight_map must map the names of tensors to those of files")
        names = sorted(set(weight_map.values()))
        elsewhere = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
        if elsewhere:
            raise ModelError(
                f"{index}: weight_map must name *.safetensors of its own folder, got {shortened(elsewhere[0])!r}"
            )
        paths = [folder / name for name in names]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelError(f"{folder} holds no *.safetensors{_pickles(folder)}")
    for path in paths:
        if not path.is_file():
            raise ModelError(f"{path} is missing")
    return paths


def _pickles(folder: Path) -> str:
    """What to say of weights that are there and are not read."""
    found = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if not found:
        return " (other formats are not read)"
    return f"; {found[0]} is a pickle, which may run any code when it is read: convert it to safetensors or GGUF"
