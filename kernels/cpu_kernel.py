"""The compiled loops of the CPU backend: workers that take pieces of one call until none is left.

Compiled code is kept on disk (`compile_cache`), once per head layout.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any

import numpy as np

from kernels.compile_cache import compile_worker
from kernels.cpu_call import integers, load_float32, load_float64, load_int32, load_int64, offsets, take_ticket
from kernels.cpu_dot_tile import attend_dots
from kernels.cpu_shared_tile import TILES, attend_prepared, batch_rows, prepare_tile, scratch_bytes, tile_bytes
from kernels.cpu_tile import attend_tile, clear_state, copy_elements, copy_scaled, merge_state, prefetch
from kernels.cpu_vectors import FLOAT32, ITEM_SIZES, LOG2E


class Call(ctypes.Structure):
    """One call's arguments. Addresses and strides are in bytes; `rows` and `entries` as in `kernels.rows.Rows`."""

    _fields_ = (
        *integers(
            "ticket", "num_entries", "num_kv_heads", "splits", "window",
            "query", "query_row", "query_head", "out", "out_row", "out_head",
            "keys", "key_block", "key_head", "key_slot",
            "values", "value_block", "value_head", "value_slot",
            "tables", "table_row", "rows", "entries", "partial",
        ),
        ("scale", ctypes.c_double),
        ("cap", ctypes.c_double),
    )  # fmt: skip


class Write(ctypes.Structure):
    """Arguments of one write of keys and values; strides in bytes, `slots` int64 [num_tokens]."""

    _fields_ = integers(
        "num_tokens", "num_kv_heads", "block_size", "slots",
        "key", "key_row", "key_head", "value", "value_row", "value_head",
        "keys", "key_block", "key_cache_head", "key_slot",
        "values", "value_block", "value_cache_head", "value_slot",
    )  # fmt: skip


def state_floats(group: int, head_dim: int) -> int:
    """fp32 numbers of one running softmax: queries, sums, maxima and totals."""
    return 2 * group * head_dim + 2 * group


