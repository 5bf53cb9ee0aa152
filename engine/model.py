"""The decoder: Llama, Mistral, Qwen2, Qwen3 (and SmolLM2, which is a Llama), for inference over a paged KV cache.

Rows of all requests of a step lie one after another: [T, hidden]. Queries, keys and values come from one product,
gate and up from another; only rows that are sampled go on to the logits. The residual is float32 whatever the
dtype: it is small, and rounding it at every layer is most of what a low precision costs in accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.head import Head
from engine.linear import Linear
from engine.loading.config import ModelConfig
from engine.loading.weights import Weights
from engine.protocol import Parts
from engine.rope import RotaryTables
from kernels.attention import AttentionMetadata, choose_backend, paged_attention, rotate_and_write, write_kv
from kernels.elementwise import add_norm, silu_mul

KVCache = tuple[Tensor, Tensor]  # keys, values: [num_blocks, num_kv_heads, block_size, head_dim]


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's parameters."""

    input_norm: Tensor  # float32, as mlp_norm
    qkv: Linear
    qk_norm: Tensor | None  # [num_heads + num_kv_heads, head_dim]
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    sliding_window: int | None


class Decoder:
    """A loaded model. `max_positions` bounds the positions it will be asked for."""

    # A step of few tokens only reads the weights: on a CPU one thread does that as fast as two, which must wake each
    # other some 200 times (measured: 31 ms against 34 at one token, 49 against 52 at 16).
    small_step = 16

    parts: Parts | None = None  # of the last `hidden` and `logits`: torch's operators are not timed one by one

    def __init__(
        self, config: ModelConfig, weights: Weights, max_positions: int, cache_dtype: torch.dtype | None = None
    ) -> None:
        self.config = config
        self.max_positions = max_positions
        self.dtype = weights.dtype
        self.cache_dtype = cache_dtype or weights.dtype
        self.device = weights.device
        self.triton = choose_backend(weights.device) == "triton"
        vocabulary = [config.vocab_size, config.hidden_size]
        self.embedding = weights.get("model.embed_tokens.weight", vocabulary)
        self.layers = [_load_layer(config, weights, i) for i in range(config.num_layers)]
        self.norm = weights.get("model.norm.weight", [config.hidden_size]).float()
        self.head = Head(self.embedding if config.tie_word_embeddings else weights.get("lm_head.weight", vocabulary))
        self.rotary = RotaryTables(config.rope, config.head_dim, max_positions, self.dtype, self.device)

    def allocate_kv(self, num_blocks: int, block_size: int, memory: mmap | None = None) -> Tensor:
        """See `allocate_kv`."""
        return allocate_kv(self.config, num_blocks, block_size, self.cache_dtype, self.device, memory)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        caches: Sequence[KVCache],
        sampled_rows: Tensor,
    ) -> Tensor:
        """Run one step and write its KV. token_ids and positions int64 [T]; sampled_rows int64 [S], rows of T.

        Returns the logits of the sampled rows, float32 [S, vocabulary].
        """
        return self.logits(self.hidden(token_ids, positions, metadata, caches, sampled_rows))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer: float32 [S, vocabulary] for what `hidden` gives."""
        if hidden.shape[0] == 0:
            return torch.empty(0, self.config.vocab_size, device=self.device)
        return self.head(hidden)

    @torch.inference_mode()
    def hidden(
        self,
        token_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        caches: Sequence[KVCache],
        wanted_rows: Tensor,
    ) -> Tensor:
        """`forward` up to the output layer: [S, hidden_size], normed, of the wanted rows."""
        config = self.config
        eps, head_dim, dtype, triton = config.rms_norm_eps, config.head_dim, self.dtype, self.triton
        all_heads = config.num_heads + 2 * config.num_kv_heads
        tokens = token_ids.shape[0]
        angles = self.rotary.at(positions) if not triton else None
        last = self.layers[-1]
        residual, delta = F.embedding(token_ids, self.embedding).float(), None
        for layer, (key_cache, value_cache) in zip(self.layers, caches, strict=True):
            normed = add_norm(residual, delta, layer.input_norm, eps, dtype, triton=triton)
            heads = layer.qkv(normed).view(tokens, all_heads, head_dim)
            if angles is None:
                cos, sin = self.rotary.cos, self.rotary.sin
                query = rotate_and_write(
                    heads, layer.qk_norm, eps, cos, sin, positions, key_cache, value_cache, metadata
                )
            else:
                query = self._rotate_and_write(heads, layer.qk_norm, angles, key_cache, value_cache, metadata)
            if layer is last and wanted_rows.shape[0] == 0:
                return torch.empty(0, config.hidden_size, dtype=dtype, device=self.device)
            attended = paged_attention(
                query,
                key_cache,
                value_cache,
                metadata,
                head_dim**-0.5,
                sliding_window=layer.sliding_window,
            ).view(tokens, config.num_heads * head_dim)
            if layer is last:  # past its keys and values, only the wanted rows are of use
                residual, attended = residual[wanted_rows], attended[wanted_rows]
            normed = add_norm(residual, layer.output(attended), layer.mlp_norm, eps, dtype, triton=triton)
            delta = layer.down(silu_mul(layer.gate_up(normed), triton=triton))
        return add_norm(residual, delta, self.norm, eps, dtype, triton=triton)

    def _rotate_and_write(
        self,
        heads: Tensor,
        norm: Tensor | None,
        angles: tuple[Tensor, Tensor],
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> Tensor:
        """As `kernels.attention.rotate_and_write`, by torch's operators, with the positions' cos and sin."""
        queries, rotated = self.config.num_heads, self.config.num_heads + self.config.num_kv_heads
        query_key, value = heads[:, :rotated], heads[:, rotated:]
        if norm is not None:
            query_key = F.rms_norm(query_key, query_key.shape[2:], None, self.config.rms_norm_eps).mul_(norm)
        query_key = self.rotary.rotate(query_key, *angles)
        write_kv(query_key[:, queries:], value, key_cache, value_cache, metadata)
        return query_key[:, :queries]


def allocate_kv(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    memory: mmap | None = None,
) -> Tensor:
    """Zeroed KV blocks [num_blocks, layers, 2, num_kv_heads, block_size, head_dim]; each layer's lie together.

    They lie in `memory`, zeroed and of a CPU, if others are to read them there.
    """
    shape = (config.num_layers, 2, num_blocks, config.num_kv_heads, block_size, config.head_dim)
    if memory is not None:
        return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape).movedim(2, 0)
    return torch.zeros(shape, dtype=dtype, device=device).movedim(2, 0)


def layer_caches(blocks: Tensor) -> list[KVCache]:
    """What `allocate_kv` gave, as each layer's attention takes it."""
    return [(layer[:, 0], layer[:, 1]) for layer in blocks.unbind(1)]


