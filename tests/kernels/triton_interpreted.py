"""Checks of the Triton kernels in its interpreter; `test_triton_attention.py` runs them."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu_kernels import Case, check
from kernels import heuristics
from kernels.attention import AttentionMetadata, paged_attention, rotate_and_write, write_kv
from kernels.elementwise import add_norm, silu_mul
from kernels.fp8 import FP8, as_bytes, quantize
from kernels.launch import H200, Target

MIXED = [(1, 1), (37, 1), (16, 16), (45, 7), (5, 0), (70, 33)]
# The interpreter multiplies bf16 bit patterns in tl.dot, so bf16 cannot be checked in it.
TOLERANCES = {torch.float32: {"atol": 5e-6, "rtol": 5e-6}, torch.float16: {"atol": 2e-3, "rtol": 4e-3}}
OPTIONS = [
    {},
    {"sliding_window": 1},
    {"sliding_window": 20},
    {"soft_cap": 3.0},
    {"sliding_window": 16, "soft_cap": 3.0},
]


def agrees(case, **changes):
    expected = case.attend("reference", **changes)
    torch.testing.assert_close(case.attend("triton", **changes), expected, **TOLERANCES[expected.dtype])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("heads", "dtype"),
    [
        ((9, 3), torch.float32),
        ((9, 3), torch.float16),
        ((2, 2), torch.float32),
        ((4, 1), torch.float16),
        ((8, 1), torch.float32),
    ],
    ids=str,
)
def test_a_mixed_batch_equals_the_reference(case_of, options, dtype, heads):
    agrees(case_of(MIXED, num_q_heads=heads[0], num_kv_heads=heads[1], dtype=dtype, **options))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    ("head_dim", "block_size", "heads"),
    [
        (64, 5, (3, 1)),
        (80, 16, (2, 2)),
        (96, 16, (4, 1)),
        (128, 32, (4, 1)),
        (256, 16, (2, 1)),
        (24, 8, (3, 3)),
        (16, 1, (4, 4)),
        (64, 128, (5, 1)),
    ],
)
def test_odd_shapes_equal_the_reference(case_of, head_dim, block_size, heads, dtype):
    heads = {"num_q_heads": heads[0], "num_kv_heads": heads[1]}
    agrees(case_of(MIXED, head_dim=head_dim, block_size=block_size, dtype=dtype, **heads))


@pytest.mark.parametrize("splits", [2, 8, 33])
@pytest.mark.parametrize("options", OPTIONS[1:4], ids=str)
def test_splits_are_merged_even_when_some_are_empty(case_of, splits, options, monkeypatch):
    monkeypatch.setattr(heuristics, "choose_splits", lambda *_: splits)
    monkeypatch.setattr(heuristics, "decode_tiles", lambda *_: heuristics.Tiles(16, 16, 4, 1))
    agrees(case_of([(1, 1), (16, 1), (17, 1), (130, 1), (600, 1)], num_q_heads=2, num_kv_heads=1, **options))


@pytest.mark.parametrize("target", [H200, Target("cuda", 80, 108), Target("hip", "gfx942", 304)], ids=str)
def test_every_targets_tiles_give_the_same(case_of, target, monkeypatch):
    from kernels import triton_attention

    monkeypatch.setattr(triton_attention, "target_of", lambda _: target)
    agrees(case_of([(700, 1), (3, 1), (130, 100), (40, 2)], dtype=torch.float16))


def test_chunks_of_whole_tiles_and_of_one_key_more(case_of):
    sequences = [(n, q) for n in (63, 64, 65, 129) for q in (2, n)]
    agrees(case_of(sequences, num_q_heads=2, num_kv_heads=1))


def test_strided_queries_and_outputs(case_of):
    case = case_of(MIXED)
    expected = case.attend("reference")
    fused = torch.zeros(len(expected), 15, 64)
    fused[:, 3:12] = case.query
    case.query = fused[:, 3:12]
    out = torch.zeros(len(expected), 11, 64)
    case.attend("triton", out=out[:, 1:10])
    torch.testing.assert_close(out[:, 1:10], expected, **TOLERANCES[torch.float32])
    assert not out[:, 0].any()
    assert not out[:, 10].any()


def test_heads_that_are_not_dense_are_refused(case_of):
    case = case_of([(20, 1)])
    case.key_cache = case.key_cache.transpose(2, 3).contiguous().transpose(2, 3)
    with pytest.raises(ValueError, match="key_cache must have its last dimension contiguous"):
        case.attend("triton")


def test_a_sequence_without_keys_gives_zeros(monkeypatch, case_of):
    """As the padding of a graph's batch, where the host still has the picture of the longest context."""
    for splits in (1, 4):
        monkeypatch.setattr(heuristics, "choose_splits", lambda *_, splits=splits: splits)
        case = case_of([(40, 1), (40, 1)])
        expected = case.attend("reference")
        case.metadata.context_lengths[1] = 0
        found = case.attend("triton")
        torch.testing.assert_close(found[0], expected[0], **TOLERANCES[torch.float32])
        assert not found[1].any()


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_float8_caches_equal_the_reference(case_of, dtype, native, monkeypatch):
    from kernels import triton_attention

    target = Target("cuda", 90 if native else 80, 132)
    monkeypatch.setattr(triton_attention, "target_of", lambda _: target)
    case = case_of(MIXED, dtype=dtype)
    scales = {"key_scale": 0.02, "value_scale": 0.5}
    case.key_cache = quantize(case.key_cache, scales["key_scale"])
    case.value_cache = quantize(case.value_cache, scales["value_scale"])
    agrees(case, **scales)


