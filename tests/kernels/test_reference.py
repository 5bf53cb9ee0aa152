from __future__ import annotations

import pytest
import torch

from kernels.attention import AttentionMetadata, write_kv
from kernels.fp8 import FP8, FP8_MAX, quantize

MIXED = [(1, 1), (37, 1), (16, 16), (45, 7), (33, 33), (5, 0), (130, 2)]


@pytest.mark.parametrize("options", [{}, {"sliding_window": 1}, {"sliding_window": 9}, {"soft_cap": 3.0}])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
def test_equals_dense_attention_in_float64(case_of, options, heads):
    case = case_of(MIXED, num_q_heads=heads[0], num_kv_heads=heads[1], **options)
    torch.testing.assert_close(case.attend("reference").double(), case.dense(), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-10)])
def test_rounds_once_for_narrow_types(case_of, dtype, tolerance):
    case = case_of(MIXED, dtype=dtype)
    result = case.attend("reference")
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), case.dense(), atol=1e-6, rtol=tolerance)


def test_an_empty_step_returns_nothing(case_of):
    assert case_of([]).attend("reference").shape == (0, 9, 64)


def test_float8_caches_stand_for_their_values_times_a_scale(case_of):
    case = case_of(MIXED)
    exact = case.dense()
    scales = {"key_scale": 0.01, "value_scale": 0.02}
    for name in ("key", "value"):
        scale = scales[f"{name}_scale"]
        setattr(case, f"{name}_cache", quantize(getattr(case, f"{name}_cache"), scale))
        dense = [quantize(one, scale).float() * scale for one in getattr(case, f"{name}s")]
        setattr(case, f"{name}s", dense)
    found = case.attend("reference", **scales).double()
    torch.testing.assert_close(found, case.dense(), atol=2e-6, rtol=2e-6)
    assert (found - exact).norm() < 0.06 * exact.norm()  # three bits of mantissa


def test_float8_is_written_divided_clamped_and_rounded():
    metadata = AttentionMetadata.build(
        torch.zeros(1, 1, dtype=torch.int32),
        *(torch.tensor(x, dtype=torch.int32) for x in ([0, 1], [1])),
        torch.tensor([1]),
    )
    key_cache, value_cache = (torch.zeros(1, 1, 2, 4).to(FP8) for _ in range(2))
    key = torch.tensor([[[1.0, -3.14, 1e6, float("nan")]]])
    write_kv(key, key * 2, key_cache, value_cache, metadata, key_scale=0.5, value_scale=2.0, backend="reference")
    assert key_cache[0, 0, 1].float().tolist()[:3] == [2.0, -6.5, FP8_MAX]
    assert value_cache[0, 0, 1].float().tolist()[:3] == [1.0, -3.25, FP8_MAX]
    assert key_cache[0, 0, 1].float().isnan().tolist() == [False, False, False, True]
    assert not key_cache[0, 0, 0].float().any()
