from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import blocks
from kernels.blocks import copy_blocks, copy_staged

BLOCK = (3, 2, 2, 4, 8)  # layers, K and V, heads, slots, head_dim


def pool(num_blocks: int, together: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Random blocks, of which each layer's lie together, or each block's."""
    if together == "block":
        return torch.randn(num_blocks, *BLOCK).to(dtype)
    return torch.randn(*BLOCK[:2], num_blocks, *BLOCK[2:]).to(dtype).permute(2, 0, 1, 3, 4, 5)


def expected(source: torch.Tensor, target: torch.Tensor, pairs: list[tuple[int, int]]) -> torch.Tensor:
    result = target.clone()
    for s, t in pairs:
        result[t] = source[s]
    return result


@pytest.mark.parametrize("copy", [copy_blocks, copy_staged])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize(("one", "other"), [("layer", "block"), ("block", "layer"), ("layer", "layer")])
def test_blocks_go_from_pool_to_pool_and_nothing_else_changes(copy, dtype, one, other):
    source, target = pool(9, one, dtype), pool(6, other, dtype)
    pairs = [(8, 0), (2, 5), (2, 1), (0, 3)]
    wanted, before = expected(source, target, pairs), source.clone()
    if dtype == torch.float8_e4m3fn:  # torch compares and indexes few of its tensors
        source, target, wanted, before = (x.view(torch.uint8) for x in (source, target, wanted, before))
    copy(source, target, pairs)
    assert torch.equal(target, wanted)
    assert torch.equal(source, before)


@settings(max_examples=50, deadline=None)
@given(order=st.permutations(range(12)), sources=st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_copies_within_a_pool(order, sources):
    """Any number of copies of few blocks, as forks make them."""
    one = pool(12, "layer")
    pairs = [(order[s], order[4 + i]) for i, s in enumerate(sources)]
    wanted = expected(one, one, pairs)
    copy_blocks(one, one, pairs)
    assert torch.equal(one, wanted)


def test_a_round_trip_keeps_every_bit():
    device, host = pool(5, "layer"), pool(7, "block")
    device[3] = torch.nan
    bits = device.view(torch.int16).clone()
    copy_blocks(device, host, [(i, 6 - i) for i in range(5)])
    device.zero_()
    copy_blocks(host, device, [(6 - i, i) for i in range(5)])
    assert torch.equal(device.view(torch.int16), bits)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 9)], r"target blocks must lie in 0\.\.8, got 9 to 9"),
        ([(9, 0)], r"source blocks must lie in 0\.\.8, got 9 to 9"),
        ([(-1, 0)], "source blocks must lie in"),
        ([(0, 1), (2, 1)], "target of two copies"),
        ([(0, 1), (1, 2)], r"blocks \[1\] are both source and target"),
    ],
)
def test_copies_that_cannot_be_are_refused_before_any_is_made(pairs, message):
    one = pool(9, "layer")
    before = one.clone()
    with pytest.raises(ValueError, match=message):
        copy_blocks(one, one, pairs)
    assert torch.equal(one, before)


def test_pools_must_hold_the_same_blocks():
    with pytest.raises(ValueError, match="blocks must be alike"):
        copy_blocks(pool(3, "layer"), pool(3, "layer", torch.float32), [(0, 1)])
    with pytest.raises(ValueError, match="blocks must be alike"):
        copy_blocks(pool(3, "layer"), pool(3, "layer")[:, :2], [(0, 1)])


def test_two_pools_may_use_the_same_numbers():
    source, target = pool(3, "layer"), pool(3, "block")
    copy_blocks(source, target, [(0, 1), (1, 0), (2, 2)])
    assert torch.equal(target, source[[1, 0, 2]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_blocks_go_to_the_host_and_back(monkeypatch):
    monkeypatch.setattr(blocks, "STAGING_BYTES", 3000)  # several slices
    start = pool(20, "layer")
    device = start.cuda()
    host = torch.empty(20, *BLOCK, dtype=start.dtype, pin_memory=True)
    copy_blocks(device, host, [(i, 19 - i) for i in range(20)])
    device.zero_()
    copy_blocks(host, device, [(19 - i, i) for i in range(0, 20, 2)])
    copy_blocks(device, device, [(i, i + 1) for i in range(0, 20, 2)])
    assert torch.equal(device.cpu(), start[[i // 2 * 2 for i in range(20)]])
