from __future__ import annotations

import numpy as np

from kernels.rows import query_tiles, single_rows


def test_single_rows_see_one_key_more_each(case_of):
    metadata = case_of([(5, 1), (9, 3), (4, 0), (2, 2)]).metadata
    assert single_rows(metadata, np.array([0, 1, 2, 3])).tolist() == [
        [0, 0, 5],
        [1, 1, 7],
        [2, 1, 8],
        [3, 1, 9],
        [4, 3, 1],
        [5, 3, 2],
    ]
    assert single_rows(metadata, np.array([], dtype=int)).shape == (0, 3)


def test_query_tiles_cut_chunks(case_of):
    metadata = case_of([(5, 1), (9, 5), (4, 0), (2, 2)]).metadata
    assert query_tiles(metadata, np.array([1, 2, 3]), 2).tolist() == [
        [1, 2, 1, 5],
        [3, 2, 1, 7],
        [5, 1, 1, 9],
        [6, 2, 3, 1],
    ]
