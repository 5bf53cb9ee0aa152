from __future__ import annotations

import pytest
import torch

from kernels.attention import AttentionMetadata

GOOD = {
    "block_tables": torch.tensor([[3, 1, -9], [0, 99, 99]], dtype=torch.int32),
    "query_starts": torch.tensor([0, 1, 3], dtype=torch.int32),
    "context_lengths": torch.tensor([7, 2], dtype=torch.int32),
    "slots": torch.tensor([6, -1, 1]),
}


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def test_keeps_a_good_layout():
    metadata = AttentionMetadata.build(**GOOD)
    assert (metadata.num_sequences, metadata.num_tokens) == (2, 3)
    metadata.check_cache(4, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_starts": ints(1, 1, 3)}, "start at 0"),
        ({"query_starts": ints(0, 4, 3)}, "never fall"),
        ({"query_starts": ints(0, 1, 2)}, "slots has 3"),
        ({"query_starts": ints(0, 3)}, "B, B and B \\+ 1"),
        ({"context_lengths": ints(7, 1)}, r"context_lengths\[1\] is 1"),
        ({"context_lengths": ints(7)}, "B, B and B \\+ 1"),
        ({"block_tables": ints(1, 2)}, "block_tables must have 2 dimensions"),
    ],
)
def test_refuses_a_layout_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        AttentionMetadata.build(**{**GOOD, **change})


def test_refuses_a_wrong_dtype():
    with pytest.raises(TypeError, match=r"slots must be torch\.int64"):
        AttentionMetadata.build(**{**GOOD, "slots": ints(6, -1, 1)})


@pytest.mark.parametrize(
    ("change", "cache", "message"),
    [
        ({}, (3, 4), r"block_tables\[0, 0\] is 3, outside 0\.\.2"),
        ({"block_tables": ints(3, -1, 0, 0, 9, 9).reshape(2, 3)}, (4, 4), r"block_tables\[0, 1\] is -1"),
        ({"context_lengths": ints(13, 2)}, (4, 4), "it needs 4 blocks of 4, but block_tables has 3"),
        ({"slots": ints(6, 16, 1, dtype=torch.int64)}, (4, 4), r"slots must lie in -1\.\.15"),
        ({"slots": ints(6, -2, 1, dtype=torch.int64)}, (4, 4), r"slots must lie in -1\.\.15"),
    ],
)
def test_refuses_blocks_and_slots_outside_the_cache(change, cache, message):
    metadata = AttentionMetadata.build(**{**GOOD, **change})
    with pytest.raises(ValueError, match=message):
        metadata.check_cache(*cache)
