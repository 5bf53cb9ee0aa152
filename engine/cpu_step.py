"""A whole step of a decoder as one compiled program: its buffers, and the calls of its stages.

The calls are made once, a row of an array for each layer; a step sets what changes: the number of rows, where this
step's tables lie, and the tickets that the threads draw.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.model import KVCache
from kernels import cpu
from kernels.attention import AttentionMetadata
from kernels.cpu_elementwise import (
    Lookup,
    Norm,
    Rotation,
    lookup_worker,
    norm_worker,
    padded,
    rotation_worker,
)
from kernels.cpu_kernel import Call
from kernels.cpu_panels import ADD, PANEL, STORE, SWIGLU, PackedWeight, is_quantized
from kernels.cpu_product import Product, product_worker
from kernels.cpu_program import Program
from kernels.cpu_quantized_rows import Quantization, quantize_worker, row_bytes
from kernels.cpu_vectors import FLOAT32

Calls = npt.NDArray[Any]
Stage = tuple[str, Any, Calls, int]  # the part it belongs to, worker, calls, and which of them
PRODUCTS = ("qkv", "output", "gate_up", "down")
WIDTH = max(PANEL, 16)  # rows are whole panels, and whole vectors
PARTS = ("norm", "qkv", "rope", "attention", "output", "gate_up", "down")
FEWEST_ROWS = 64  # that buffers are made for


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's parameters, packed; vectors are float32 and padded to whole vectors."""

    input_norm: Tensor
    qkv: PackedWeight
    query_norm: Tensor  # [head_dim], as key_norm; unused in models without
    key_norm: Tensor
    output: PackedWeight
    mlp_norm: Tensor
    gate_up: PackedWeight
    down: PackedWeight
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder that a step depends on."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    normed_heads: bool
    dtype: torch.dtype


