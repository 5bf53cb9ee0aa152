"""`--quantize`: a model's matrices in 8 or 4 bits, taken from the GGUF file's own blocks where it has them.

| | matrices of the layers | output layer |
| --- | --- | --- |
| int8 | 8 bits | 8 bits |
| q4, of a GGUF file with blocks of 4 bits | those in q4_0, q4_1 or q8_0 as they are, others in 8 bits | the same |
| q4, of any other model | 4 bits | 8 bits |

What is not taken from the file is quantized here, from the floats as they are stored, by ggml's rules for q8_0 and
q4_1. Matrices that are multiplied as one (query, key, value; gate, up) but differ in bits are all in 8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from engine.loading.errors import ModelError
from engine.loading.weights import Weights
from kernels.cpu_panels import PackedWeight, interleave_gated, interleave_gated_bias
from kernels.cpu_quantized_tile import pack_blocks
from kernels.quantized_blocks import Blocks, concatenate, quantize


class Quantizer:
    """Quantizes one model's matrices, and counts what became of them."""

    def __init__(self, weights: Weights, mode: str) -> None:
        self._weights = weights
        self._mode = mode
        self._counts: Counter[tuple[int, bool]] = Counter()  # by bits, and whether kept as they were

    def pack(
        self,
        names: Sequence[str],
        rows: Sequence[int],
        columns: int,
        bias: torch.Tensor | None = None,
        *,
        gated: bool = False,
        output_layer: bool = False,
    ) -> PackedWeight:
        """The matrices `names`, one below the other, packed (for SWIGLU if `gated`).

        Raises ModelError for one that is missing, has another shape, or cannot be quantized.
        """
        shapes = [(n, columns) for n in rows]
        stored = [self._weights.blocks(name, shape) for name, shape in zip(names, shapes, strict=True)]
        bits = self._bits(stored, output_layer)
        found = []
        for name, shape, blocks in zip(names, shapes, stored, strict=True):
            kept = blocks is not None and blocks.bits == bits
            self._counts[bits, kept] += 1
            found.append(blocks if blocks is not None and kept else self._quantize(name, shape, blocks, bits))
        joined = concatenate(found)
        if gated:
            joined = joined.rearranged(interleave_gated)
            bias = interleave_gated_bias(bias)
        return pack_blocks(joined, bias)

    def told(self) -> str:
        """What became of the matrices so far, as a line says it."""
        return ", ".join(
            f"{count} {'matrix' if count == 1 else 'matrices'} of {bits} bits "
            + ("as the file has them" if kept else "quantized here")
            for (bits, kept), count in sorted(self._counts.items())
        )

    def _bits(self, stored: Sequence[Blocks | None], output_layer: bool) -> int:
        """Of matrices that are multiplied as one."""
        if self._mode == "int8":
            return 8
        if self._weights.has_four_bits:
            return 4 if all(blocks is not None and blocks.bits == 4 for blocks in stored) else 8
        return 8 if output_layer else 4

    def _quantize(self, name: str, shape: tuple[int, int], blocks: Blocks | None, bits: int) -> Blocks:
        # A file's own blocks say more than the floats that were rounded from them.
        weight = self._weights.get(name, shape, torch.float32) if blocks is None else blocks.weight()
        try:
            return quantize(weight, bits)
        except ValueError as error:
            raise ModelError(f"{self._weights.folder}: tensor {name}: {error}") from error
