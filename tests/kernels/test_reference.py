from __future__ import annotations

import pytest
import torch

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
