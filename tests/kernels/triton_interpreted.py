"""Checks of the Triton kernels in its interpreter; `test_triton_attention.py` runs them."""

from __future__ import annotations

import pytest
import torch

MIXED = [(1, 1), (37, 1), (16, 16), (45, 7), (5, 0), (70, 33)]
# The interpreter multiplies bf16 bit patterns in tl.dot, so bf16 cannot be checked in it.
TOLERANCES = {torch.float32: {"atol": 5e-6, "rtol": 5e-6}, torch.float16: {"atol": 2e-3, "rtol": 4e-3}}


def agrees(case):
    expected = case.attend("reference")
    torch.testing.assert_close(case.attend("triton"), expected, **TOLERANCES[expected.dtype])


@pytest.mark.parametrize("options", [{}, {"sliding_window": 1}, {"sliding_window": 20}, {"soft_cap": 3.0}])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("heads", [(9, 3), (2, 2), (4, 1), (8, 1)], ids=str)
def test_a_mixed_batch_equals_the_reference(case_of, options, dtype, heads):
    agrees(case_of(MIXED, num_q_heads=heads[0], num_kv_heads=heads[1], dtype=dtype, **options))


@pytest.mark.parametrize(
    ("head_dim", "block_size", "heads"), [(128, 32, (4, 1)), (64, 5, (3, 1)), (24, 8, (3, 3)), (16, 1, (4, 4))]
)
def test_odd_shapes_equal_the_reference(case_of, head_dim, block_size, heads):
    agrees(case_of(MIXED, head_dim=head_dim, block_size=block_size, num_q_heads=heads[0], num_kv_heads=heads[1]))


@pytest.mark.parametrize("splits", [2, 3, 8])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 20}, {"soft_cap": 3.0}], ids=str)
def test_splits_are_merged_even_when_some_are_empty(case_of, splits, options, monkeypatch):
    from kernels import heuristics

    monkeypatch.setattr(heuristics, "choose_splits", lambda *_: splits)
    monkeypatch.setattr(heuristics, "decode_tiles", lambda *_: heuristics.Tiles(16, 16, 4, 1))
    agrees(case_of([(1, 1), (16, 1), (17, 1), (130, 1), (50, 5)], **options))


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


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("block_size", "head_dim"), [(16, 64), (5, 24)])
def test_write_kv_equals_the_reference(dtype, block_size, head_dim):
    from kernels.attention import AttentionMetadata, write_kv

    slots = torch.tensor([2 * block_size + 1, -1, 0, 4 * block_size - 1, -1, block_size])
    metadata = AttentionMetadata.build(
        torch.zeros(1, 4, dtype=torch.int32),
        torch.tensor([0, 6], dtype=torch.int32),
        torch.tensor([6], dtype=torch.int32),
        slots,
    )
    fused = torch.randn(6, 9, head_dim).to(dtype)
    caches = [torch.randn(4, 3, block_size, head_dim).to(dtype) for _ in range(2)]
    written = {}
    for backend in ("reference", "triton"):
        written[backend] = [cache.clone() for cache in caches]
        write_kv(fused[:, 3:6], fused[:, 6:9], *written[backend], metadata, backend=backend)
    for expected, actual in zip(*written.values(), strict=True):
        assert torch.equal(expected, actual)
    assert not torch.equal(caches[0], written["triton"][0])


def test_an_empty_step_returns_nothing(case_of):
    assert case_of([]).attend("triton").shape == (0, 9, 64)