@cache
def attend_worker(group: int, head_dim: int, block_size: int, kind: int, capped: int, tile_rows: int, dots: int) -> Any:
    """A worker for `Call`: running softmax over the pieces it draws, each one entry for one KV head.

    `tile_rows` is the most rows of an entry: 1, or a multiple of `batch_rows(group)`. With `dots`, whole tiles of
    keys go through bf16 dot products. Without splits a worker writes the output; with splits (of single rows only) it
    leaves each piece's state in `partial` for `merge_worker`.
    """
    at = offsets(Call)
    at_ticket, at_entries, at_heads, at_splits, at_window = (
        at[x] for x in ("ticket", "num_entries", "num_kv_heads", "splits", "window")
    )
    at_query, at_query_row, at_query_head = (at[x] for x in ("query", "query_row", "query_head"))
    at_out, at_out_row, at_out_head = (at[x] for x in ("out", "out_row", "out_head"))
    at_keys, at_key_block, at_key_head, at_key_slot = (at[x] for x in ("keys", "key_block", "key_head", "key_slot"))
    at_values, at_value_block, at_value_head, at_value_slot = (
        at[x] for x in ("values", "value_block", "value_head", "value_slot")
    )
    at_tables, at_table_row, at_rows, at_entry_table, at_partial = (
        at[x] for x in ("tables", "table_row", "rows", "entries", "partial")
    )
    at_scale, at_cap = at["scale"], at["cap"]
    tile = math.gcd(block_size, 16)
    heads_in_tile = tile_rows * group
    floats = state_floats(heads_in_tile, head_dim)
    batch = batch_rows(group)
    batch_heads = batch * group
    row_bytes = group * head_dim * 4  # one row's queries, or its sums
    narrow_row_bytes = group * head_dim * 2
    prepared_bytes = tile_bytes(head_dim)
    room = heads_in_tile * head_dim * 2 + scratch_bytes(head_dim, batch_heads) + 64
    key_bytes, rows_ahead = head_dim * ITEM_SIZES[kind], min(block_size, 32)

    def attend(call: int) -> None:
        entries, splits = load_int64(call + at_entries), load_int64(call + at_splits)
        window = load_int64(call + at_window)
        query, out = load_int64(call + at_query), load_int64(call + at_out)
        query_row, query_head = load_int64(call + at_query_row), load_int64(call + at_query_head)
        out_row, out_head = load_int64(call + at_out_row), load_int64(call + at_out_head)
        keys, key_block = load_int64(call + at_keys), load_int64(call + at_key_block)
        key_head, key_slot = load_int64(call + at_key_head), load_int64(call + at_key_slot)
        values, value_block = load_int64(call + at_values), load_int64(call + at_value_block)
        value_head, value_slot = load_int64(call + at_value_head), load_int64(call + at_value_slot)
        tables, table_row = load_int64(call + at_tables), load_int64(call + at_table_row)
        rows, entry_table = load_int64(call + at_rows), load_int64(call + at_entry_table)
        partial = load_int64(call + at_partial)
        scale, cap = load_float64(call + at_scale), load_float64(call + at_cap)
        factor = scale / cap if capped else scale * LOG2E
        cap *= LOG2E
        own_state, own_room = np.zeros(floats, np.float32), np.zeros(room, np.uint8)
        pieces = entries * splits * load_int64(call + at_heads)
        while True:
            piece = take_ticket(call + at_ticket)
            if piece >= pieces:
                break
            # Asked for in the loop: numba frees an array after the last line that names it.
            scratch = (own_room.ctypes.data + 63) // 64 * 64
            narrow_queries = scratch + room - 64 - heads_in_tile * head_dim * 2
            # Head by head, so that sequences that share blocks find them in the core's cache.
            head, rest = divmod(piece, entries * splits)
            number, split = divmod(rest, splits)
            entry = entry_table + number * 20
            first, count = load_int32(entry), load_int32(entry + 4)
            shared_begin, shared_end = load_int32(entry + 12), load_int32(entry + 16)
            state = partial + piece * floats * 4 if splits > 1 else own_state.ctypes.data
            sums = state + tile_rows * row_bytes
            maxima = sums + tile_rows * row_bytes
            totals = maxima + heads_in_tile * 4
            clear_state(state, heads_in_tile, head_dim)
            key_base, value_base = keys + head * key_head, values + head * value_head
            for r in range(count):
                row = load_int32(rows + (first + r) * 12)
                for h in range(group):
                    source = query + row * query_row + (head * group + h) * query_head
                    target = state + r * row_bytes + 4 * h * head_dim
                    copy_scaled(source, target, factor, head_dim, kind, FLOAT32)
                    if dots:
                        target = narrow_queries + r * narrow_row_bytes + 2 * h * head_dim
                        copy_elements(source, target, head_dim, kind)

            if tile_rows > 1:
                table = tables + load_int32(entry + 8) * table_row
                batches = -(-count // batch)
                position = shared_begin
                while position < shared_end:
                    tiles = min(TILES, (shared_end - position) // 16)
                    for t in range(tiles):
                        block, slot = load_int32(table + 4 * (position // block_size)), position % block_size
                        prepare_tile(
                            key_base + block * key_block + slot * key_slot,
                            value_base + block * value_block + slot * value_slot,
                            key_slot, value_slot, scratch + t * prepared_bytes, head_dim, kind, dots,
                        )  # fmt: skip
                        position += 16
                    for n in range(batches):
                        skipped = n * batch * row_bytes
                        queries, multiplier = state + skipped, 1.0
                        if dots:
                            queries, multiplier = narrow_queries + n * batch * narrow_row_bytes, factor
                        attend_prepared(
                            queries, sums + skipped, maxima + n * batch_heads * 4, totals + n * batch_heads * 4,
                            scratch, tiles, multiplier, cap, batch_heads, head_dim, dots, capped,
                        )  # fmt: skip

            for r in range(count):
                row = rows + (first + r) * 12
                table, length = tables + load_int32(row + 4) * table_row, load_int32(row + 8)
                begin, end = (max(0, length - window) if window else 0), length
                if splits > 1:
                    first_block = begin - begin % block_size
                    share = -(-(end - first_block) // (splits * block_size)) * block_size
                    begin = max(begin, first_block + split * share)
                    end = min(end, first_block + (split + 1) * share)
                at_queries, at_sums = state + r * row_bytes, sums + r * row_bytes
                at_maxima, at_totals = maxima + r * group * 4, totals + r * group * 4
                position = begin
                while position < end:
                    if position == shared_begin and shared_begin < shared_end:
                        position = shared_end
                        continue
                    block = load_int32(table + 4 * (position // block_size))
                    slot = position % block_size
                    stop = min(block_size, slot + end - position)
                    if position < shared_begin:
                        stop = min(stop, slot + shared_begin - position)
                    position += stop - slot
                    block_after = load_int32(table + 4 * (position // block_size)) if position < end else block
                    keys_after, values_after = (
                        key_base + block_after * key_block,
                        value_base + block_after * value_block,
                    )
                    if not dots:
                        prefetch(keys_after, key_slot, rows_ahead, key_bytes)
                        prefetch(values_after, value_slot, rows_ahead, key_bytes)
                    while slot < stop:
                        key = key_base + block * key_block + slot * key_slot
                        value = value_base + block * value_block + slot * value_slot
                        if slot % tile == 0 and stop - slot >= tile and dots:
                            attend_dots(
                                narrow_queries + r * narrow_row_bytes, at_sums, at_maxima, at_totals, key, value,
                                key_slot, value_slot, keys_after, values_after, scratch, factor, cap,
                                group, head_dim, capped,
                            )  # fmt: skip
                            slot += tile
                        elif slot % tile == 0 and stop - slot >= tile:
                            attend_tile(
                                at_queries, at_sums, at_maxima, at_totals, key, value, key_slot, value_slot,
                                cap, group, head_dim, tile, kind, capped,
                            )  # fmt: skip
                            slot += tile
                        else:
                            attend_tile(
                                at_queries, at_sums, at_maxima, at_totals, key, value, key_slot, value_slot,
                                cap, group, head_dim, 1, kind, capped,
                            )  # fmt: skip
                            slot += 1
                if splits == 1:
                    for h in range(group):
                        target = out + load_int32(row) * out_row + (head * group + h) * out_head
                        whole = load_float32(at_totals + 4 * h)
                        copy_scaled(at_sums + 4 * h * head_dim, target, 1.0 / whole, head_dim, FLOAT32, kind)

    return compile_worker(attend)


@cache
def merge_worker(group: int, head_dim: int, kind: int) -> Any:
    """A worker for `Call` that merges the states that `attend_worker` left per split, and writes the output."""
    at = offsets(Call)
    at_ticket, at_entries, at_heads, at_splits = (at[x] for x in ("ticket", "num_entries", "num_kv_heads", "splits"))
    at_out, at_out_row, at_out_head = (at[x] for x in ("out", "out_row", "out_head"))
    at_rows, at_partial = at["rows"], at["partial"]
    floats = state_floats(group, head_dim)

    def merge(call: int) -> None:
        entries, splits = load_int64(call + at_entries), load_int64(call + at_splits)
        out, out_row = load_int64(call + at_out), load_int64(call + at_out_row)
        out_head, rows = load_int64(call + at_out_head), load_int64(call + at_rows)
        partial = load_int64(call + at_partial)
        pieces = load_int64(call + at_heads) * entries
        while True:
            piece = take_ticket(call + at_ticket)
            if piece >= pieces:
                break
            head, entry = divmod(piece, entries)
            state = partial + piece * splits * floats * 4
            totals = 4 * (floats - group)
            for split in range(1, splits):
                merge_state(state, state + split * floats * 4, group, head_dim)
            row = load_int32(rows + entry * 12)
            for h in range(group):
                target = out + row * out_row + (head * group + h) * out_head
                share_of_one = 1.0 / load_float32(state + totals + 4 * h)
                sums = state + 4 * (group + h) * head_dim
                copy_scaled(sums, target, share_of_one, head_dim, FLOAT32, kind)

    return compile_worker(merge)


@cache
def write_worker(head_dim: int, kind: int) -> Any:
    """A worker for `Write`, run by one thread: it moves too little to share."""
    at = offsets(Write)
    at_tokens, at_heads, at_block_size, at_slots = (
        at[x] for x in ("num_tokens", "num_kv_heads", "block_size", "slots")
    )
    at_key, at_key_row, at_key_head = (at[x] for x in ("key", "key_row", "key_head"))
    at_value, at_value_row, at_value_head = (at[x] for x in ("value", "value_row", "value_head"))
    at_keys, at_key_block, at_key_cache_head, at_key_slot = (
        at[x] for x in ("keys", "key_block", "key_cache_head", "key_slot")
    )
    at_values, at_value_block, at_value_cache_head, at_value_slot = (
        at[x] for x in ("values", "value_block", "value_cache_head", "value_slot")
    )

    def write(call: int) -> None:
        block_size, slots = load_int64(call + at_block_size), load_int64(call + at_slots)
        key, value = load_int64(call + at_key), load_int64(call + at_value)
        keys, values = load_int64(call + at_keys), load_int64(call + at_values)
        key_row, value_row = load_int64(call + at_key_row), load_int64(call + at_value_row)
        key_head, value_head = load_int64(call + at_key_head), load_int64(call + at_value_head)
        key_block, value_block = load_int64(call + at_key_block), load_int64(call + at_value_block)
        key_slot, value_slot = load_int64(call + at_key_slot), load_int64(call + at_value_slot)
        key_cache_head = load_int64(call + at_key_cache_head)
        value_cache_head = load_int64(call + at_value_cache_head)
        heads = load_int64(call + at_heads)
        for token in range(load_int64(call + at_tokens)):
            slot = load_int64(slots + 8 * token)
            if slot < 0:
                continue
            block, offset = divmod(slot, block_size)
            for head in range(heads):
                copy_elements(
                    key + token * key_row + head * key_head,
                    keys + block * key_block + head * key_cache_head + offset * key_slot,
                    head_dim,
                    kind,
                )
                copy_elements(
                    value + token * value_row + head * value_head,
                    values + block * value_block + head * value_cache_head + offset * value_slot,
                    head_dim,
                    kind,
                )

    return compile_worker(write)
