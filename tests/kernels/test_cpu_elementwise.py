"""Lookups, norms and rotations of whole rows against plain torch in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import thread_pool
from kernels.cpu import KINDS, cache_fields
from kernels.cpu_elementwise import (
    Lookup,
    Norm,
    Rotation,
    lookup_worker,
    norm_worker,
    padded,
    rotation_worker,
)
from kernels.cpu_vectors import FLOAT32

pytestmark = pytest.mark.usefixtures("two_threads")
DTYPES = [torch.float32, torch.bfloat16]
ROWS = [1, 2, 63, 64, 65, 200]


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-6, "rtol": 2**-8}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_looked_up(dtype: torch.dtype, rows: int) -> None:
    table = torch.randn(50, 32).to(dtype)
    indexes = torch.randint(50, (rows,))
    out = torch.empty(rows, 32)
    call = Lookup(
        num_rows=rows,
        vectors=2,
        indexes=indexes.data_ptr(),
        table=table.data_ptr(),
        table_row=32 * table.element_size(),
        out=out.data_ptr(),
        out_row=128,
    )
    thread_pool.run(lookup_worker(KINDS[dtype], FLOAT32), call)
    assert torch.equal(out, table[indexes].float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 16, 40, 576])
def test_norms(dtype: torch.dtype, rows: int, size: int) -> None:
    width = padded(size)
    x, weight = torch.zeros(rows, width), torch.zeros(width)
    x[:, :size], weight[:size] = torch.randn(rows, size) * 3, torch.randn(size)
    out = torch.full((rows, width), torch.nan).to(dtype)
    call = Norm(
        num_rows=rows,
        vectors=width // 16,
        size=size,
        input=x.data_ptr(),
        input_row=width * 4,
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        out_row=width * out.element_size(),
        eps=1e-5,
    )
    thread_pool.run(norm_worker(KINDS[dtype]), call)
    exact = torch.nn.functional.rms_norm(x[:, :size].double(), (size,), weight[:size].double(), 1e-5)
    torch.testing.assert_close(out[:, :size].double(), exact, **tolerance(dtype))
    assert not out[:, size:].any()


def rotated(head: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = head.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128])
@pytest.mark.parametrize("normed", [0, 1])
def test_rotation_and_the_cache_write(dtype: torch.dtype, head_dim: int, normed: int) -> None:
    rows, heads, kv_heads, block_size, blocks = 70, 6, 2, 4, 30
    x = torch.randn(rows, heads + 2 * kv_heads, head_dim)
    positions = torch.randint(40, (rows,))
    slots = torch.randperm(blocks * block_size)[:rows]
    slots[5] = -1
    angles = torch.randn(40, head_dim // 2)
    cos, sin = angles.cos(), angles.sin()
    weights = torch.randn(2, head_dim)
    query = torch.full((rows, heads, head_dim), torch.nan).to(dtype)
    caches = torch.full((2, blocks, kv_heads, block_size, head_dim), 7.0).to(dtype)
    call = Rotation(
        num_rows=rows,
        num_heads=heads,
        num_kv_heads=kv_heads,
        block_size=block_size,
        input=x.data_ptr(),
        input_row=x.stride(0) * 4,
        positions=positions.data_ptr(),
        slots=slots.data_ptr(),
        cos=cos.data_ptr(),
        sin=sin.data_ptr(),
        query_norm=weights[0].data_ptr(),
        key_norm=weights[1].data_ptr(),
        query=query.data_ptr(),
        query_row=query.stride(0) * query.element_size(),
        eps=1e-6,
        **cache_fields(caches[0], caches[1], "key_head", "value_head"),
    )
    thread_pool.run(rotation_worker(head_dim, KINDS[dtype], normed), call)

    exact = x.double()
    wanted_query, wanted_key, value = exact.split((heads, kv_heads, kv_heads), dim=1)
    if normed:
        wanted_query, wanted_key = (
            torch.nn.functional.rms_norm(part, (head_dim,), weight.double(), 1e-6)
            for part, weight in ((wanted_query, weights[0]), (wanted_key, weights[1]))
        )
    at = cos[positions, None].double(), sin[positions, None].double()
    torch.testing.assert_close(query.double(), rotated(wanted_query, *at), **tolerance(dtype), check_dtype=False)
    for cache, wanted in zip(caches, (rotated(wanted_key, *at), value), strict=True):
        expected = torch.full((blocks, block_size, kv_heads, head_dim), 7.0, dtype=torch.float64)
        written = slots >= 0
        expected[slots[written] // block_size, slots[written] % block_size] = wanted[written]
        torch.testing.assert_close(cache.double(), expected.transpose(1, 2), **tolerance(dtype))
