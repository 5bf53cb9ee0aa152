"""What sizing needs to know of a model: how many parameters of each kind, and what one token keeps in each layer."""

from __future__ import annotations

from typing import Literal

import msgspec

Attention = Literal["MHA", "GQA", "MQA", "MLA"]


def grouped_bits(bits: int, group: int) -> float:
    """Bits for one weight of `bits` where `group` of them share a 16-bit scale and a zero point (AWQ, GPTQ)."""
    return bits + (16 + bits) / group


class Quantization(msgspec.Struct, frozen=True):
    """How a checkpoint packs its matrices: `bits` for each weight, scales included, if known."""

    name: str
    bits: float | None
    only_experts: bool = False


class Parameters(msgspec.Struct, frozen=True):
    """Parameter counts by what becomes of them. `small`: norms, biases and routers, which nobody quantises."""

    embedding: int
    head: int  # 0 if tied to the embedding
    attention: int
    mlp: int
    experts: int
    small: int

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.attention + self.mlp + self.experts + self.small


class ModelShape(msgspec.Struct, frozen=True):
    """One decoder-only model. An attention layer keeps keys and values of `kv_heads` heads or, in MLA, one latent.

    `kv_heads` has an entry per layer. `latent_dim` is kv_lora_rank + qk_rope_head_dim, 0 without MLA. `window` tokens
    are all that `sliding_layers` of the layers attend to.
    """

    name: str
    model_type: str
    num_heads: int
    kv_heads: tuple[int, ...]
    key_dim: int
    value_dim: int
    latent_dim: int
    sliding_layers: int
    window: int
    max_context: int | None
    dtype: str | None  # float32, float16 or bfloat16; None where the config does not say
    quantization: Quantization | None
    parameters: Parameters
    stored_bytes: int | None = None  # of all tensors, where a file lists them
    notes: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.kv_heads)

    @property
    def attention(self) -> Attention:
        if self.latent_dim:
            return "MLA"
        most = max(self.kv_heads)
        return "MHA" if most == self.num_heads else "MQA" if most == 1 else "GQA"

    def kv_elements(self, devices: int = 1) -> int:
        """Numbers that one token keeps on each of `devices` over all layers.

        Tensor parallelism splits heads; a head that cannot be split, and MLA's latent, is on every device.
        """
        if self.latent_dim:
            return self.num_layers * self.latent_dim
        return sum(-(-heads // devices) for heads in self.kv_heads) * (self.key_dim + self.value_dim)
