"""Stages run one after another, each on all threads, and each is timed."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest
import torch

from kernels import thread_pool
from kernels.cpu_elementwise import Lookup, lookup_worker
from kernels.cpu_program import Program
from kernels.cpu_vectors import FLOAT32


def chain(count: int, rows: int) -> tuple[list[torch.Tensor], torch.Tensor, list[Lookup]]:
    """`count` lookups, each through a permutation, of the rows that the one before wrote."""
    tensors = [torch.arange(rows * 16, dtype=torch.float32).view(rows, 16)]
    permutation = torch.randperm(rows)
    calls = []
    for _ in range(count):
        tensors.append(torch.full((rows, 16), torch.nan))
        calls.append(
            Lookup(
                num_rows=rows,
                vectors=1,
                indexes=permutation.data_ptr(),
                table=tensors[-2].data_ptr(),
                table_row=64,
                out=tensors[-1].data_ptr(),
                out_row=64,
            )
        )
    return tensors, permutation, calls


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_stage_sees_all_that_the_one_before_wrote(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        tensors, permutation, calls = chain(200, 300)
        worker = lookup_worker(FLOAT32, FLOAT32)
        program = Program([(worker.address, ctypes.addressof(call)) for call in calls])
        for _ in range(3):
            for call, out in zip(calls, tensors[1:], strict=True):
                call.ticket = 0
                out.fill_(torch.nan)
            seconds = program.run()
            for source, target in pairwise(tensors):
                assert torch.equal(target, source[permutation])
            assert len(seconds) == 200
            assert (seconds >= 0).all()
            assert seconds.sum() > 0
    finally:
        torch.set_num_threads(before)


def test_threads_may_become_more_after_it_was_made() -> None:
    before = torch.get_num_threads()
    tensors, permutation, calls = chain(200, 300)
    worker = lookup_worker(FLOAT32, FLOAT32)
    try:
        torch.set_num_threads(1)
        program = Program([(worker.address, ctypes.addressof(call)) for call in calls])
        torch.set_num_threads(4)
        program.run()
    finally:
        torch.set_num_threads(before)
    for source, target in pairwise(tensors):
        assert torch.equal(target, source[permutation])


def test_many_short_runs_with_more_threads_than_cores() -> None:
    before = torch.get_num_threads()
    tensors, permutation, calls = chain(20, 7)
    expected = tensors[0]
    for _ in calls:
        expected = expected[permutation]
    worker = lookup_worker(FLOAT32, FLOAT32)
    program = Program([(worker.address, ctypes.addressof(call)) for call in calls])
    torch.set_num_threads(8)
    try:
        for _ in range(20_000):
            for call in calls:
                call.ticket = 0
            tensors[-1].fill_(torch.nan)
            seconds = program.run()
            assert (seconds >= 0).all()  # late threads have changed no time
            assert torch.equal(tensors[-1], expected)
    finally:
        torch.set_num_threads(before)


def test_one_thread_needs_no_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "threads", lambda: 1)
    tensors, permutation, calls = chain(3, 10)
    worker = lookup_worker(FLOAT32, FLOAT32)
    Program([(worker.address, ctypes.addressof(call)) for call in calls]).run()
    assert torch.equal(tensors[3], tensors[0][permutation][permutation][permutation])
