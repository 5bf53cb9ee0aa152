import math

import pytest
import torch

from engine.head import Head


def test_the_best_logits_of_a_bfloat16_product_are_told_apart_finely():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 96, generator=generator).bfloat16()
    hidden = torch.randn(8, 96, generator=generator).bfloat16()
    weight[:, 0], hidden[:, 0] = 4.0, 7.0  # every logit is near 28, where bfloat16 knows eighths
    exact = hidden.double() @ weight.double().T
    head = Head(weight)
    plain = (head(hidden).double() - exact).abs().mean()
    head.centre(27.6)
    centred = head(hidden)
    assert centred.dtype == torch.float32
    assert (centred.double() - exact).abs().mean() < plain / 2


def test_a_float32_head_is_left_as_it_is():
    weight, hidden = torch.randn(16, 8), torch.randn(3, 8)
    head = Head(weight)
    before = head(hidden)
    head.centre(12.0)
    assert torch.equal(head(hidden), before)
    torch.testing.assert_close(before, hidden @ weight.T)


@pytest.mark.parametrize("best", [math.nan, math.inf])
def test_a_centre_that_is_no_number_is_not_taken(best: float):
    weight, hidden = torch.randn(16, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    head = Head(weight)
    before = head(hidden)
    head.centre(best)
    assert torch.equal(head(hidden), before)
