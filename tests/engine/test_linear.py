"""A packed weight multiplies as the plain one does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import engine.linear
from engine.linear import Linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3, 64, 200])
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_it_equals_torchs_linear(dtype: torch.dtype, rows: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 48).to(dtype), torch.randn(96, 48).to(dtype)
    bias = torch.randn(96).to(dtype) if has_bias else None
    found = Linear(weight, bias)(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, F.linear(x, weight, bias))


def test_without_onednn_the_plain_product_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(engine.linear, "_packs", engine.linear._packs.__wrapped__)
    linear = Linear(torch.eye(4))
    assert linear.packed is None
    assert torch.equal(linear(torch.ones(1, 4)), torch.ones(1, 4))


def test_a_packed_weight_is_not_kept_twice() -> None:
    linear = engine.linear.Linear(torch.eye(16))
    assert (linear.packed is None) != (linear.weight is None)