def written_slots(block_size):
    slots = torch.tensor([2 * block_size + 1, -1, 0, 4 * block_size - 1, -1, block_size])
    return AttentionMetadata.build(
        torch.zeros(1, 4, dtype=torch.int32),
        torch.tensor([0, 6], dtype=torch.int32),
        torch.tensor([6], dtype=torch.int32),
        slots,
    )


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("block_size", "head_dim"), [(16, 64), (5, 24), (16, 80)])
def test_write_kv_equals_the_reference(dtype, block_size, head_dim):
    metadata = written_slots(block_size)
    fused = torch.randn(6, 9, head_dim).to(dtype)
    caches = [torch.randn(4, 3, block_size, head_dim).to(dtype) for _ in range(2)]
    written = {}
    for backend in ("reference", "triton"):
        written[backend] = [cache.clone() for cache in caches]
        write_kv(fused[:, 3:6], fused[:, 6:9], *written[backend], metadata, backend=backend)
    for expected, actual in zip(*written.values(), strict=True):
        assert torch.equal(expected, actual)
    assert not torch.equal(caches[0], written["triton"][0])


@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_float8_is_written_as_torch_rounds_it(scale):
    """Every float16 there is: ties, subnormals, what is too large, infinities and NaN."""
    everything = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).view(64, 1, 1024)
    tokens = len(everything)
    metadata = AttentionMetadata.build(
        torch.arange(4, dtype=torch.int32)[None],
        torch.tensor([0, tokens], dtype=torch.int32),
        torch.tensor([tokens], dtype=torch.int32),
        torch.arange(tokens),
    )
    written = {}
    for backend in ("reference", "triton"):
        caches = [torch.zeros(4, 1, 16, 1024).to(FP8) for _ in range(2)]
        write_kv(everything, everything.flip(0), *caches, metadata, key_scale=scale, value_scale=scale, backend=backend)
        written[backend] = torch.stack([as_bytes(cache) for cache in caches])
    nan = written["reference"] & 0x7F == 0x7F
    assert torch.equal(written["triton"] & 0x7F == 0x7F, nan)
    assert torch.equal(written["triton"][~nan], written["reference"][~nan])


