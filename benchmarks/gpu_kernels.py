"""Attention on a GPU: is it right, and how near is it to what the card can do.

Times are the median of some calls between CUDA events, each after a read that empties the level-two cache: what a write
left there would have to go to memory within the time, up to 50 MB on an H200 where the shortest call reads 134.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import reference
from kernels.attention import AttentionMetadata, paged_attention
from kernels.fp8 import FP8, quantize

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
FLUSH_BYTES = 256 * 1024 * 1024
COPY_BYTES = 1024**3
WARM_UPS, CALLS = 5, 30
DECODES = ((64, 4096), (1, 32768))  # (sequences, context)
PREFILLS = ((1, 8192), (4, 2048))  # (prompts, tokens)
# Largest error allowed, as a share of its row's largest result: some roundings of what products are made of.
TOLERANCES = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float32: 1e-5}


class Check(msgspec.Struct, frozen=True):
    """One random case against float64; `error` is the largest, as a share of the largest result of its row: what many
    keys give is small, and could be wrong altogether unseen beside what one key gives."""

    name: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed


class Figure(msgspec.Struct, frozen=True):
    """`seconds` of one call; `share` of the copy's bandwidth, or of what torch's flash attention does."""

    name: str
    seconds: float
    rate: float  # bytes or floating-point operations per second
    share: float
    aim: float


class Case(msgspec.Struct, frozen=True):
    """Sequences as (context, queries), and how they are attended to."""

    sequences: tuple[tuple[int, int], ...]
    heads: int = HEADS
    kv_heads: int = KV_HEADS
    head_dim: int = HEAD_DIM
    window: int | None = None
    soft_cap: float | None = None
    float8: bool = False

    def __str__(self) -> str:
        kinds = {"decode" if queries == 1 else "chunk" for _, queries in self.sequences}
        options = [f"window {self.window}"] if self.window else []
        options += [f"cap {self.soft_cap:g}"] if self.soft_cap else []
        options += ["float8"] if self.float8 else []
        longest = max(context for context, _ in self.sequences)
        named = "+".join(sorted(kinds))
        return " ".join([f"{named} {self.heads}/{self.kv_heads}x{self.head_dim} to {longest}", *options])


_MIXED = ((1, 1), (37, 1), (1000, 1), (5000, 1), (45, 7), (300, 300), (2049, 513))
CASES = (
    *(
        Case(_MIXED, heads, kv, dim)
        for heads, kv, dim in ((32, 8, 128), (9, 3, 64), (8, 8, 80), (6, 6, 96), (8, 2, 256))
    ),
    Case(_MIXED, window=1),
    Case(_MIXED, window=1000, soft_cap=30.0),
    Case(_MIXED, float8=True),
    Case(((32768, 1),)),
    Case(tuple((n, 1) for n in range(1, 200))),
)


def random_layout(
    sequences: Sequence[tuple[int, int]], device: torch.device, generator: torch.Generator
) -> tuple[AttentionMetadata, int]:
    """Blocks scattered at random, and how many there are; a table's unused entries hold numbers of no block."""
    needs = [-(-context // BLOCK_SIZE) for context, _ in sequences]
    blocks = torch.randperm(sum(needs) + 1, generator=generator, dtype=torch.int32)
    tables = torch.full((len(sequences), max(needs)), 2**31 - 1, dtype=torch.int32)
    begin = 0
    for table, need in zip(tables, needs, strict=True):
        table[:need] = blocks[begin : begin + need]
        begin += need
    contexts, queries = (torch.tensor(numbers, dtype=torch.int32) for numbers in zip(*sequences, strict=True))
    starts = F.pad(queries.cumsum(0), (1, 0)).to(torch.int32)
    slots = torch.full((int(starts[-1]),), -1)
    return AttentionMetadata.build(tables, starts, contexts, slots, device=device), len(blocks)


def check(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> Check:
    """Attention of fresh random inputs against plain torch in float64."""
    generator = torch.Generator().manual_seed(seed)
    metadata, num_blocks = random_layout(case.sequences, device, generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    shape = (num_blocks, case.kv_heads, BLOCK_SIZE, case.head_dim)
    keys, values = normal(*shape).to(dtype), normal(*shape).to(dtype)
    query = normal(metadata.num_tokens, case.heads, case.head_dim).to(dtype)
    key_scale = value_scale = 1.0
    seen = keys, values
    if case.float8:
        key_scale, value_scale = 0.02, 0.03
        keys, values = quantize(keys, key_scale), quantize(values, value_scale)
        seen = keys.float() * key_scale, values.float() * value_scale
    scale = case.head_dim**-0.5
    found = paged_attention(
        query,
        keys,
        values,
        metadata,
        scale,
        sliding_window=case.window,
        soft_cap=case.soft_cap,
        key_scale=key_scale,
        value_scale=value_scale,
        backend="triton",
    )
    expected = torch.empty(query.shape, dtype=torch.float64, device=device)
    wide_keys, wide_values = (cache.double() for cache in seen)
    options = case.window, case.soft_cap
    reference.paged_attention(query.double(), wide_keys, wide_values, metadata, scale, *options, expected)
    error = float(((found.double() - expected).abs().amax((1, 2)) / expected.abs().amax((1, 2))).max())
    name = f"{case}, {str(dtype).removeprefix('torch.')}"
    return Check(name, error if error == error else float("inf"), TOLERANCES[dtype])


def seconds(call: Callable[[], object]) -> float:
    """The median time of a call on the current GPU, with a cold level-two cache."""
    flush = torch.zeros(FLUSH_BYTES // 4, device="cuda")
    for _ in range(WARM_UPS):
        call()
    events = [_events() for _ in range(CALLS)]
    for begin, end in events:
        flush.sum()  # long enough for the host to queue the call before it begins
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(begin.elapsed_time(end)) for begin, end in events) / 1000


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return begin, end


def copy_rate() -> float:
    """Bytes read and written per second by a copy within the GPU's memory."""
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * COPY_BYTES / seconds(lambda: target.copy_(source))


def decode(sequences: int, context: int, dtype: torch.dtype, copied: float) -> Figure:
    """One query of each sequence; bytes are those of the keys and values. `copied`: `copy_rate`."""
    device = torch.device("cuda")
    metadata, num_blocks = random_layout([(context, 1)] * sequences, device, torch.Generator().manual_seed(0))
    shape = (num_blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    keys, values = (torch.randn(shape, device=device, dtype=torch.bfloat16).to(dtype) for _ in range(2))
    query = torch.randn(sequences, HEADS, HEAD_DIM, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(query)
    graph = captured(lambda: paged_attention(query, keys, values, metadata, HEAD_DIM**-0.5, out=out, backend="triton"))
    took = seconds(graph)
    rate = 2 * sequences * context * KV_HEADS * HEAD_DIM * dtype.itemsize / took
    name = f"decode {sequences} x {context:,}, {str(dtype).removeprefix('torch.')}"
    return Figure(name, took, rate, rate / copied, 0.85)


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """The call as the engine makes it: in a graph, so that the host's time does not count."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def prefill(prompts: int, tokens: int) -> Figure:
    """Whole prompts, beside torch's flash attention over keys and values that lie ready, repeated for every head."""
    device, dtype = torch.device("cuda"), torch.bfloat16
    metadata, num_blocks = random_layout([(tokens, tokens)] * prompts, device, torch.Generator().manual_seed(0))
    shape = (num_blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    keys, values = (torch.randn(shape, device=device, dtype=dtype) for _ in range(2))
    query = torch.randn(prompts * tokens, HEADS, HEAD_DIM, device=device, dtype=dtype)
    out = torch.empty_like(query)
    ours = seconds(lambda: paged_attention(query, keys, values, metadata, HEAD_DIM**-0.5, out=out, backend="triton"))
    dense = [torch.randn(prompts, HEADS, tokens, HEAD_DIM, device=device, dtype=dtype) for _ in range(3)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        theirs = seconds(lambda: F.scaled_dot_product_attention(dense[0], dense[1], dense[2], is_causal=True))
    flops = 4 * prompts * HEADS * HEAD_DIM * tokens * (tokens + 1) / 2
    return Figure(f"prefill {prompts} x {tokens:,}, bfloat16", ours, flops / ours, theirs / ours, 0.6)


def all_checks(device: torch.device, seed: int) -> list[Check]:
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    return [check(case, dtype, device, seed + i) for i, case in enumerate(CASES) for dtype in dtypes]


def all_figures(copied: float) -> list[Figure]:
    decodes = [decode(*shape, dtype, copied) for dtype in (torch.bfloat16, FP8) for shape in DECODES]
    return decodes + [prefill(*shape) for shape in PREFILLS]
