"""How one step's work is listed for a kernel: single rows, and tiles of a chunk's queries."""

from __future__ import annotations

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
