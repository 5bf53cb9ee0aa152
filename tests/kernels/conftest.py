"""Random paged layouts: garbage in unused table entries, NaN in unused slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention import AttentionMetadata, paged_attention


@dataclass
class Case:
    """One call's input, and the dense keys and values [length, Hkv, D] that it stands for."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    metadata: AttentionMetadata
    scale: float
    keys: list[Tensor]
    values: list[Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def attend(self, backend: str | None, **changes: Any) -> Tensor:
        return paged_attention(
            self.query,
            self.key_cache,
            self.value_cache,
            self.metadata,
            self.scale,
            backend=backend,
            **{**self.options, **changes},
        )

    def dense(self) -> Tensor:
        """The same attention in float64 over the dense keys and values, by torch's own function."""
        window, cap = self.options.get("sliding_window"), self.options.get("soft_cap")
        results = []
        starts = self.metadata.query_starts.tolist()
        for b, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            query = self.query[starts[b] : starts[b + 1]].double().transpose(0, 1)
            group = query.shape[0] // keys.shape[1]
            k, v = (x.double().transpose(0, 1).repeat_interleave(group, 0) for x in (keys, values))
            position = torch.arange(len(keys) - query.shape[1], len(keys))[:, None]
            distance = position - torch.arange(len(keys))[None, :]
            visible = (distance >= 0) & (distance < (window or len(keys)))
            if cap is None:
                out = torch.nn.functional.scaled_dot_product_attention(query, k, v, attn_mask=visible, scale=self.scale)
            else:
                scores = cap * torch.tanh(query @ k.transpose(1, 2) * self.scale / cap)
                out = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v
            results.append(out.transpose(0, 1))
        return torch.cat(results) if results else self.query.double()


def make_case(
    sequences: list[tuple[int, int]],
    *,
    num_q_heads: int = 9,
    num_kv_heads: int = 3,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    shared: int = 0,
    seed: int = 0,
    **options: Any,
) -> Case:
    """`sequences` are (context length, queries); the first `shared` whole blocks are the same for all that are
    long enough."""
    random = torch.Generator().manual_seed(seed)
    needs = [-(-length // block_size) for length, _ in sequences]
    num_blocks = sum(needs) + shared + 3
    free = torch.randperm(num_blocks, generator=random).tolist()
    tables = torch.randint(-(2**31), 2**31 - 1, (len(sequences), max(needs, default=0) + 2), generator=random)
    tables = tables.to(torch.int32)
    tables[:, -1] = -1
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    key_cache, value_cache = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
    shared_blocks = [free.pop() for _ in range(shared)]
    keys, values = [], []
    for b, (length, _) in enumerate(sequences):
        own = []
        for i in range(needs[b]):
            filled = min(block_size, length - i * block_size)
            is_shared = i < len(shared_blocks) and filled == block_size
            block = shared_blocks[i] if is_shared else free.pop()
            own.append(block)
            for cache in (key_cache, value_cache):
                if cache[block, 0, :filled].isnan().any():
                    new = torch.randn(num_kv_heads, filled, head_dim, generator=random)
                    cache[block, :, :filled] = new.to(dtype)
        tables[b, : needs[b]] = torch.tensor(own, dtype=torch.int32)
        for dense, cache in ((keys, key_cache), (values, value_cache)):
            dense.append(cache[own].transpose(1, 2).reshape(-1, num_kv_heads, head_dim)[:length])
    counts = torch.tensor([0] + [count for _, count in sequences])
    tokens = int(counts.sum())
    metadata = AttentionMetadata.build(
        tables,
        counts.cumsum(0).to(torch.int32),
        torch.tensor([length for length, _ in sequences], dtype=torch.int32),
        torch.full((tokens,), -1),
    )
    query = torch.randn(tokens, num_q_heads, head_dim, generator=random).to(dtype)
    return Case(query, key_cache, value_cache, metadata, head_dim**-0.5, keys, values, options)


@pytest.fixture(scope="session")
def case_of():
    return make_case


@pytest.fixture(scope="module")
def two_threads() -> Iterator[None]:
    """Even in a process whose share is one core: how threads divide the work is part of what is checked."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