@pytest.mark.parametrize("cache_dtype", [None, FP8])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((4, 4), 80), ((5, 1), 24)])
def test_rotating_and_writing_in_one_equals_doing_it_in_float64(heads, head_dim, dtype, normed, cache_dtype):
    num_q, num_kv = heads
    generator = torch.Generator().manual_seed(1)
    metadata = written_slots(16)
    tokens = metadata.num_tokens
    qkv = torch.randn(tokens, num_q + 2 * num_kv, head_dim, generator=generator).to(dtype)
    norm = torch.randn(num_q + num_kv, head_dim, generator=generator).to(dtype) if normed else None
    angles = torch.rand(50, head_dim // 2, generator=generator) * 6
    cos = torch.cat((angles.cos(), angles.cos()), dim=1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), dim=1).to(dtype)
    positions = torch.tensor([7, 0, 49, 3, 3, 12])
    scales = {"key_scale": 0.05, "value_scale": 0.1} if cache_dtype else {}
    caches = [torch.zeros(4, num_kv, 16, head_dim, dtype=dtype).to(cache_dtype or dtype) for _ in range(2)]

    wide = qkv.double()
    rotated = wide[:, : num_q + num_kv]
    if norm is not None:
        rotated = rotated * (rotated.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.double()
    rotated = rotated * cos[positions, None].double() + rotated.roll(head_dim // 2, -1) * sin[positions, None].double()
    expected = [cache.clone() for cache in caches]
    key, value = rotated[:, num_q:].to(dtype), qkv[:, num_q + num_kv :]
    write_kv(key, value, *expected, metadata, backend="reference", **scales)

    query = rotate_and_write(qkv, norm, 1e-5, cos, sin, positions, *caches, metadata, **scales)
    torch.testing.assert_close(
        query.double(), rotated[:, :num_q], atol=1e-5, rtol=2e-3 if dtype != torch.float32 else 1e-5
    )
    for found, wanted, scale in zip(caches, expected, scales.values() or (1.0, 1.0), strict=True):
        step = {"atol": 2**-9 * scale, "rtol": 0.13} if cache_dtype else TOLERANCES[dtype]  # one step of e4m3
        torch.testing.assert_close(found.double(), wanted.double(), **step)
    assert torch.equal(as_bytes(caches[1]), as_bytes(expected[1]))  # values are not computed with


def test_what_does_not_fit_together_is_refused():
    metadata = written_slots(16)
    cache = torch.zeros(4, 3, 16, 64)
    positions, table = torch.zeros(6, dtype=torch.int64), torch.zeros(9, 64)
    with pytest.raises(ValueError, match=r"qkv must be contiguous \[6, Hq \+ 6, 64\], got \[5, 9, 64\]"):
        rotate_and_write(torch.zeros(5, 9, 64), None, 1e-5, table, table, positions, cache, cache, metadata)
    with pytest.raises(TypeError, match="qkv and caches must share one dtype"):
        rotate_and_write(torch.zeros(6, 9, 64).half(), None, 1e-5, table, table, positions, cache, cache, metadata)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "width"), [(1, 48), (5, 576), (2, 3000)])
def test_elementwise_kernels_equal_torch(rows, width, dtype):
    residual, delta = torch.randn(rows, width), torch.randn(rows, width).to(dtype)
    weight = torch.randn(width)
    gate_up = torch.randn(rows, 2 * width).to(dtype)
    rounding = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for added in (None, delta):
        sums = [residual.clone() for _ in range(2)]
        expected, found = (
            add_norm(one, added, weight, 1e-5, dtype, triton=triton)
            for one, triton in zip(sums, (False, True), strict=True)
        )
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=rounding)
        assert torch.equal(*sums)
    expected, found = (silu_mul(gate_up, triton=triton) for triton in (False, True))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=2 * rounding)


def test_an_empty_step_returns_nothing(case_of):
    case = case_of([])
    assert case.attend("triton").shape == (0, 9, 64)
    empty = torch.zeros(0, 3, 64)
    write_kv(empty, empty, case.key_cache, case.value_cache, case.metadata, backend="triton")
    assert add_norm(torch.zeros(0, 8), None, torch.ones(8), 1e-5, torch.float32, triton=True).shape == (0, 8)


def test_paged_attention_refuses_scales_without_float8(case_of):
    case = case_of([(20, 1)])
    with pytest.raises(ValueError, match="are for float8_e4m3fn caches"):
        paged_attention(case.query, case.key_cache, case.value_cache, case.metadata, 1.0, key_scale=2.0)


@pytest.mark.parametrize("float8", [False, True])
def test_the_benchmarks_check_passes_and_can_fail(float8, monkeypatch):
    case = Case(((40, 1), (1, 1), (30, 7), (18, 18)), 4, 2, 32, window=9, soft_cap=5.0, float8=float8)
    cpu = torch.device("cpu")
    assert check(case, torch.float32, cpu, seed=5).passed
    assert check(case, torch.float16, cpu, seed=5).passed
    from kernels import triton_attention

    monkeypatch.setattr(triton_attention, "LOG2E", 1.45)
    assert not check(case, torch.float32, cpu, seed=5).passed