def _load_layer(config: ModelConfig, weights: Weights, index: int) -> Layer:
    prefix = f"model.layers.{index}"
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def linear(places: Sequence[str], rows: Sequence[int], columns: int, has_bias: bool) -> Linear:
        names = [f"{prefix}.{place}" for place in places]
        weight = weights.stacked([f"{name}.weight" for name in names], rows, columns)
        bias = weights.stacked([f"{name}.bias" for name in names], rows, None) if has_bias else None
        return Linear(weight, bias)

    def vector(place: str, length: int) -> Tensor:
        return weights.get(f"{prefix}.{place}.weight", [length])

    qk_norm = None
    if config.qk_norm:
        query_norm, key_norm = (vector(f"self_attn.{name}_norm", head_dim) for name in "qk")
        qk_norm = torch.stack([query_norm] * config.num_heads + [key_norm] * config.num_kv_heads)
    return Layer(
        input_norm=vector("input_layernorm", hidden).float(),
        qkv=linear(
            [f"self_attn.{name}_proj" for name in "qkv"],
            [query_rows, kv_rows, kv_rows],
            hidden,
            config.qkv_bias,
        ),
        qk_norm=qk_norm,
        output=linear(["self_attn.o_proj"], [hidden], query_rows, config.output_bias),
        mlp_norm=vector("post_attention_layernorm", hidden).float(),
        gate_up=linear(["mlp.gate_proj", "mlp.up_proj"], [inner, inner], hidden, config.mlp_bias),
        down=linear(["mlp.down_proj"], [hidden], inner, config.mlp_bias),
        sliding_window=config.sliding_windows[index],
    )
