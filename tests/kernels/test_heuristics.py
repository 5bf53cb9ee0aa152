from __future__ import annotations

import pytest

from kernels.heuristics import MAX_SPLITS, choose_splits, decode_tiles, padded_head, power_of_two, prefill_tiles
from kernels.launch import A100, H200, MI300


def test_powers_of_two_and_padded_heads():
    assert [power_of_two(n) for n in (1, 2, 3, 16, 17)] == [1, 2, 4, 16, 32]
    assert [padded_head(n) for n in (8, 64, 80, 96, 128, 256)] == [16, 64, 128, 128, 128, 256]


@pytest.mark.parametrize(
    ("programs", "keys", "splits"),
    [
        (8, 32768, 66),  # one sequence: four programs for each of 132 multiprocessors
        (8, 100, 1),  # too short to be worth it
        (8, 1024, 8),  # no split of fewer than two tiles
        (512, 4096, 1),  # a wave is full
        (256, 4096, 2),
        (5000, 4096, 1),
        (1, 10**6, MAX_SPLITS),
    ],
)
def test_splits_fill_the_device_and_no_more(programs, keys, splits):
    assert choose_splits(H200, programs, keys, 64) == splits


@pytest.mark.parametrize("target", [A100, H200, MI300], ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 4, 8, 16, 71])
@pytest.mark.parametrize("sizes", [(2, 2), (2, 1), (4, 4), (4, 1)], ids=str)
def test_every_tile_holds_a_group_and_suits_the_matrix_units(target, head_dim, group, sizes):
    tiles = [decode_tiles(target, head_dim, group, *sizes)]
    tiles += [prefill_tiles(target, head_dim, group, *sizes, queries) for queries in (2, 8, 33, 4096)]
    for tile in tiles:
        assert tile.rows >= max(16, group)
        assert tile.keys >= 16
        assert power_of_two(tile.rows) == tile.rows
        assert power_of_two(tile.keys) == tile.keys
        assert tile.stages >= 1
    assert tiles[-1].rows // group >= 1
