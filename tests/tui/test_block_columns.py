"""Blocks by column say what the protocol's blocks say."""

from __future__ import annotations

import numpy as np

from engine.protocol import Block
from tui.block_columns import FREE, NAMES, UNKNOWN, BlockColumns

BLOCKS = (Block(3, "full", 1, 16, True), Block(0, "shared", 2, 16, True), Block(4, "filling", 1, 5, False))


def test_what_is_put_comes_out_again():
    columns = BlockColumns(6)
    assert columns.put(BLOCKS).tolist() == [3, 0, 4]
    assert tuple(columns.block(at) for at in (3, 0, 4)) == BLOCKS
    assert columns.block(1) == Block(1, "free", 0, 0, False)
    assert columns.touched.tolist() == [True, False, False, True, True, False]
    assert dict(zip(NAMES, columns.counts(), strict=True)) == {
        "free": 3, "cached": 0, "reserved": 0, "filling": 1, "full": 1, "shared": 1,
    }  # fmt: skip


def test_nothing_is_known_before_it_is_told():
    columns = BlockColumns(2)
    assert columns.put(()).tolist() == []
    assert (columns.state == FREE).all()
    assert (columns.owner == UNKNOWN).all()
    assert (columns.parent == UNKNOWN).all()
    assert np.isnan(columns.since).all()
    assert len(BlockColumns(0)) == 0
    assert BlockColumns(0).counts() == (0,) * len(NAMES)
