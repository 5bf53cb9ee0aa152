"""The decoder on a CPU: the same models as `engine.model`, with each step one compiled program over all threads.

Weights are packed for `kernels.cpu_product`, some in 4 or 8 bits; norms, rotation, cache
write, attention, SiLU and residuals are stages between the products, or part of their stores. Like in `engine.model`
the residual is float32 whatever the dtype; so are queries and keys until they are rotated, and the logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from mmap import mmap

import msgspec
import torch
from torch import Tensor

from engine.cpu_step import CPUStep, Layer, Shape
from engine.loading.config import ModelConfig
from engine.loading.weights import Weights
from engine.model import Decoder, KVCache, allocate_kv
from engine.protocol import Parts
from engine.quantizer import Quantizer
from engine.rope import inverse_frequencies
from kernels import cpu, cpu_float_tile, thread_pool
from kernels.attention import AttentionMetadata
from kernels.cpu_elementwise import padded
from kernels.cpu_panels import STORE, PackedWeight, is_quantized
from kernels.cpu_product import product_call, product_worker
from kernels.cpu_program import Program
from kernels.cpu_quantized_rows import quantize_worker, quantized_rows
from kernels.cpu_vectors import FLOAT32


class CPUDecoder:
    """A loaded model, its matrices in fewer bits if there is a `quantizer`.

    `max_positions` bounds the positions it will be asked for.
    """

    small_step = 0  # threads are woken once a step: no step is too small for all of them

    def __init__(
        self, config: ModelConfig, weights: Weights, max_positions: int, quantizer: Quantizer | None = None
    ) -> None:
        self.config = config
        self.max_positions = max_positions
        self.dtype = weights.dtype
        self.device = weights.device
        self.parts: Parts | None = None  # of the last `hidden` and the `logits` after it
        vocabulary = [config.vocab_size, config.hidden_size]
        embedding = weights.get("model.embed_tokens.weight", vocabulary)
        head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        self._head = (
            cpu_float_tile.pack_linear(weights.get(head, vocabulary))
            if quantizer is None
            else quantizer.pack([head], vocabulary[:1], config.hidden_size, output_layer=True)
        )
        frequencies, factor = inverse_frequencies(config.rope, config.head_dim)
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * frequencies
        self._step = CPUStep(
            Shape(
                hidden_size=config.hidden_size,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                eps=config.rms_norm_eps,
                normed_heads=config.qk_norm,
                dtype=weights.dtype,
            ),
            _padded(embedding),
            [_load_layer(config, weights, quantizer, i) for i in range(config.num_layers)],
            _padded(weights.get("model.norm.weight", [config.hidden_size]).float()),
            angles.cos() * factor,
            angles.sin() * factor,
        )
        self._logits = torch.empty(0)

    def allocate_kv(self, num_blocks: int, block_size: int, memory: mmap | None = None) -> Tensor:
        """See `engine.model.allocate_kv`."""
        return allocate_kv(self.config, num_blocks, block_size, self.dtype, self.device, memory)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        caches: Sequence[KVCache],
        sampled_rows: Tensor,
    ) -> Tensor:
        """`hidden`, then `logits` of it."""
        return self.logits(self.hidden(token_ids, positions, metadata, caches, sampled_rows))

    def hidden(
        self,
        token_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        caches: Sequence[KVCache],
        wanted_rows: Tensor,
    ) -> Tensor:
        """Run one step up to the output layer, and write its KV.

        token_ids and positions int64 [T]; wanted_rows int64 [S], rows of T. Returns the normed hidden rows
        [S, hidden_size] that are wanted, valid until the next step.
        """
        rows, seconds = self._step.run(token_ids, positions, metadata, caches, wanted_rows)
        self.parts = Parts(**seconds, head=0.0)
        return rows

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer: float32 [S, vocabulary] for rows that `hidden` gave, valid until called again."""
        rows, width = hidden.shape[0], len(self._head.bias)
        if rows == 0:
            return torch.empty(0, self.config.vocab_size)
        if self._logits.shape[0] < rows:
            self._logits = torch.empty(rows, width)
        stages = []
        if is_quantized(self._head.kind):
            hidden, quantization = quantized_rows(hidden, self._head.columns)
            stages.append((quantize_worker(cpu.KINDS[self.dtype]).address, ctypes.addressof(quantization)))
        call = product_call(hidden, self._head, self._logits)
        worker = product_worker(self._head.kind, STORE, FLOAT32)
        seconds = Program([*stages, (worker.address, ctypes.addressof(call))]).run()
        if self.parts is not None:
            self.parts = msgspec.structs.replace(self.parts, head=self.parts.head + float(seconds.sum()))
        return self._logits[:rows, : self.config.vocab_size]


def load_decoder(
    config: ModelConfig, weights: Weights, max_positions: int, quantizer: Quantizer | None = None
) -> Decoder | CPUDecoder:
    """The decoder that is fastest where the weights go: compiled steps if this CPU has them for their dtype.

    Quantized matrices take a compiled step; whether this CPU has it is for the caller to know.
    """
    if quantizer is not None:
        return CPUDecoder(config, weights, max_positions, quantizer)
    # Where torch has no libgomp to borrow threads from, its own products are ahead of a compiled step on one thread.
    all_threads = thread_pool.threads() == torch.get_num_threads()
    if weights.device.type == "cpu" and all_threads and cpu_float_tile.multiplies(weights.dtype):
        return CPUDecoder(config, weights, max_positions)
    return Decoder(config, weights, max_positions)


def _padded(rows: Tensor) -> Tensor:
    """A copy with zeros after the last dimension, up to whole vectors; a view would keep the file of weights mapped."""
    copy = rows.new_zeros(*rows.shape[:-1], padded(rows.shape[-1]))
    copy[..., : rows.shape[-1]] = rows
    return copy


def _load_layer(config: ModelConfig, weights: Weights, quantizer: Quantizer | None, index: int) -> Layer:
    prefix = f"model.layers.{index}"
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def linear(
        places: Sequence[str], rows: Sequence[int], columns: int, has_bias: bool, *, gated: bool = False
    ) -> PackedWeight:
        names = [f"{prefix}.{place}" for place in places]
        matrices = [f"{name}.weight" for name in names]
        bias = weights.stacked([f"{name}.bias" for name in names], rows, None) if has_bias else None
        if quantizer is not None:
            return quantizer.pack(matrices, rows, columns, bias, gated=gated)
        pack = cpu_float_tile.pack_gated if gated else cpu_float_tile.pack_linear
        return pack(weights.stacked(matrices, rows, columns), bias)

    def vector(place: str, length: int) -> Tensor:
        return _padded(weights.get(f"{prefix}.{place}.weight", [length]).float())

    heads = ["self_attn.q_norm", "self_attn.k_norm"] if config.qk_norm else []
    query_norm, key_norm = (vector(place, head_dim) for place in heads) if heads else (torch.empty(0), torch.empty(0))
    return Layer(
        input_norm=vector("input_layernorm", hidden),
        qkv=linear(
            [f"self_attn.{name}_proj" for name in "qkv"], [query_rows, kv_rows, kv_rows], hidden, config.qkv_bias
        ),
        query_norm=query_norm,
        key_norm=key_norm,
        output=linear(["self_attn.o_proj"], [hidden], query_rows, config.output_bias),
        mlp_norm=vector("post_attention_layernorm", hidden),
        gate_up=linear(["mlp.gate_proj", "mlp.up_proj"], [inner, inner], hidden, config.mlp_bias, gated=True),
        down=linear(["mlp.down_proj"], [hidden], inner, config.mlp_bias),
        sliding_window=config.sliding_windows[index],
    )
