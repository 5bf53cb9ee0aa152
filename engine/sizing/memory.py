"""From one device's memory to KV blocks: what the weights take, what is left, how many blocks that is."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from engine.sizing.shape import ModelShape, grouped_bits

KVDtype = Literal["auto", "bf16", "fp16", "fp32", "fp8"]
KV_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
GROUP = 128  # weights that share a scale in 4 bits, unless the config says otherwise
_DTYPE_BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
_KV_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class SizingError(ValueError):
    """Settings that cannot be met; the message names the flag and what is allowed."""


class Weights(msgspec.Struct, frozen=True):
    """Bytes of a model's weights on one device, and in words what that rests on."""

    bytes: int
    basis: str


class Memory(msgspec.Struct, frozen=True):
    """One device's memory, in bytes: `utilization` of `total` may be used."""

    total: int
    utilization: float
    weights: int
    overhead: int

    @property
    def usable(self) -> int:
        return int(self.total * self.utilization)

    @property
    def for_kv(self) -> int:
        return self.usable - self.weights - self.overhead


def weigh(shape: ModelShape, bits: int | None, devices: int) -> Weights:
    """What the weights take on each of `devices`, at `bits` each or, by default, as the checkpoint has them.

    4 and 8 bits are for the layers' matrices: embedding, head, norms, biases and routers stay at 16, as AWQ, GPTQ and
    FP8 checkpoints keep them. Norms, biases and routers are whole on each device, the rest is split evenly. Raises
    SizingError for a checkpoint that is packed in a way that is not known.
    """
    parameters = shape.parameters
    matrices = parameters.attention + parameters.mlp + parameters.experts
    outer = parameters.embedding + parameters.head
    if bits is None and shape.stored_bytes is not None:
        mean = 8 * shape.stored_bytes / parameters.total
        return Weights(-(-shape.stored_bytes // devices), f"{mean:.2f} bits each, as in the file")
    if bits in (16, 32) or (bits is None and shape.quantization is None):
        source = "--weights-bits"
        if bits is None:
            bits = _DTYPE_BITS.get(shape.dtype or "", 16)
            source = f"{shape.dtype} in the config" if shape.dtype else "assumed: no dtype in the config"
        return Weights(
            _bytes((outer + matrices) * bits, parameters.small * bits, devices), f"{bits} bits each ({source})"
        )
    packed, packed_bits = matrices, float(bits or 0)
    if bits is None and shape.quantization is not None:
        name = shape.quantization.name
        if shape.quantization.bits is None:
            raise SizingError(
                f"--weights-bits: the config's quantization_config ({name}) does not say how many bits a weight has; "
                "give 4, 8, 16 or 32, or --weights"
            )
        packed_bits = shape.quantization.bits
        packed = parameters.experts if shape.quantization.only_experts else matrices
        what = "experts" if shape.quantization.only_experts else "matrices"
        basis = f"{what} {packed_bits:.4g} bits ({name} in the config)"
    elif bits == 4:
        packed_bits = grouped_bits(4, GROUP)
        basis = f"matrices {packed_bits:.2f} bits (4, scale and zero point per {GROUP}: AWQ, GPTQ)"
    else:
        basis = f"matrices {bits} bits (scales, about 0.1 %, left out)"
    split = packed * packed_bits + (matrices - packed + outer) * 16
    return Weights(_bytes(split, parameters.small * 16, devices), f"{basis}, the rest 16")


def _bytes(split_bits: float, whole_bits: int, devices: int) -> int:
    return math.ceil(split_bits / 8 / devices + whole_bits / 8)


def kv_dtype(shape: ModelShape, asked: KVDtype) -> str:
    """The type of KV elements: what was asked for, else the config's, else bf16."""
    return asked if asked != "auto" else _KV_NAMES.get(shape.dtype or "", "bf16")


def check_devices(shape: ModelShape, devices: int) -> None:
    """Raise SizingError if the heads cannot be split over that many."""
    if shape.num_heads % devices:
        allowed = ", ".join(str(n) for n in range(1, min(shape.num_heads, 64) + 1) if shape.num_heads % n == 0)
        raise SizingError(
            f"--tensor-parallel-size must divide the model's {shape.num_heads} heads ({allowed}), not {devices}"
        )
