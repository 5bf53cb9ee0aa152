"""How one step's work is listed for a kernel: single rows, and tiles of a chunk's queries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kernels.metadata import AttentionMetadata, IntArray


def single_rows(metadata: AttentionMetadata, sequences: npt.NDArray[np.intp]) -> IntArray:
    """Every query row of these sequences: int32 [N, 3] of row, sequence, number of keys it sees."""
    starts, lengths = metadata.host_query_starts, metadata.host_context_lengths
    counts = starts[sequences + 1] - starts[sequences]
    owner = np.repeat(sequences, counts)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.empty((len(owner), 3), dtype=np.int32)
    table[:, 0] = starts[owner] + nth
    table[:, 1] = owner
    table[:, 2] = lengths[owner] - np.repeat(counts, counts) + nth + 1
    return table


def query_tiles(metadata: AttentionMetadata, sequences: npt.NDArray[np.intp], size: int) -> IntArray:
    """These sequences' queries cut into tiles of at most `size`: int32 [N, 4] of first row, number of rows,
    sequence, number of keys the first row sees."""
    starts, lengths = metadata.host_query_starts, metadata.host_context_lengths
    counts = starts[sequences + 1] - starts[sequences]
    tiles = -(-counts // size)
    owner = np.repeat(sequences, tiles)
    nth = (np.arange(len(owner)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * size
    count = np.repeat(counts, tiles)
    table = np.empty((len(owner), 4), dtype=np.int32)
    table[:, 0] = starts[owner] + nth
    table[:, 1] = np.minimum(size, count - nth)
    table[:, 2] = owner
    table[:, 3] = lengths[owner] - count + nth + 1
    return table


# Fewer rows than this, or shorter runs, cost more laid out once than read by each row (measured).
SHARING_ROWS = 3
SHARING_KEYS = 64


@dataclass(frozen=True)
class Rows:
    """A step's rows, and how they are taken together.

    `table` is int32 [N, 3]: query row, sequence, number of keys it sees. `entries` is int32 [E, 5]: first of its
    rows in `table`, number of rows, a sequence whose block table holds the keys they share, and the range of these
    keys (empty: none are taken together). Entries cover every row once.
    """

    table: IntArray
    entries: IntArray
    longest: int  # the most keys a row sees
    keys: int  # that all rows see together, not counting a window

    @property
    def sharing(self) -> bool:
        return bool((self.entries[:, 1] > 1).any())


def gather_rows(
    metadata: AttentionMetadata, *, tile_rows: int, batch_rows: int, block_size: int, window: int | None, aim: int
) -> Rows:
    """All rows of a step, with at most `tile_rows` together that see the same keys.

    These are neighbouring queries of one chunk, or sequences whose block tables begin alike. Tiles of sequences
    are a multiple of `batch_rows` and as small as gives `aim` of them. Shared ranges are whole tiles of 16 keys.
    """
    counts = np.diff(metadata.host_query_starts)
    decodes, chunks = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
    if tile_rows > 1 and len(decodes) >= SHARING_ROWS:
        decodes = decodes[np.argsort(metadata.host_block_tables[decodes, 0], kind="stable")]
    table = single_rows(metadata, np.concatenate((decodes, chunks)))
    if tile_rows == 1:
        return _finish(table, [])
    tiles: list[tuple[int, int]] = []
    first_blocks = metadata.host_block_tables[decodes, 0] if len(decodes) else decodes
    bounds = [0, *(np.flatnonzero(np.diff(first_blocks)) + 1).tolist(), len(decodes)]
    for begin, end in pairwise(bounds):
        size = min(tile_rows, -(-(end - begin) // (aim * batch_rows)) * batch_rows)
        tiles += [(i, min(i + size, end)) for i in range(begin, end, max(size, 1))]
    begin = len(decodes)
    for count in counts[chunks].tolist():
        tiles += [(i, min(i + tile_rows, begin + count)) for i in range(begin, begin + count, tile_rows)]
        begin += count
    shared = []
    for begin, end in tiles:
        if end - begin < SHARING_ROWS:
            continue
        lengths = table[begin:end, 2]
        first_key = max(0, int(lengths.max()) - window) if window else 0
        last_key = min(int(lengths.min()), _common_blocks(metadata, table[begin:end, 1]) * block_size)
        first_key, last_key = -(-first_key // 16) * 16, last_key // 16 * 16
        if last_key - first_key >= SHARING_KEYS:
            shared.append((begin, end - begin, int(table[begin, 1]), first_key, last_key))
    return _finish(table, shared)


def _common_blocks(metadata: AttentionMetadata, sequences: IntArray) -> int:
    """How many leading entries these sequences' block tables have in common."""
    tables = metadata.host_block_tables
    if sequences[0] == sequences[-1]:
        return tables.shape[1]
    alike = (tables[sequences] == tables[sequences[0]]).all(axis=0)
    return tables.shape[1] if alike.all() else int(alike.argmin())


def _finish(table: IntArray, shared: list[tuple[int, int, int, int, int]]) -> Rows:
    """Entries of the shared tiles first, as they take longest, then the rows that none of them holds."""
    alone = np.ones(len(table), dtype=bool)
    for begin, count, *_ in shared:
        alone[begin : begin + count] = False
    rest = np.flatnonzero(alone)
    entries = np.zeros((len(shared) + len(rest), 5), dtype=np.int32)
    if shared:
        entries[: len(shared)] = shared
    entries[len(shared) :, 0] = rest
    entries[len(shared) :, 1] = 1
    return Rows(table, entries, int(table[:, 2].max(initial=0)), int(table[:, 2].sum()))
