"""Attention alone, on the loads of the demo, beside torch's fused attention called per sequence.

`python -m benchmarks.attention [--dtype bfloat16] [--threads N] [--backend cpu]`. Figures are the best of many calls.
The peer gets contiguous keys and values for free, and knows nothing of blocks. Bytes are those of each sequence's
keys and values, so shared blocks count once per reader: the rate may pass the memory's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.attention import BACKENDS, AttentionMetadata, paged_attention, warm_up, write_kv

NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16  # SmolLM2-135M
SCALE = HEAD_DIM**-0.5


@dataclass(frozen=True)
class Load:
    """`sequences` with `queries` each of `context` tokens, of which the first `shared` are the same blocks."""

    name: str
    sequences: int
    queries: int
    context: int
    shared: int = 0

    @property
    def flops(self) -> int:
        seen = sum(range(self.context - self.queries + 1, self.context + 1))
        return 4 * NUM_Q_HEADS * HEAD_DIM * self.sequences * seen

    @property
    def kv_elements(self) -> int:
        return 2 * NUM_KV_HEADS * HEAD_DIM * self.sequences * self.context


LOADS = (
    Load("decode 1 x 16 (overhead)", 1, 1, 16),
    Load("decode 1 x 1,300", 1, 1, 1300),
    Load("decode 8 x 1,300", 8, 1, 1300),
    Load("decode 32 x 1,300, 1,000 shared", 32, 1, 1300, 992),
    Load("decode 64 x 1,300, 1,000 shared", 64, 1, 1300, 992),
    Load("decode 64 x 1,300", 64, 1, 1300),
    Load("chunk 448 from 0", 1, 448, 448),
    Load("chunk 448 after 1,000", 1, 448, 1448),
    Load("chunks 8 x 32 after 1,000, shared", 8, 32, 1032, 992),
)


def best_seconds(call: Callable[[], object], seconds: float) -> float:
    """The shortest of the calls made within about `seconds`, after three that do not count."""
    for _ in range(3):
        call()
    shortest, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def layout(load: Load, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, AttentionMetadata]:
    """Query, caches and metadata of a load."""
    shared = load.shared // BLOCK_SIZE
    private = -(-load.context // BLOCK_SIZE) - shared
    num_blocks = shared + load.sequences * private
    own = torch.arange(shared, num_blocks).reshape(load.sequences, private)
    tables = torch.cat((torch.arange(shared).expand(load.sequences, -1), own), dim=1)
    shape = (num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    tokens = load.sequences * load.queries
    metadata = AttentionMetadata.build(
        tables.to(torch.int32),
        torch.arange(0, tokens + 1, load.queries, dtype=torch.int32),
        torch.full((load.sequences,), load.context, dtype=torch.int32),
        torch.full((tokens,), -1),
    )
    query = torch.randn(tokens, NUM_Q_HEADS, HEAD_DIM).to(dtype)
    return query, torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), metadata


def peer(load: Load, query: Tensor, dtype: torch.dtype) -> Callable[[], object]:
    """torch's fused attention, once per sequence, over keys and values that lie ready."""
    group = NUM_Q_HEADS // NUM_KV_HEADS
    kv = [
        torch.randn(2, NUM_KV_HEADS, 1, load.context, HEAD_DIM).to(dtype).expand(-1, -1, group, -1, -1)
        for _ in range(load.sequences)
    ]
    shape = (load.queries, NUM_KV_HEADS, group, HEAD_DIM)
    queries = [part.reshape(shape).permute(1, 2, 0, 3) for part in torch.split(query, load.queries)]
    mask = None
    if load.queries > 1:
        visible = torch.ones(load.queries, load.context, dtype=torch.bool).tril(load.context - load.queries)
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))

    def call() -> None:
        for q, (k, v) in zip(queries, kv, strict=True):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=SCALE)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, help="torch's threads (default: torch's own choice)")
    parser.add_argument("--backend", choices=tuple(BACKENDS), default="cpu")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each figure")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        if arguments.threads < 1:
            parser.error("--threads must be at least 1")
        torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    started = time.perf_counter()
    warm_up(NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, dtype, BLOCK_SIZE, backend=arguments.backend)
    print(
        f"{arguments.backend}, {arguments.dtype}, {torch.get_num_threads()} threads; ready after "
        f"{time.perf_counter() - started:.2f} s\n"
    )
    print(f"{'load':<36}{'us':>10}{'GFLOP/s':>10}{'GB/s':>8}{'peer us':>11}{'ratio':>8}")
    for load in LOADS:
        query, key_cache, value_cache, metadata = layout(load, dtype)
        attend = partial(paged_attention, query, key_cache, value_cache, metadata, SCALE, backend=arguments.backend)
        ours = best_seconds(attend, arguments.seconds)
        theirs = best_seconds(peer(load, query, dtype), arguments.seconds)
        bytes_read = load.kv_elements * dtype.itemsize
        print(
            f"{load.name:<36}{ours * 1e6:>10.1f}{load.flops / ours / 1e9:>10.1f}{bytes_read / ours / 1e9:>8.1f}"
            f"{theirs * 1e6:>11.1f}{theirs / ours:>8.2f}",
            flush=True,
        )
    tables = torch.arange(64 * 82, dtype=torch.int32).reshape(64, 82)
    starts, lengths = torch.arange(65, dtype=torch.int32), torch.full((64,), 1300, dtype=torch.int32)
    slots = tables[:, 81].long() * BLOCK_SIZE
    new = torch.randn(64, NUM_KV_HEADS, HEAD_DIM).to(dtype)
    keys, values = (torch.zeros(64 * 82, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, dtype=dtype) for _ in range(2))
    metadata = AttentionMetadata.build(tables, starts, lengths, slots)
    write = best_seconds(
        lambda: write_kv(new, new, keys, values, metadata, backend=arguments.backend), arguments.seconds
    )

    def prepare() -> None:
        AttentionMetadata.build(tables, starts, lengths, slots).check_cache(64 * 82, BLOCK_SIZE)

    print(f"\nwrite_kv of 64 tokens: {write * 1e6:.1f} us; metadata of 64 sequences, once per step: "
          f"{best_seconds(prepare, arguments.seconds) * 1e6:.1f} us")  # fmt: skip


if __name__ == "__main__":
    main()
