"""The quantized matrices of a GGUF file, kept as they are beside the float weights that were made of them.

`blocks.safetensors` of a converted folder holds, for the matrix NAME in the format KIND, the tensor `NAME.KIND`: the
file's own bytes, uint8 [rows, bytes of a row]. Formats other than these three are kept as floats alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.loading.cache import tell

if TYPE_CHECKING:
    from gguf import GGUFReader
    from torch import Tensor

    from kernels.quantized_blocks import Blocks

FILE = "blocks.safetensors"
# ggml's formats of 32 weights: scale, in q4_1 the minimum (both float16), then the values.
KINDS = {"q4_0": 18, "q4_1": 20, "q8_0": 34}  # bytes of a block


def write_blocks(
    reader: GGUFReader, architecture: str, state: Mapping[str, Tensor], heads: set[int], path: Path
) -> None:
    """Write the blocks of those tensors of `state` (float32, as read from this file) that have a format of KINDS.

    Llama's file has the rows of its queries and keys in another order than `state`: the rows are put in the order in
    which the blocks stand for exactly the numbers of `state`; a tensor for which there is none is left out, and told.
    """
    from safetensors.torch import save_file

    found: dict[str, Tensor] = {}
    names = _file_names(architecture, state)
    for tensor in reader.tensors:
        kind, name = tensor.tensor_type.name.lower(), names.get(tensor.name)
        if kind not in KINDS or name is None:
            continue
        rows = _in_order(tensor, state[name], heads)
        if rows is None:
            tell(f"paged-engine: the blocks of {tensor.name} are not kept: its rows have an unknown order")
        else:
            found[f"{name}.{kind}"] = rows
    if found:
        save_file(found, path)


def to_blocks(raw: Tensor, kind: str, columns: int) -> Blocks:
    """The bytes of a matrix, uint8 [rows, bytes of a row], as `kernels` multiplies them: the same numbers, bit for bit.

    The lower halves of q4's 16 bytes are the block's first 16 values, the upper halves the rest. q4_0 counts from -8,
    which is a minimum of -8 scales.
    """
    import torch

    from kernels.quantized_blocks import ZERO, Blocks

    blocks = raw.view(raw.shape[0], -1, KINDS[kind])
    header = 4 if kind == "q4_1" else 2
    halves = blocks[:, :, :header].contiguous().view(torch.float16)
    scale, values = halves[:, :, 0].contiguous(), blocks[:, :, header:]
    if kind == "q8_0":
        return Blocks((values ^ ZERO).flatten(1), scale, None, columns)  # adds 128 to a signed byte
    minimum = halves[:, :, 1].contiguous() if kind == "q4_1" else -8 * scale
    return Blocks(torch.cat((values & 15, values >> 4), dim=2).flatten(1), scale, minimum, columns)


def _file_names(architecture: str, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Of each tensor in the file, its name in `state`."""
    import gguf

    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    # Mistral's files say `llama`; `mistral` itself has the same tensors.
    names = gguf.get_tensor_name_map(kinds.get(architecture, gguf.MODEL_ARCH.LLAMA), len(state))
    found = {name: names.get_name(name, try_suffixes=(".weight", ".bias")) for name in state}
    return {stored: name for name, stored in found.items() if stored is not None}


def _in_order(tensor: Any, wanted: Tensor, heads: set[int]) -> Tensor | None:
    import gguf
    import numpy as np
    import torch

    for rows in _orders(tensor.data, heads):
        if np.array_equal(gguf.dequantize(rows, tensor.tensor_type), wanted.numpy()):
            return torch.from_numpy(np.array(rows))
    return None


def _orders(rows: Any, heads: set[int]) -> Iterator[Any]:
    """As they are; and each head's interleaved halves one below the other."""
    yield rows
    count, size = rows.shape
    for number in sorted(heads):
        if count % (2 * number) == 0:
            pairs = rows.reshape(number, count // number // 2, 2, size)
            yield pairs.swapaxes(1, 2).reshape(count, size)
