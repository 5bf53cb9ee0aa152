from __future__ import annotations

import numpy as np

from kernels.rows import gather_rows, query_tiles, single_rows


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


def gathered(metadata, **changes):
    options = {"tile_rows": 8, "batch_rows": 4, "block_size": 16, "window": None, "aim": 1}
    return gather_rows(metadata, **{**options, **changes})


def covers_every_row_once(rows):
    taken = [i for first, count, *_ in rows.entries.tolist() for i in range(first, first + count)]
    return sorted(taken) == list(range(len(rows.table)))


def test_sequences_that_begin_alike_are_taken_together(case_of):
    metadata = case_of([(100 + i, 1) for i in range(10)], shared=5).metadata
    rows = gathered(metadata)
    assert covers_every_row_once(rows)
    # two tiles: eight rows, and the remaining two alone
    assert rows.entries[0].tolist() == [0, 8, 0, 0, 80]
    assert rows.entries[1:, 1].tolist() == [1, 1]


def test_garbage_past_a_sequences_need_is_not_shared(case_of):
    metadata = case_of([(81, 1), (100, 1), (100, 1)], shared=5).metadata
    metadata.host_block_tables[:, 6:] = -1
    assert gathered(metadata).entries.tolist() == [[0, 3, 0, 0, 80]]
    short = case_of([(66, 1), (100, 1), (100, 1)], shared=5).metadata
    short.host_block_tables[:] = short.host_block_tables[1]
    assert gathered(short).entries.tolist() == [[0, 3, 0, 0, 64]]


def test_sequences_that_begin_apart_are_taken_alone(case_of):
    rows = gathered(case_of([(100, 1)] * 6).metadata)
    assert covers_every_row_once(rows)
    assert not rows.sharing


def test_a_chunks_neighbours_share_what_the_first_sees_and_the_last_still_sees(case_of):
    metadata = case_of([(150, 11), (20, 1)]).metadata
    rows = gathered(metadata)
    assert covers_every_row_once(rows)
    # the lone decode comes first in the table; the chunk's rows see 140 to 150 keys
    assert rows.table[0].tolist() == [11, 1, 20]
    assert rows.entries[:2].tolist() == [[1, 8, 0, 0, 128], [9, 3, 0, 0, 144]]
    # the tile's last row sees keys from 67 on, its first from 60 on
    windowed = gathered(case_of([(250, 11), (20, 1)]).metadata, window=180)
    assert windowed.entries[0].tolist() == [1, 8, 0, 80, 240]


def test_small_batches_make_smaller_tiles_for_all_threads(case_of):
    metadata = case_of([(100, 1)] * 8, shared=5).metadata
    assert gathered(metadata, aim=2).entries[:, 1].tolist() == [4, 4]


def test_no_rows_make_no_entries(case_of):
    assert len(gathered(case_of([]).metadata).entries) == 0
    assert len(gathered(case_of([(5, 0)]).metadata).entries) == 0