class CPUStep:
    """Runs steps of one model. `embedding` [vocabulary, hidden]; cos and sin float32 [positions, head_dim / 2]."""

    def __init__(
        self, shape: Shape, embedding: Tensor, layers: Sequence[Layer], final_norm: Tensor, cos: Tensor, sin: Tensor
    ) -> None:
        self.shape = shape
        self._layers = layers
        self._kept = (embedding, final_norm, cos, sin)
        self._rows = 0
        self._caches: Sequence[KVCache] | None = None
        self._programs: dict[tuple[object, ...], tuple[Program, npt.NDArray[np.intp]]] = {}
        self._buffers: dict[str, Tensor] = {}
        self._make_calls(embedding, final_norm, cos, sin)

    def run(
        self,
        token_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        caches: Sequence[KVCache],
        wanted_rows: Tensor,
    ) -> tuple[Tensor, dict[str, float]]:
        """Compute one step, as `CPUDecoder.hidden`; the normed rows [S, hidden_size] and the seconds of each part.

        Raises ValueError or TypeError for what lies outside its tables: the compiled loops look at nothing.
        """
        rows, wanted = token_ids.shape[0], wanted_rows.shape[0]
        if not rows == positions.shape[0] == metadata.num_tokens or not rows:
            raise ValueError(
                f"token_ids, positions and slots must be as many, and some, "
                f"not {rows}, {positions.shape[0]} and {metadata.num_tokens}"
            )
        embedding, _, cos, _ = self._kept
        # Names keep what is made contiguous alive until the step is done.
        token_ids = _indexes("token_ids", token_ids, len(embedding))
        positions = _indexes("positions", positions, len(cos))
        wanted_rows = _indexes("wanted_rows", wanted_rows, rows)
        self._place_caches(caches)
        num_blocks, _, block_size, _ = caches[0][0].shape
        metadata.check_cache(num_blocks, block_size)
        self._reserve(max(rows, wanted))
        for calls in (self._norms, self._products["qkv"], self._quantizations["qkv"], self._rotations):
            calls["num_rows"] = rows
        later = [calls[name] for calls in (self._products, self._quantizations) for name in PRODUCTS[1:]]
        for calls in (self._mlp_norms, *later):
            calls["num_rows"] = rows
            calls["num_rows"][-1] = wanted  # past its keys and values, the last layer computes only the wanted rows
        self._final["num_rows"] = self._gathers["num_rows"] = wanted
        self._lookup["num_rows"] = rows
        self._lookup["indexes"] = token_ids.data_ptr()
        self._gathers["indexes"] = wanted_rows.data_ptr()
        self._rotations["positions"] = positions.data_ptr()
        self._rotations["slots"] = metadata.slots.data_ptr()
        self._rotations["block_size"] = block_size
        works = self._plan_attention(metadata, block_size)
        for calls in self._every:
            calls["ticket"] = 0
        program, parts = self._program(works, wanted > 0)
        seconds = np.bincount(parts, weights=program.run(), minlength=len(PARTS))
        final = self._buffers["final"][:wanted, : self.shape.hidden_size]
        return final, dict(zip(PARTS, seconds.tolist(), strict=True))

    def _make_calls(self, embedding: Tensor, final_norm: Tensor, cos: Tensor, sin: Tensor) -> None:
        """All calls, but for what `_reserve`, `_place_caches` and `run` set."""
        shape, layers, count = self.shape, self._layers, len(self._layers)
        self._dtype_kind = cpu.KINDS[shape.dtype]
        width, vectors = shape.hidden_size, padded(shape.hidden_size) // 16
        self._lookup = _calls(Lookup, 1)
        self._lookup["vectors"], self._lookup["table"] = vectors, embedding.data_ptr()
        self._lookup["table_row"] = embedding.stride(0) * embedding.element_size()
        self._norms, self._mlp_norms, self._final = _calls(Norm, count), _calls(Norm, count), _calls(Norm, 1)
        for calls, weights in (
            (self._norms, [layer.input_norm for layer in layers]),
            (self._mlp_norms, [layer.mlp_norm for layer in layers]),
            (self._final, [final_norm]),
        ):
            calls["vectors"], calls["size"], calls["eps"] = vectors, width, shape.eps
            calls["weight"] = [weight.data_ptr() for weight in weights]
        self._products, self._quantizations = {}, {}
        for name in PRODUCTS:
            calls, packed = _calls(Product, count), [getattr(layer, name) for layer in layers]
            calls["num_panels"] = [len(weight.bias) // PANEL for weight in packed]
            calls["steps"] = [weight.steps for weight in packed]
            calls["weight"] = [weight.weight.data_ptr() for weight in packed]
            calls["bias"] = [weight.bias.data_ptr() for weight in packed]
            self._products[name] = calls
            self._quantizations[name] = _calls(Quantization, count)
            self._quantizations[name]["blocks"] = [weight.steps for weight in packed]
        self._rotations = _calls(Rotation, count)
        self._rotations["num_heads"], self._rotations["num_kv_heads"] = shape.num_heads, shape.num_kv_heads
        self._rotations["cos"], self._rotations["sin"] = cos.data_ptr(), sin.data_ptr()
        self._rotations["query_norm"] = [layer.query_norm.data_ptr() for layer in layers]
        self._rotations["key_norm"] = [layer.key_norm.data_ptr() for layer in layers]
        self._rotations["eps"] = shape.eps
        self._attends, self._merges = _calls(Call, count), _calls(Call, count)
        self._attends["scale"] = shape.head_dim**-0.5
        self._gathers = _calls(Lookup, 2)  # the wanted rows of the residual, and of what was attended
        self._gathers["vectors"] = vectors, padded(shape.num_heads * shape.head_dim) // 16
        self._every = (
            self._lookup, self._norms, self._mlp_norms, self._final, *self._products.values(),
            *self._quantizations.values(), self._rotations, self._attends, self._merges, self._gathers,
        )  # fmt: skip

    def _reserve(self, rows: int) -> None:
        """Make buffers for at least `rows` rows, and tell every call where they lie."""
        if rows <= self._rows:
            return
        rows = max(rows, 2 * self._rows, FEWEST_ROWS)
        shape, layer, dtype = self.shape, self._layers[0], self.shape.dtype
        width, attended = padded_to_panels(shape.hidden_size), padded_to_panels(shape.num_heads * shape.head_dim)
        sizes: dict[str, tuple[int, torch.dtype]] = {
            "hidden": (width, torch.float32),
            "normed": (width, dtype),
            "qkv": (len(layer.qkv.bias), torch.float32),
            "query": (shape.num_heads * shape.head_dim, dtype),
            "attended": (attended, dtype),
            "gated": (padded_to_panels(len(layer.gate_up.bias) // 2), dtype),
            "wanted_hidden": (width, torch.float32),
            "wanted_attended": (attended, dtype),
            "final": (width, dtype),
            "quantized": (self._quantized_bytes(), torch.uint8),  # the rows of one product after another
        }
        # The old ones first, so that both are never held; if there is no memory for the new ones there are none.
        self._rows, self._buffers = 0, {}
        self._buffers = {name: torch.zeros(rows, columns, dtype=kind) for name, (columns, kind) in sizes.items()}
        self._connect(self._lookup, out="hidden")
        self._connect(self._norms, input="hidden", out="normed")
        self._connect_product("qkv", slice(None), "normed", "qkv")
        self._connect(self._rotations, input="qkv", query="query")
        self._connect(self._attends, query="query", out="attended")
        self._attends["query_head"] = self._attends["out_head"] = shape.head_dim * dtype.itemsize
        self._connect(self._gathers[:1], table="hidden", out="wanted_hidden")
        self._connect(self._gathers[1:], table="attended", out="wanted_attended")
        for layers, hidden, attended_rows in (
            (slice(None, -1), "hidden", "attended"),
            (slice(-1, None), "wanted_hidden", "wanted_attended"),
        ):
            self._connect_product("output", layers, attended_rows, hidden)
            self._connect(self._mlp_norms[layers], input=hidden, out="normed")
            self._connect_product("gate_up", layers, "normed", "gated")
            self._connect_product("down", layers, "gated", hidden)
        self._connect(self._final, input="wanted_hidden", out="final")
        self._rows = rows

    def _connect(self, calls: Calls, **places: str) -> None:
        """Let a call's field, as `input`, and its `input_row` be those of a buffer."""
        for field, name in places.items():
            buffer = self._buffers[name]
            calls[field], calls[f"{field}_row"] = buffer.data_ptr(), buffer.stride(0) * buffer.element_size()

    def _connect_product(self, name: str, layers: slice, input: str, out: str) -> None:
        """Connect a product of some layers to its input, through the quantized rows where its weight is quantized."""
        quantized = np.array([is_quantized(getattr(layer, name).kind) for layer in self._layers[layers]], np.bool_)
        products = self._products[name][layers]
        self._connect(products, input=input, out=out)
        self._connect(self._quantizations[name][layers], input=input, out="quantized")
        buffer = self._buffers["quantized"]
        products["input"][quantized], products["input_row"][quantized] = buffer.data_ptr(), buffer.stride(0)

    def _quantized_bytes(self) -> int:
        weights = [getattr(layer, name) for layer in self._layers for name in PRODUCTS]
        return max((row_bytes(weight.columns) for weight in weights if is_quantized(weight.kind)), default=0)

    def _place_caches(self, caches: Sequence[KVCache]) -> None:
        """Tell every layer's calls where its caches lie; the same sequence of them is not looked at again."""
        if caches is self._caches:
            return
        expected = (self.shape.num_kv_heads, caches[0][0].shape[2], self.shape.head_dim)
        for tensor in (tensor for pair in caches for tensor in pair):
            if tensor.shape[1:] != expected or tensor.dtype != self.shape.dtype or tensor.stride(3) != 1:
                raise ValueError(
                    f"caches must be {self.shape.dtype} [num_blocks, {', '.join(map(str, expected))}], the last "
                    f"dimension contiguous, got {tensor.dtype} {list(tensor.shape)}"
                )
        if len(caches) != len(self._layers):
            raise ValueError(f"there must be caches for {len(self._layers)} layers, not {len(caches)}")
        for i, (keys, values) in enumerate(caches):
            for name, value in cpu.cache_fields(keys, values, "key_head", "value_head").items():
                self._attends[name][i] = self._rotations[name][i] = value
        self._caches = caches

    def _plan_attention(self, metadata: AttentionMetadata, block_size: int) -> list[cpu.AttentionWork]:
        """Each layer's attention; layers with the same window share the plan."""
        shape = self.shape
        windows = [layer.sliding_window for layer in self._layers]
        works = {}
        for window in dict.fromkeys(windows):
            work = cpu.plan_attention(
                metadata,
                num_heads=shape.num_heads,
                num_kv_heads=shape.num_kv_heads,
                block_size=block_size,
                head_dim=shape.head_dim,
                dtype=shape.dtype,
                sliding_window=window,
            )
            assert work is not None, "a step has rows"
            works[window] = work
            same = [i for i, other in enumerate(windows) if other == window]
            for name, value in work.fields.items():
                self._attends[name][same] = value
        self._merges[:] = self._attends
        return [works[window] for window in windows]

    def _program(self, works: Sequence[cpu.AttentionWork], any_wanted: bool) -> tuple[Program, npt.NDArray[np.intp]]:
        """The stages in order, and the part of a step that each belongs to; kept for steps of the same kind."""
        key = (any_wanted, *((work.attend, work.merge) for work in works))
        if key in self._programs:
            return self._programs[key]
        kind, shape = self._dtype_kind, self.shape
        norm, rotation = norm_worker(kind), rotation_worker(shape.head_dim, kind, int(shape.normed_heads))
        stages: list[Stage] = [("norm", lookup_worker(kind, FLOAT32), self._lookup, 0)]
        last = len(self._layers) - 1
        for i, work in enumerate(works):
            stages.append(("norm", norm, self._norms, i))
            stages += self._product("qkv", i, STORE, FLOAT32)
            stages.append(("rope", rotation, self._rotations, i))
            if i == last and not any_wanted:
                break
            stages.append(("attention", work.attend, self._attends, i))
            if work.merge is not None:
                stages.append(("attention", work.merge, self._merges, i))
            if i == last:
                stages.append(("output", lookup_worker(FLOAT32, FLOAT32), self._gathers, 0))
                stages.append(("output", lookup_worker(kind, kind), self._gathers, 1))
            stages += self._product("output", i, ADD, FLOAT32)
            stages.append(("norm", norm, self._mlp_norms, i))
            stages += self._product("gate_up", i, SWIGLU, kind)
            stages += self._product("down", i, ADD, FLOAT32)
        if any_wanted:
            stages.append(("norm", norm, self._final, 0))
        program = Program([(worker.address, _address(calls, i)) for _, worker, calls, i in stages])
        found = program, np.array([PARTS.index(part) for part, *_ in stages])
        self._programs[key] = found
        return found

    def _product(self, name: str, index: int, mode: int, out_kind: int) -> list[Stage]:
        """The stages of one layer's product."""
        kind = getattr(self._layers[index], name).kind
        product: Stage = (name, product_worker(kind, mode, out_kind), self._products[name], index)
        if not is_quantized(kind):
            return [product]
        return [(name, quantize_worker(self._dtype_kind), self._quantizations[name], index), product]


def _indexes(name: str, given: Tensor, limit: int) -> Tensor:
    """int64 [N], one after another in memory, each from 0 to below `limit`. Raises TypeError or ValueError."""
    if given.dtype != torch.int64:
        raise TypeError(f"{name} must be int64, got {given.dtype}")
    if given.numel():
        least, most = (int(bound) for bound in given.aminmax())
        if least < 0 or most >= limit:
            raise ValueError(f"{name} must be from 0 to {limit - 1}, got {least if least < 0 else most}")
    return given.contiguous()


def padded_to_panels(size: int) -> int:
    """Columns of a row that a product may write whole panels to."""
    return -(-size // WIDTH) * WIDTH


def _calls(structure: type[ctypes.Structure], count: int) -> Calls:
    return np.zeros(count, np.dtype(structure))


def _address(calls: Calls, index: int) -> int:
    return int(calls.ctypes.data) + index * calls.itemsize
