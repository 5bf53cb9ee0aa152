"""Which tiles, warps, stages and splits a launch takes: tables and arithmetic, no measurement while serving.

What the tables aim at can be read off without a GPU: `python -m kernels.aot` compiles every entry and tells registers,
spills and how many programs of it one multiprocessor holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.launch import Target

TILE_ROWS = 16  # the fewest rows a matrix unit takes
PROGRAMS_PER_PROCESSOR = 4  # of decode, which together keep enough bytes on their way to fill the memory's bandwidth
MIN_SPLIT_TILES = 2  # a split of fewer tiles of keys costs more to merge than it gains
MAX_SPLITS = 256


@dataclass(frozen=True)
class Tiles:
    """`rows` of queries (times heads of a group) by `keys`, with this many warps and loads in flight."""

    rows: int
    keys: int
    warps: int
    stages: int


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`."""
    return 1 << max(0, least - 1).bit_length()


def padded_head(head_dim: int) -> int:
    """The width of a tile that holds a head: 80 and 96 take 128, with what is past them masked."""
    return max(TILE_ROWS, power_of_two(head_dim))


def decode_tiles(target: Target, head_dim: int, group: int, element_size: int, cache_size: int) -> Tiles:
    """For one query of each of a group's heads. `element_size` is the query's, in bytes, which products are made of;
    `cache_size` a cached element's."""
    width = padded_head(head_dim)
    rows = max(TILE_ROWS, power_of_two(group))
    if element_size == 4:  # products run on plain units, whose operands all lie in registers
        return Tiles(rows, 16 if width >= 128 else 32, 4, 2 if cache_size > 1 else 1)
    keys = 64 if width <= 128 else 32
    if rows > 32:
        keys = min(keys, 32)
    if target.backend == "hip":
        return Tiles(rows, keys, 4, 1 if width >= 256 else 2)
    return Tiles(rows, keys, 4, 3 if width <= 128 else 2)


def prefill_tiles(target: Target, head_dim: int, group: int, element_size: int, cache_size: int, queries: int) -> Tiles:
    """For chunks of which the longest has this many `queries`; sizes as in `decode_tiles`."""
    width = padded_head(head_dim)
    least = max(TILE_ROWS, power_of_two(group))
    if element_size == 4:
        return Tiles(least, 16 if width >= 128 else 32, 4, 1)
    if queries * group <= 32 and least <= 32:
        return Tiles(32, 64 if width <= 128 and cache_size > 1 else 32, 4, 3)
    if target.hopper:
        if width <= 128:
            return Tiles(max(least, 128), 64, 8, 3)
        return Tiles(max(least, 64), 64 if cache_size > 1 else 32, 8, 2)
    if target.backend == "hip":
        return Tiles(max(least, 64), 64 if width <= 128 else 32, 4, 1)
    if width <= 64:
        return Tiles(max(least, 64), 64, 4, 3)
    return Tiles(max(least, 128 if width <= 128 else 64), 32, 8, 3)


def choose_splits(target: Target, programs: int, keys: int, tile_keys: int) -> int:
    """Into how many parts each sequence's `keys` are cut, so that `programs` times that many fill the device.

    The nearest whole number: slightly too few programs cost less than a second, almost empty wave of them.
    """
    wanted = target.processors * PROGRAMS_PER_PROCESSOR
    most = max(1, keys // (MIN_SPLIT_TILES * tile_keys))
    return max(1, min(round(wanted / max(1, programs)), most, MAX_SPLITS))
